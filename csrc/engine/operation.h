// One unit of work on a sequence: extend, decode (after an optional extend), score, or encode a
// passage on a sequence of its own.
//
// The engine's worker drives it step by step (plan, consume, commit) and completes it; any thread may
// wait for it or cancel it. The sequence's tokens change only when the operation succeeds.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/check.h"
#include "engine/decode_state.h"
#include "engine/proposer.h"
#include "engine/sequence.h"
#include "model/decoder.h"

namespace flarecore {

enum class OperationKind { kExtend, kDecode, kScore, kEncode };

struct OperationRequest {
  OperationKind kind = OperationKind::kExtend;
  std::vector<TokenId> token_ids;  // appended first (extend, decode), scored or encoded
  std::vector<TokenId> proposal;   // decode: guessed continuation, verified in the same forwards
  std::vector<TokenId> lookup;     // decode: text whose wording may recur, for further guesses
  DecodeOptions decode;
  std::optional<double> deadline_ms;  // from submission
};

struct OperationStats {
  int num_reused = 0;     // positions whose KV was there when the operation began
  int num_prefilled = 0;  // rows fed for given tokens
  int num_decoded = 0;    // tokens sampled, looked-ahead ones among them
  int num_proposed = 0;   // proposal rows fed
  int num_accepted = 0;   // proposal rows that were right
  int num_steps = 0;      // forward passes
  double time_ms = 0.0;   // from the first step to the end
};

struct OperationResult {
  std::vector<TokenId> token_ids;  // decode: the kept tokens; score: the given ones
  std::vector<float> probs;        // their confidences
  std::vector<uint8_t> mask;       // confidence < beta
  float min_prob = 1.0f;
  float end_of_text_prob = -1.0f;  // confidence of the end-of-text token, -1 if none was sampled
  std::string text;                // bytes of the kept tokens, a stop string cut off
  std::shared_ptr<const PassageKv> passage;  // encode: the token_ids of the request
  StopReason stop_reason = StopReason::kNone;
  OperationStats stats;
};

class Operation {
 public:
  Operation(std::shared_ptr<Sequence> sequence, OperationRequest request,
            const Vocabulary& vocabulary, int context_length);

  // --- any thread; in a forked child, which has no worker, one that was not done never is: the
  // calls that wait raise UnsupportedError ---
  bool is_done() const;
  void cancel() { is_cancelled_ = true; }
  bool wait_for(double timeout_ms) const;  // true when done
  const OperationResult& result() const;   // raises the operation's error; requires is_done()
  void on_done(std::function<void()> callback);  // at once if done already

  // --- the engine's worker; cache calls under the engine's lock ---
  const std::shared_ptr<Sequence>& sequence() const { return sequence_; }
  // Raises CancelledError or DeadlineExceeded.
  void check_limits() const;
  bool has_begun() const { return has_begun_; }
  // Whether its next step samples: all given tokens before the last one are computed.
  bool decodes_next() const;
  // First step: takes cached prefixes and held tokens. True if that already finished it.
  bool begin(KvCache* cache);
  // Rows of the next step, at most max_rows (>= 1), with blocks reserved. Raises OutOfBlocksError.
  ForwardSegment plan(KvCache* cache, int max_rows);
  // Logits of one planned row. False: later rows of this step are void.
  bool consume(int row, const LogitsRow& logits, Sampler* sampler);
  // Books the step. True when the operation is finished.
  bool commit(KvCache* cache);
  // Applies the result to the sequence, or takes everything back, and wakes who waits.
  void succeed(KvCache* cache);
  void fail(KvCache* cache, ErrorKind kind, const std::string& message);
  void notify();  // wakes waiters and runs callbacks; without the engine's lock

 private:
  bool is_in_forked_child() const { return getpid() != process_id_; }
  void check_not_lost() const;
  bool replay_held();
  bool take(const Sampled& sampled);
  void fill_decoded();

  std::shared_ptr<Sequence> sequence_;
  OperationRequest request_;
  int context_length_;
  std::vector<TokenId> tokens_;  // the sequence's as they will be
  int start_tokens_ = 0;         // sequence length at the beginning
  int start_computed_ = 0;
  bool has_begun_ = false;
  int decode_start_ = 0;  // tokens before the first sampled one
  std::optional<DecodeState> state_;
  Proposer proposer_;
  std::chrono::steady_clock::time_point submitted_, begun_;

  // The step in progress.
  std::vector<TokenId> step_tokens_;
  int step_place_ = 0, step_rows_ = 0, step_logits_begin_ = 0, step_valid_rows_ = 0;
  int step_proposed_ = 0, step_accepted_ = 0;

  OperationResult result_;
  bool has_failed_ = false;
  ErrorKind error_kind_ = ErrorKind::kInternal;
  std::string error_message_;
  std::atomic<bool> is_cancelled_{false};
  const pid_t process_id_ = getpid();
  mutable std::mutex mutex_;
  mutable std::condition_variable done_signal_;
  bool is_done_ = false;
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace flarecore
