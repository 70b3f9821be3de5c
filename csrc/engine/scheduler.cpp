// The worker's side of the engine: which operations go into the next forward pass.
#include <algorithm>

#include "engine/engine.h"

namespace flarecore {
namespace {

// Rows of prefill in a forward pass that others decode in. A pass of 256 rows takes some 40 decode
// steps: the sentence of one user would wait for all of another's prompt. At 64 rows, some twelve
// steps, a prompt costs a fifth more a token.
constexpr int kPrefillBesideDecode = 64;

}  // namespace

void Engine::run() {
  std::unique_lock<std::mutex> guard(mutex_);
  while (true) {
    // A callback may have ended an operation, which is to be notified of.
    wake_.wait(guard, [this] {
      return is_stopping_ || !running_.empty() || !completed_.empty();
    });
    if (is_stopping_) {
      const auto left = running_;
      for (const auto& operation : left) {
        fail(operation, ErrorKind::kClosed, "the engine was closed");
      }
    } else {
      plan_step();
      if (!step_operations_.empty()) {
        guard.unlock();
        forward_step();
        guard.lock();
        commit_step();
      }
    }
    std::vector<std::shared_ptr<Operation>> completed;
    completed.swap(completed_);
    guard.unlock();
    idle_.notify_all();
    for (const auto& operation : completed) operation->notify();
    completed.clear();  // may free sequences: not under the lock
    guard.lock();
    if (is_stopping_ && running_.empty() && completed_.empty()) return;
  }
}

void Engine::plan_step() {
  step_operations_.clear();
  step_segments_.clear();
  const auto waiting = running_;
  const bool decodes = std::any_of(waiting.begin(), waiting.end(),
                                   [](const auto& operation) { return operation->decodes_next(); });
  int budget = options_.max_batch_tokens;
  int prefill_budget = decodes ? std::min(budget, kPrefillBesideDecode) : budget;
  for (const auto& operation : waiting) {
    const bool is_decode = operation->decodes_next();
    const int max_rows = is_decode ? budget : std::min(budget, prefill_budget);
    if (max_rows == 0) continue;
    try {
      operation->check_limits();
      if (!operation->has_begun() && operation->begin(&cache_)) {
        finish(operation);
        continue;
      }
      step_segments_.push_back(operation->plan(&cache_, max_rows));
      step_operations_.push_back(operation);
      const int num_rows = static_cast<int>(step_segments_.back().tokens.size());
      budget -= num_rows;
      if (!is_decode) prefill_budget -= num_rows;
    } catch (const Error& error) {
      fail(operation, error.kind(), error.what());
    } catch (const std::exception& error) {
      fail(operation, ErrorKind::kInternal, error.what());
    }
  }
  // Whoever was served goes to the back, so that a long prefill cannot starve the others.
  for (const auto& operation : step_operations_) {
    running_.remove(operation);
    running_.push_back(operation);
  }
  step_errors_.assign(step_operations_.size(), {});
}

void Engine::forward_step() {
  const auto consume = [this](int segment, int row, const LogitsRow& logits) {
    StepError& failure = step_errors_[segment];
    try {
      return step_operations_[segment]->consume(row, logits, &sampler_);
    } catch (const Error& error) {
      failure = {true, error.kind(), error.what()};
    } catch (const std::exception& error) {
      failure = {true, ErrorKind::kInternal, error.what()};
    }
    return false;
  };
  try {
    decoder_.forward(step_segments_, consume);
  } catch (const std::exception& error) {
    for (StepError& failure : step_errors_) {
      failure = {true, ErrorKind::kInternal, std::string("the forward pass failed: ") + error.what()};
    }
  }
}

void Engine::commit_step() {
  ++num_steps_;
  for (size_t i = 0; i < step_operations_.size(); ++i) {
    num_rows_ += static_cast<int64_t>(step_segments_[i].tokens.size());
    const auto& operation = step_operations_[i];
    if (step_errors_[i].has_failed) {
      fail(operation, step_errors_[i].kind, step_errors_[i].message);
    } else if (operation->commit(&cache_)) {
      finish(operation);
    }
  }
  step_operations_.clear();
}

void Engine::finish(const std::shared_ptr<Operation>& operation) {
  operation->succeed(&cache_);
  running_.remove(operation);
  completed_.push_back(operation);
}

void Engine::fail(const std::shared_ptr<Operation>& operation, ErrorKind kind,
                  const std::string& message) {
  operation->fail(&cache_, kind, message);
  running_.remove(operation);
  completed_.push_back(operation);
}

}  // namespace flarecore
