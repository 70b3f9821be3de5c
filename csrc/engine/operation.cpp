#include "engine/operation.h"

#include <algorithm>

namespace flarecore {

using Clock = std::chrono::steady_clock;

namespace {

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Plain decoding has no text to look things up in and stays plain.
std::vector<std::vector<TokenId>> proposal_sources(const OperationRequest& request) {
  if (request.proposal.empty() && request.lookup.empty()) return {};
  return {request.lookup, request.token_ids, request.proposal};
}

}  // namespace

Operation::Operation(std::shared_ptr<Sequence> sequence, OperationRequest request,
                     const Vocabulary& vocabulary, int context_length)
    : sequence_(std::move(sequence)),
      request_(std::move(request)),
      context_length_(context_length),
      tokens_(sequence_->tokens),
      start_tokens_(static_cast<int>(tokens_.size())),
      start_computed_(sequence_->kv.num_computed),
      proposer_(request_.proposal, proposal_sources(request_)),
      submitted_(Clock::now()) {
  if (request_.kind == OperationKind::kDecode) state_.emplace(request_.decode, vocabulary);
}

// The lock may have been held by the worker when the process was forked: a child leaves it alone.
void Operation::check_not_lost() const {
  check(is_done_, ErrorKind::kUnsupported, "the operation runs in process ", process_id_,
        " and cannot be waited for after fork(); start it again on an engine of process ", getpid());
}

bool Operation::is_done() const {
  if (is_in_forked_child()) return is_done_;
  std::lock_guard<std::mutex> lock(mutex_);
  return is_done_;
}

bool Operation::wait_for(double timeout_ms) const {
  if (is_in_forked_child()) {
    check_not_lost();
    return true;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  return done_signal_.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms),
                               [this] { return is_done_; });
}

const OperationResult& Operation::result() const {
  if (has_failed_) throw Error(error_kind_, error_message_);
  return result_;
}

