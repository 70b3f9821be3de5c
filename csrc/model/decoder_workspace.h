// Buffers of one forward pass and its plan of rows and attention tiles. Internal to the decoder.
#pragma once

#include "model/decoder.h"
#include "model/linear.h"

namespace flarecore {

// Context of a row is walked in splits of this many blocks, counted from the start of the passage
// or of the sequence that they belong to.
constexpr int kSplitBlocks = 16;

// The split of a passage's or sequence's token.
constexpr int split_of(int token) { return token / (kSplitBlocks * kBlockTokens); }

// A row's own split is cut once more where tile products are taken: at the last multiple of this
// many blocks before the row.
constexpr int kNearBlocks = 4;

constexpr int kOwnBlocks = -1;

// Up to kMaxAttentionRows rows of one segment with the same near_block(), against one split of the
// context or a part of their own.
struct Decoder::AttentionTile {
  int segment;
  int row_begin, num_rows;      // rows of the forward
  int passage;                  // whose blocks: an attached passage's, or kOwnBlocks
  int block_begin, block_end;
  int64_t rows_before;          // of the tiles before this one, together
};

// Tokens [first, end) of a tile's passage or sequence.
struct Decoder::VisibleRange {
  int first, end;
};

// The tiles of one forward pass for layers with one window size.
struct Decoder::AttentionPlan {
  int window = 0;                // 0: every layer that sees all positions
  std::vector<AttentionTile> tiles;
  std::vector<int> first_tile;   // (num_rows) the splits of row r are the tiles
  std::vector<int> end_tile;     // (num_rows) [first_tile[r], end_tile[r]), ascending

  // Task t is KV head t % num_kv_heads of tile t / num_kv_heads.
  int64_t num_tasks(int num_kv_heads) const { return int64_t(tiles.size()) * num_kv_heads; }
  int64_t num_rows() const {  // of all tiles
    return tiles.empty() ? 0 : tiles.back().rows_before + tiles.back().num_rows;
  }
};

// Where attention of one layer begins to read: the last block of a thread's first task, which the
// task writes to first.
class Decoder::AttentionRead final : public NextRead {
 public:
  AttentionRead(const Decoder& decoder, int layer, const AttentionPlan& plan,
                Span<const ForwardSegment> segments)
      : decoder_(decoder), layer_(layer), plan_(plan), segments_(segments) {}
  Span<const uint8_t> first_bytes(int thread) const override;

 private:
  const Decoder& decoder_;
  int layer_;
  const AttentionPlan& plan_;
  Span<const ForwardSegment> segments_;
};

struct Decoder::Workspace {
  struct Row {
    int segment;
    int index;     // in the segment's tokens
    int place;     // in the sequence
    int position;  // for rotation and windows
  };

  std::vector<Row> rows;
  std::vector<AttentionPlan> plans;

  std::vector<float> residual;             // (rows, hidden)
  std::vector<float> delta;                // (rows, hidden) what a block adds to the residual
  std::vector<float> query, key, value;    // (rows, query_size), (rows, kv_size) twice
  std::vector<float> gate, up;             // (rows, ffn)
  std::vector<float> cosine, sine;         // (rows, rotaries, rotary_dim / 2)
  ActivationRows input;                    // input of the next product
  ActivationRows gated;                    // (rows, ffn) input of the last one, if fused
  bool adds_later = true;                  // attention's output waits in delta
  bool has_tiles = false;                  // attention over float16 blocks by tile products
  bool prepares_in_tasks = false;          // attention's tasks rotate and store before they attend
  bool fused = false;                      // of this pass: gate and up are never in memory
  std::vector<float> task_query;           // as partial_out, if prepares_in_tasks
  AlignedBuffer attention_scratch;         // (threads, attention_scratch_bytes) once it is needed
  // What a tile's tasks leave, for each tile (kv heads, its rows, group): see cell_of().
  std::vector<float> partial_out;               // (cells, head_dim)
  std::vector<float> partial_max, partial_sum;  // (cells)
  std::vector<float> logits;               // (kHeadRows, vocab)
  std::vector<LogitStats> stats;           // (kHeadRows, runs)

  float* hidden(int row) { return residual.data() + size_t(row) * hidden_size_; }
  const AttentionPlan& plan_of(int window) const {
    size_t i = 0;
    while (plans[i].window != window) ++i;
    return plans[i];
  }
  LogitsRow logits_row(const DecoderConfig& config, size_t i) const {
    const size_t vocab = config.vocab_size, runs = num_logit_runs(config.vocab_size);
    return {{logits.data() + i * vocab, vocab}, {stats.data() + i * runs, runs}};
  }

  // The first block of a row's sequence that it attends to without tiles. Many rows gain by tile
  // products what single ones lose by them, so contexts of few tokens and passages, which single
  // rows read mostly, go without.
  int near_block(int place) const {
    const int step = has_tiles ? kNearBlocks : kSplitBlocks;
    return place / kBlockTokens / step * step;
  }

  // Where the results of one KV head of a tile begin, by rows and heads of the group.
  static size_t cell_of(const DecoderConfig& config, const AttentionTile& tile, int kv_head) {
    return size_t(tile.rows_before * config.num_kv_heads + int64_t{kv_head} * tile.num_rows) *
           config.num_group_heads();
  }

  void resize(const DecoderConfig& config, bool can_fuse_rows, bool can_fuse_blocks);
  void plan_attention(const DecoderConfig& config, Span<const ForwardSegment> segments);
  void fill_rotation(const DecoderConfig& config, int row, int position);

 private:
  void plan_tiles(AttentionPlan* plan, Span<const ForwardSegment> segments);

  int hidden_size_ = 0;
};

}  // namespace flarecore
