// The engine: sequences over one KV cache, and one worker that runs their operations.
//
// Every forward pass merges the next step of all running operations (continuous batching), within
// max_batch_tokens rows. One lock guards sequences, cache and queue; it is not held while the model
// computes. An operation owns its sequence until it is done; a second one is refused.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/operation.h"
#include "model/model.h"

namespace flarecore {

struct EngineOptions {
  int64_t kv_cache_bytes = 0;  // 0: four full contexts, at most a quarter of the machine's memory
  ComputeMode compute = ComputeMode::kInt8;
  std::optional<KvFormat> kv_format;  // none: float32 for kFloat32, else what the CPU level prefers
  SamplerKind sampler = SamplerKind::kFused;
  int max_batch_tokens = 256;  // rows of one forward pass
  bool preallocate = false;    // take the memory of the KV cache at once
};

struct EngineStats {
  int num_blocks, num_held_blocks, num_cached_blocks;  // free ones are the rest
  int64_t block_size_bytes, weights_size_bytes;
  int num_sequences;
  int64_t num_steps, num_rows;  // forward passes, and rows fed by them, since the start
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  static std::shared_ptr<Engine> create(std::shared_ptr<Model> model, const EngineOptions& options);
  ~Engine();

  // Stops the worker; running operations fail, and later calls raise, with ClosedError.
  void shutdown();

  // Keeps num_reserved positions free behind the first num_head tokens, for attached passages.
  std::shared_ptr<Sequence> open_sequence(int num_head, int num_reserved);
  void close(const std::shared_ptr<Sequence>& sequence);  // cancels its operation first
  std::shared_ptr<Sequence> fork(const Sequence& sequence);
  void truncate(Sequence* sequence, int num_tokens);
  std::shared_ptr<Checkpoint> checkpoint(const Sequence& sequence);
  void rollback(Sequence* sequence, const Checkpoint& checkpoint);
  // Lets the tokens from the index sees_from on see these passages and no others. Those that were
  // computed already are computed again by the next operation.
  void attach(Sequence* sequence, const Passages& passages, int sees_from);
  std::vector<TokenId> token_ids(const Sequence& sequence);
  int num_tokens(const Sequence& sequence);
  std::pair<int, int> num_head_and_reserved(const Sequence& sequence);

  // Validates everything first: a refused request changes nothing.
  std::shared_ptr<Operation> submit(const std::shared_ptr<Sequence>& sequence,
                                    OperationRequest request);

  // Starts the encoding of a passage behind the head of a sequence, which is not changed. Nobody
  // needs to keep the sequence open for it.
  std::shared_ptr<Operation> encode(const Sequence& sequence, OperationRequest request);
  // A passage that was encoded by such an engine before; its blocks lie at `data`.
  std::shared_ptr<const PassageKv> load_passage(std::vector<TokenId> head,
                                                std::vector<TokenId> tokens,
                                                std::shared_ptr<const void> owner,
                                                Span<const uint8_t> data);

  void check_integrity();
  EngineStats stats();
  const Model& model() const { return *model_; }
  KvFormat kv_format() const { return cache_.layout().format; }

 private:
  Engine(std::shared_ptr<Model> model, const EngineOptions& options);

  bool is_worker() const { return worker_id_ == std::this_thread::get_id(); }
  std::unique_lock<std::mutex> lock();  // raises after fork() and after shutdown()
  void check_usable(const Sequence& sequence) const;
  void validate(const Sequence& sequence, const OperationRequest& request) const;
  void check_token_ids(Span<const TokenId> ids) const;
  std::shared_ptr<Operation> start(const std::shared_ptr<Sequence>& sequence,
                                   OperationRequest request);
  void run();
  void plan_step();
  void forward_step();
  void commit_step();
  void finish(const std::shared_ptr<Operation>& operation);
  void fail(const std::shared_ptr<Operation>& operation, ErrorKind kind, const std::string& message);

  struct StepError {
    bool has_failed = false;
    ErrorKind kind = ErrorKind::kInternal;
    std::string message;
  };

  std::shared_ptr<Model> model_;
  EngineOptions options_;
  ThreadPool threads_;
  std::shared_ptr<const DecoderWeights> weights_;
  KvCache cache_;
  Decoder decoder_;
  Sampler sampler_;
  int process_id_;

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::thread worker_;
  std::thread::id worker_id_;  // stays when the thread is retired
  std::shared_ptr<std::atomic<bool>> worker_ended_ = std::make_shared<std::atomic<bool>>(false);
  bool is_stopping_ = false;
  int num_sequences_ = 0;
  int64_t num_steps_ = 0, num_rows_ = 0;
  std::list<std::shared_ptr<Operation>> running_;      // begun or about to
  std::vector<std::shared_ptr<Operation>> completed_;  // to be notified without the lock

  // The step in progress; the worker's own.
  std::vector<std::shared_ptr<Operation>> step_operations_;
  std::vector<ForwardSegment> step_segments_;
  std::vector<StepError> step_errors_;
};

}  // namespace flarecore