void Operation::on_done(std::function<void()> callback) {
  if (is_in_forked_child()) {
    check_not_lost();
  } else {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void Operation::check_limits() const {
  check(!is_cancelled_, ErrorKind::kCancelled,
        "the operation was cancelled; the sequence is as it was before it");
  if (request_.deadline_ms) {
    check(ms_since(submitted_) < *request_.deadline_ms, ErrorKind::kDeadline, "the deadline of ",
          *request_.deadline_ms, " ms passed; the sequence is as it was before the operation");
  }
}

bool Operation::decodes_next() const {
  return state_ && has_begun_ &&
         sequence_->kv.num_computed + 1 == static_cast<int>(tokens_.size());
}

bool Operation::begin(KvCache* cache) {
  const bool is_finished = take_what_is_there(cache);
  // What has no room fails before it is computed.
  if (!is_finished) cache->reserve(&sequence_->kv, num_fed_tokens());
  return is_finished;
}

int Operation::num_fed_tokens() const {
  const bool needs_last = state_ || request_.kind == OperationKind::kEncode;
  return static_cast<int>(tokens_.size()) - !needs_last;
}

bool Operation::take_what_is_there(KvCache* cache) {
  begun_ = Clock::now();
  has_begun_ = true;
  tokens_.insert(tokens_.end(), request_.token_ids.begin(), request_.token_ids.end());
  decode_start_ = static_cast<int>(tokens_.size());
  KvSequence& kv = sequence_->kv;
  if (request_.kind == OperationKind::kScore) {
    // The row before the first scored token must be fed for its logits.
    cache->truncate(&kv, start_tokens_ - 1);
    result_.stats.num_reused = kv.num_computed;
    return request_.token_ids.empty();
  }
  cache->attach_prefix(&kv, tokens_);
  result_.stats.num_reused = kv.num_computed;
  if (state_) {
    if (request_.token_ids.empty() && replay_held()) return true;
    cache->truncate(&kv, static_cast<int>(tokens_.size()) - 1);
    return false;
  }
  return request_.kind == OperationKind::kExtend &&
         kv.num_computed >= static_cast<int>(tokens_.size()) - 1;
}

bool Operation::replay_held() {
  const HeldTokens& held = sequence_->held;
  if (!(held.sampling == request_.decode.sampling) || held.pass != request_.decode.pass) {
    return false;
  }
  for (const Sampled& sampled : held.tokens) {
    if (take(sampled)) return true;
  }
  return false;
}

// Takes a sampled token into the result; true when the decode is over.
bool Operation::take(const Sampled& sampled) {
  ++result_.stats.num_decoded;
  const bool finished = state_->accept(sampled);
  if (state_->tokens().size() > tokens_.size() - decode_start_) tokens_.push_back(sampled.token);
  if (finished && state_->reason() == StopReason::kEndOfText) result_.end_of_text_prob = sampled.prob;
  if (!finished && static_cast<int>(tokens_.size()) >= context_length_) {
    state_->end_at_context();
    return true;
  }
  return finished;
}

ForwardSegment Operation::plan(KvCache* cache, int max_rows) {
  KvSequence& kv = sequence_->kv;
  const int num_tokens = static_cast<int>(tokens_.size());
  int end = num_fed_tokens();  // places [num_computed, end) are fed
  step_tokens_.assign(tokens_.begin() + kv.num_computed, tokens_.end());
  if (state_) {
    // n fed rows of a proposal give n + 1 tokens: no more of them than may still be sampled.
    const int sampled = num_tokens - decode_start_;
    const int room = std::min({request_.decode.max_tokens - sampled - 1,
                               context_length_ - 1 - num_tokens,
                               max_rows - (num_tokens - kv.num_computed)});
    const Span<const TokenId> proposal = proposer_.propose(tokens_, sampled, room);
    step_tokens_.insert(step_tokens_.end(), proposal.begin(), proposal.end());
    end += static_cast<int>(proposal.size());
  }
  step_place_ = kv.num_computed;
  step_rows_ = std::min(end - kv.num_computed, max_rows);
  const int first_logits = state_                                         ? num_tokens - 1
                           : request_.kind == OperationKind::kScore ? start_tokens_ - 1
                                                                          : end;
  step_logits_begin_ = std::clamp(first_logits - step_place_, 0, step_rows_);
  step_valid_rows_ = step_logits_begin_;
  cache->reserve(&kv, step_place_ + step_rows_);

  step_proposed_ = std::max(0, step_place_ + step_rows_ - num_tokens);
  step_accepted_ = 0;
  result_.stats.num_proposed += step_proposed_;
  const int num_decode_rows = state_ && step_logits_begin_ < step_rows_ ? 1 : 0;
  result_.stats.num_prefilled += step_rows_ - step_proposed_ - num_decode_rows;
  ++result_.stats.num_steps;

  ForwardSegment segment;
  segment.tokens = {step_tokens_.data(), static_cast<size_t>(step_rows_)};
  segment.place_begin = step_place_;
  segment.blocks = kv.blocks;
  segment.num_head = kv.num_head;
  segment.num_reserved = kv.num_reserved;
  segment.passages = kv.passages;
  segment.sees_from = kv.sees_from;
  segment.logits_begin = step_logits_begin_;
  segment.inverse_temperature = request_.decode.sampling.inverse_temperature();
  return segment;
}

bool Operation::consume(int row, const LogitsRow& logits, Sampler* sampler) {
  step_valid_rows_ = row + 1;
  const int place = step_place_ + row + 1;  // of the token that these logits predict
  if (request_.kind == OperationKind::kScore) {
    result_.probs.push_back(Sampler::confidence(logits, tokens_[place]));
    return true;
  }
  const DrawContext context = {static_cast<uint32_t>(place), request_.decode.pass, tokens_};
  const Sampled sampled = sampler->sample(logits, request_.decode.sampling, context);
  const bool finished = take(sampled);
  const bool was_proposed = row + 1 < step_rows_ && step_tokens_[row + 1] == sampled.token;
  step_accepted_ += was_proposed;
  return !finished && was_proposed;
}

bool Operation::commit(KvCache* cache) {
  const int computed = std::min(step_place_ + step_valid_rows_, static_cast<int>(tokens_.size()));
  cache->commit(&sequence_->kv, tokens_, computed);
  if (step_proposed_ > 0) {
    proposer_.report(step_proposed_, step_accepted_);
    result_.stats.num_accepted += step_accepted_;
  }
  if (state_) return state_->finished();
  const int last = request_.kind == OperationKind::kEncode ? 0 : 1;
  return computed >= static_cast<int>(tokens_.size()) - last;
}

void Operation::fill_decoded() {
  const std::vector<Sampled>& sampled = state_->tokens();
  for (int i = 0; i < state_->num_kept(); ++i) {
    result_.token_ids.push_back(sampled[i].token);
    result_.probs.push_back(sampled[i].prob);
    result_.mask.push_back(sampled[i].prob < request_.decode.beta);
    result_.min_prob = std::min(result_.min_prob, sampled[i].prob);
  }
  result_.text = state_->text();
  result_.stop_reason = state_->reason();
}

void Operation::succeed(KvCache* cache) {
  Sequence& sequence = *sequence_;
  if (request_.kind == OperationKind::kScore) {
    result_.token_ids = request_.token_ids;
    for (float prob : result_.probs) {
      result_.mask.push_back(prob < request_.decode.beta);
      result_.min_prob = std::min(result_.min_prob, prob);
    }
    cache->truncate(&sequence.kv, start_tokens_);
  } else if (request_.kind == OperationKind::kEncode) {
    result_.passage = cache->copy_passage(sequence.kv, tokens_, start_tokens_);
    cache->close(&sequence.kv);
  } else {
    if (state_) {
      fill_decoded();
      HeldTokens held = {state_->held(), request_.decode.sampling, request_.decode.pass};
      const size_t used = result_.stats.num_decoded;
      if (request_.token_ids.empty() && state_->num_kept() + held.tokens.size() == used) {
        // What was held and not reached yet still follows what is held now, if nothing between them
        // was dropped.
        const bool same = held.sampling == sequence.held.sampling && held.pass == sequence.held.pass;
        for (size_t i = used; same && i < sequence.held.tokens.size(); ++i) {
          held.tokens.push_back(sequence.held.tokens[i]);
        }
      }
      sequence.held = std::move(held);
      tokens_.resize(decode_start_ + state_->num_kept());
    } else if (!request_.token_ids.empty()) {
      sequence.held = {};
    }
    sequence.tokens = tokens_;
    cache->truncate(&sequence.kv, static_cast<int>(sequence.tokens.size()));
  }
  result_.stats.time_ms = ms_since(begun_);
  sequence.is_busy = false;
}

void Operation::fail(KvCache* cache, ErrorKind kind, const std::string& message) {
  // Held tokens need the last row's KV only to be right about what is computed: both stay.
  cache->truncate(&sequence_->kv, start_computed_);
  if (request_.kind == OperationKind::kEncode) cache->close(&sequence_->kv);
  has_failed_ = true;
  error_kind_ = kind;
  error_message_ = message;
  sequence_->is_busy = false;
}

void Operation::notify() {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_done_ = true;
    callbacks.swap(callbacks_);
  }
  done_signal_.notify_all();
  for (auto& callback : callbacks) callback();
}

}  // namespace flarecore
