// Forward pass of a decoder (Llama, Qwen 2 and 3, Gemma 3) over rows of any number of sequences.
//
// Bit-identity (design, guarantee 1): every row's result depends on its own tokens, positions and
// passages only. Matrix products and norms work row by row in a fixed order; attention walks the KV
// blocks of a row, first those of each attached passage in the order of the passages, then those of
// its sequence, in splits of kSplitBlocks from each one's start, its own one in two parts where tile
// products are taken (kNearBlocks), and joins them in that order.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/span.h"
#include "kv_cache/block_pool.h"
#include "kv_cache/passage_kv.h"
#include "model/decoder_weights.h"
#include "model/linear.h"
#include "sampling/sampler.h"

namespace flarecore {

// Consecutive rows of one sequence: feed `tokens` into its places place_begin, place_begin + 1, …
// A place is an index into the sequence. Its position is the same before num_head, and larger by
// num_reserved from there on.
struct ForwardSegment {
  Span<const TokenId> tokens;
  int place_begin = 0;
  Span<const BlockId> blocks;       // of the sequence, covering all its rows' places
  int num_head = 0, num_reserved = 0;
  Span<const std::shared_ptr<const PassageKv>> passages;  // each at position num_head
  int sees_from = 0;                // rows at places from here on see them; >= num_head
  int logits_begin = 0;             // rows [logits_begin, tokens.size()) yield logits
  float inverse_temperature = 1.0f;  // for the scaled sums of the logit statistics

  int position(int place) const { return place < num_head ? place : place + num_reserved; }
  // The first place with a position of at least `position`.
  int first_place(int position) const {
    if (position <= num_head) return position < 0 ? 0 : position;
    return position - num_reserved < num_head ? num_head : position - num_reserved;
  }
};

// Gets the logits of row `row` (index into the segment's tokens), in ascending order per segment.
// Returns false if the segment's later rows are not wanted any more.
using LogitsConsumer = std::function<bool(int segment, int row, const LogitsRow& logits)>;

class Decoder {
 public:
  Decoder(const DecoderConfig& config, std::shared_ptr<const DecoderWeights> weights,
          const KvLayout& layout, const BlockPool* blocks, ThreadPool* threads);
  ~Decoder();

  // Writes K and V of all rows into the segments' blocks and hands out the logits asked for.
  void forward(Span<const ForwardSegment> segments, const LogitsConsumer& consume);

 private:
  struct Workspace;
  struct AttentionTile;
  struct VisibleRange;
  struct AttentionPlan;
  class AttentionRead;

  void plan(Span<const ForwardSegment> segments);
  void embed(Span<const ForwardSegment> segments);
  void attention_block(const LayerWeights& layer, int index, Span<const ForwardSegment> segments);
  void ffn_block(const LayerWeights& layer, int index);
  TileRun run_after(int index) const;
  TileRun gate_and_up_run(const LayerWeights& layer) const;
  void gate_and_up(const LayerWeights& layer,
                   void (*activate)(const float*, const float*, int64_t, float*));
  void rotate_head(float* head, const float* bias, const std::vector<float>& norm, int rotary,
                   int row) const;
  void keep_wanted_rows(Span<const ForwardSegment> segments);
  void rotate_and_store(const LayerWeights& weights, int layer,
                        Span<const ForwardSegment> segments, int row);
  void store_kv(const LayerWeights& weights, int layer, Span<const ForwardSegment> segments,
                int row, int kv_head);
  void prepare_task(const LayerWeights& weights, int layer, const AttentionTile& tile,
                    Span<const ForwardSegment> segments, int kv_head, float* query);
  const uint8_t* block_of(const AttentionTile& tile, const ForwardSegment& segment,
                          int block) const;
  bool is_before(const AttentionTile& tile) const;
  VisibleRange visible(const AttentionTile& tile, int window, const ForwardSegment& segment,
                       int row) const;
  void attend(const LayerWeights& weights, int layer, const AttentionPlan& plan,
              Span<const ForwardSegment> segments, int64_t task, int thread, const NextRead& next);
  void find_ahead(int layer, const AttentionPlan& plan, Span<const ForwardSegment> segments,
                  int64_t task, int thread, const NextRead& next, AttentionArgs* args);
  void join_splits(const AttentionPlan& plan, int row);
  void add_to_residual(int row, const std::vector<float>& bias,
                       const std::vector<float>& post_norm);
  LinearTarget residual_target(const PackedMatrix& matrix, const ActivationRows& input,
                               const std::vector<float>& bias,
                               const std::vector<float>& post_norm);
  void head(Span<const ForwardSegment> segments, const LogitsConsumer& consume);
  void head_rows(Span<const ForwardSegment> segments, Span<const int> rows);

  // Row work of a few rows costs less than waking the other threads.
  template <typename F>
  void for_rows(F&& body);
  // The same in what the next product's input is quantised in: body(first row, number of rows).
  template <typename F>
  void for_blocks(F&& body);

  DecoderConfig config_;
  std::shared_ptr<const DecoderWeights> weights_;
  bool can_fuse_rows_, can_fuse_blocks_;  // gate and up in one pass: of few rows, of many
  KvLayout layout_;
  const BlockPool* blocks_;
  ThreadPool* threads_;
  std::unique_ptr<Workspace> ws_;
};

// Passes so far whose attention tasks rotated and stored for themselves; for tests.
int64_t num_prepared_passes();
// Rows that were not worked on any further once their last keys and values were stored; for tests.
int64_t num_dropped_rows();

}  // namespace flarecore
