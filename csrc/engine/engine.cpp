#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>

#include "common/available_memory.h"
#include "common/check.h"
#include "common/start_thread.h"
#include "cpu/cpu_isa.h"
#include "engine/retired_workers.h"

namespace flarecore {
namespace {

KvLayout make_layout(const DecoderConfig& config, const EngineOptions& options) {
  // float32 is the exact mode: its KV must not round either.
  const bool is_exact = options.compute == ComputeMode::kFloat32;
  const KvFormat format =
      options.kv_format.value_or(is_exact ? KvFormat::kFloat32 : kernels().kv_format);
  check(is_exact == (format == KvFormat::kFloat32), ErrorKind::kConfig, "kv_format is ",
        kv_format_name(format), ", which compute=\"", is_exact ? "float32" : "int8",
        "\" does not take; it takes ", is_exact ? "float32" : "float16 and int16");
  return {config.num_layers, config.num_kv_heads, config.head_dim, format};
}

int64_t default_cache_bytes(const DecoderConfig& config, const KvLayout& layout) {
  const int64_t context_blocks = (config.context_length + kBlockTokens - 1) / kBlockTokens;
  const int64_t context_bytes = context_blocks * static_cast<int64_t>(layout.block_size_bytes());
  return std::min(4 * context_bytes, std::max(total_memory_bytes() / 4, int64_t{1} << 28));
}

int num_cache_blocks(const DecoderConfig& config, const KvLayout& layout, int64_t cache_bytes) {
  const int64_t block_bytes = static_cast<int64_t>(layout.block_size_bytes());
  check(cache_bytes >= 0, ErrorKind::kConfig, "kv_cache_bytes must be >= 0, got ", cache_bytes);
  if (cache_bytes == 0) {
    cache_bytes = default_cache_bytes(config, layout);
  } else {
    // Pages are only taken when they are written: without this a budget that can never be there
    // would be found out by the system's killing the process.
    const int64_t memory = total_memory_bytes();
    check(cache_bytes <= memory, ErrorKind::kConfig, "kv_cache_bytes is ", cache_bytes,
          ", the machine (or its control group) has ", memory,
          " bytes of memory in all; pass a smaller kv_cache_bytes");
  }
  const int64_t num_blocks = cache_bytes / block_bytes;
  check(num_blocks >= 1, ErrorKind::kConfig, "kv_cache_bytes is ", cache_bytes,
        ", one block of ", kBlockTokens, " tokens of this model takes ", block_bytes);
  check(num_blocks <= (1 << 30), ErrorKind::kConfig, "kv_cache_bytes is ", cache_bytes,
        ", more than 2^30 blocks of ", block_bytes, " bytes");
  return static_cast<int>(num_blocks);
}

}  // namespace

std::shared_ptr<Engine> Engine::create(std::shared_ptr<Model> model, const EngineOptions& options) {
  check(options.max_batch_tokens >= 1 && options.max_batch_tokens <= 8192, ErrorKind::kConfig,
        "max_batch_tokens must be in 1 to 8192, got ", options.max_batch_tokens);
  model->vocabulary();
  std::shared_ptr<Engine> engine(new Engine(std::move(model), options));
  const auto ended = engine->worker_ended_;
  engine->worker_ = start_thread([running = engine, ended]() mutable {
    running->run();
    running.reset();
    ended->store(true);
  });
  engine->worker_id_ = engine->worker_.get_id();
  return engine;
}

Engine::Engine(std::shared_ptr<Model> model, const EngineOptions& options)
    : model_(std::move(model)),
      options_(options),
      threads_(model_->num_threads()),
      weights_(model_->weights(options.compute)),
      cache_(make_layout(model_->config(), options),
             num_cache_blocks(model_->config(), make_layout(model_->config(), options),
                              options.kv_cache_bytes),
             weights_),
      decoder_(model_->config(), weights_, cache_.layout(), &cache_.pool(), &threads_),
      sampler_(options.sampler),
      process_id_(getpid()) {
  if (!options.preallocate) return;
  const BlockPool& pool = cache_.pool();
  const int64_t size = int64_t{pool.num_blocks()} * static_cast<int64_t>(pool.block_size_bytes());
  const int64_t available = available_memory_bytes();
  check(size <= available, ErrorKind::kConfig, "preallocate needs ", size, " bytes and ", available,
        " are available; pass a smaller kv_cache_bytes, or leave preallocate out");
  cache_.take_pages(&threads_);
}

Engine::~Engine() {
  if (worker_.joinable()) worker_.detach();  // only in a forked child, which has no worker
}

void Engine::shutdown() {
  if (getpid() != process_id_) return;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
  if (!worker_.joinable()) return;
  if (is_worker()) {
    // A callback of an operation dropped the last reference: the worker keeps the engine alive and
    // ends when it returns from it.
    retire_worker(std::move(worker_), worker_ended_);
  } else {
    worker_.join();
  }
}

std::unique_lock<std::mutex> Engine::lock() {
  check(getpid() == process_id_, ErrorKind::kUnsupported, "the engine belongs to process ",
        process_id_, " and cannot be used after fork(); make a new engine in process ", getpid());
  std::unique_lock<std::mutex> guard(mutex_);
  check(!is_stopping_, ErrorKind::kClosed, "the engine is closed; make a new one");
  return guard;
}

void Engine::check_usable(const Sequence& sequence) const {
  check(!sequence.is_closed, ErrorKind::kClosed, "the sequence is closed; open a new one");
  check(!sequence.is_busy, ErrorKind::kSequenceBusy,
        "an operation still runs on the sequence; wait for it or cancel it first");
}

std::shared_ptr<Sequence> Engine::open_sequence(int num_head, int num_reserved) {
  const int context = model_->config().context_length;
  check(num_head >= 0 && num_reserved >= 0, ErrorKind::kConfig,
        "num_head_tokens and num_reserved must be >= 0, got ", num_head, " and ", num_reserved);
  check(int64_t{num_head} + num_reserved < context, ErrorKind::kContextOverflow, "a head of ",
        num_head, " tokens and ", num_reserved, " reserved positions leave no room in the context of ",
        context, " tokens");
  const auto guard = lock();
  auto sequence = std::make_shared<Sequence>();
  sequence->kv.num_head = num_head;
  sequence->kv.num_reserved = num_reserved;
  cache_.open(&sequence->kv);
  ++num_sequences_;
  return sequence;
}

void Engine::close(const std::shared_ptr<Sequence>& sequence) {
  if (getpid() != process_id_) return;
  std::unique_lock<std::mutex> guard(mutex_);
  if (const auto operation = sequence->operation.lock(); operation && sequence->is_busy) {
    operation->cancel();
    // In a callback, or in what Python's collector found to free there, the worker is between two
    // steps: nobody else would end the operation.
    if (is_worker()) fail(operation, ErrorKind::kCancelled, "the sequence was closed");
  }
  idle_.wait(guard, [&] { return !sequence->is_busy; });
  if (sequence->is_closed) return;
  cache_.close(&sequence->kv);
  sequence->is_closed = true;
  --num_sequences_;
}

std::shared_ptr<Sequence> Engine::fork(const Sequence& sequence) {
  const auto guard = lock();
  check_usable(sequence);
  auto child = std::make_shared<Sequence>();
  child->tokens = sequence.tokens;
  child->held = sequence.held;
  cache_.open(&child->kv);
  cache_.fork(sequence.kv, &child->kv);
  ++num_sequences_;
  return child;
}

void Engine::truncate(Sequence* sequence, int num_tokens) {
  const auto guard = lock();
  check_usable(*sequence);
  const int size = static_cast<int>(sequence->tokens.size());
  check(num_tokens >= 0 && num_tokens <= size, ErrorKind::kConfig, "cannot truncate to ",
        num_tokens, " tokens; the sequence has ", size);
  check(sequence->kv.passages.empty() || num_tokens >= sequence->kv.num_head, ErrorKind::kConfig,
        "cannot truncate to ", num_tokens, " tokens, inside the head of ", sequence->kv.num_head,
        " tokens that the attached passages belong to; detach them first");
  if (num_tokens == size) return;
  sequence->tokens.resize(num_tokens);
  sequence->held = {};
  cache_.truncate(&sequence->kv, num_tokens);
}

std::shared_ptr<Checkpoint> Engine::checkpoint(const Sequence& sequence) {
  const auto guard = lock();
  check_usable(sequence);
  // The deleter gives the blocks back, whichever thread drops the last reference.
  const auto engine = shared_from_this();
  std::shared_ptr<Checkpoint> saved(new Checkpoint, [engine](Checkpoint* checkpoint) {
    if (getpid() == engine->process_id_) {
      std::lock_guard<std::mutex> guard(engine->mutex_);
      engine->cache_.close(&checkpoint->kv);
    }
    delete checkpoint;
  });
  saved->engine = this;
  saved->tokens = sequence.tokens;
  saved->held = sequence.held;
  cache_.open(&saved->kv);
  cache_.fork(sequence.kv, &saved->kv);
  return saved;
}

void Engine::rollback(Sequence* sequence, const Checkpoint& checkpoint) {
  const auto guard = lock();
  check_usable(*sequence);
  check(checkpoint.engine == this, ErrorKind::kConfig,
        "the checkpoint belongs to another engine; roll back with one taken from this engine");
  cache_.truncate(&sequence->kv, 0);
  cache_.fork(checkpoint.kv, &sequence->kv);
  sequence->tokens = checkpoint.tokens;
  sequence->held = checkpoint.held;
}

std::vector<TokenId> Engine::token_ids(const Sequence& sequence) {
  const auto guard = lock();
  return sequence.tokens;
}

int Engine::num_tokens(const Sequence& sequence) {
  const auto guard = lock();
  return static_cast<int>(sequence.tokens.size());
}

void Engine::check_token_ids(Span<const TokenId> ids) const {
  const int64_t vocab = model_->config().vocab_size;
  for (TokenId id : ids) {
    check(id >= 0 && id < vocab, ErrorKind::kConfig, "token id ", id,
          " is not in the vocabulary of ", vocab, " tokens");
  }
}

void Engine::validate(const Sequence& sequence, const OperationRequest& request) const {
  const int64_t vocab = model_->config().vocab_size;
  for (const std::vector<TokenId>* ids : {&request.token_ids, &request.proposal, &request.lookup}) {
    check_token_ids(*ids);
  }
  const int64_t context = model_->config().context_length - sequence.kv.num_reserved;
  const int64_t total = int64_t(sequence.tokens.size() + request.token_ids.size());
  const bool decodes = request.kind == OperationKind::kDecode;
  check(total + decodes <= context, ErrorKind::kContextOverflow, total, " tokens",
        decodes ? " and one more to decode" : "", " do not fit into the context of ", context,
        " tokens", sequence.kv.num_reserved > 0 ? " (reserved positions left out)" : "",
        "; shorten the prompt or the evidence");
  if (request.kind == OperationKind::kScore) {
    check(!sequence.tokens.empty(), ErrorKind::kConfig,
          "score() needs a token before the first scored one; extend the sequence first");
  }
  if (!decodes) return;
  check(total > 0, ErrorKind::kConfig,
        "decode() on an empty sequence; extend it with a prompt or the beginning-of-text token");
  check(request.decode.max_tokens >= 1, ErrorKind::kConfig, "max_tokens must be >= 1, got ",
        request.decode.max_tokens);
  request.decode.sampling.validate(vocab);
  // Written so that NaN is refused.
  check(request.decode.beta >= 0.0f && request.decode.beta <= 1.0f, ErrorKind::kConfig,
        "beta must be in [0, 1], got ", request.decode.beta);
  check(request.decode.stop_below >= 0.0f, ErrorKind::kConfig,
        "stop_below must be a probability, 0 to stop at no token or above 1 to stop at any, got ",
        request.decode.stop_below);
  for (const std::string& stop : request.decode.stop) {
    check(!stop.empty(), ErrorKind::kConfig, "an empty stop string would end every decode");
  }
}

std::shared_ptr<Operation> Engine::submit(const std::shared_ptr<Sequence>& sequence,
                                          OperationRequest request) {
  const auto guard = lock();
  check_usable(*sequence);
  validate(*sequence, request);
  return start(sequence, std::move(request));
}

std::shared_ptr<Operation> Engine::start(const std::shared_ptr<Sequence>& sequence,
                                         OperationRequest request) {
  auto operation = std::make_shared<Operation>(
      sequence, std::move(request), model_->vocabulary(),
      model_->config().context_length - sequence->kv.num_reserved);
  sequence->is_busy = true;
  sequence->operation = operation;
  running_.push_back(operation);
  wake_.notify_all();
  return operation;
}

void Engine::check_integrity() {
  const auto guard = lock();
  cache_.check_integrity();
}

EngineStats Engine::stats() {
  const auto guard = lock();
  const BlockPool& pool = cache_.pool();
  return {pool.num_blocks(),
          pool.num_held(),
          pool.num_cached(),
          static_cast<int64_t>(pool.block_size_bytes()),
          static_cast<int64_t>(weights_->size_bytes()),
          num_sequences_,
          num_steps_,
          num_rows_};
}

}  // namespace flarecore
