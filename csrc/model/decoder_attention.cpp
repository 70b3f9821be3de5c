// The attention part of the decoder: rotary embedding, KV store, splits and their join.
#include <algorithm>
#include <cmath>

#include "cpu/cpu_isa.h"
#include "kv_cache/kv_slots.h"
#include "model/decoder_workspace.h"

namespace flarecore {
namespace {

// One head's part of a bias, null where the model has none.
const float* bias_of(const std::vector<float>& bias, int head, int head_dim) {
  return bias.empty() ? nullptr : bias.data() + size_t(head) * head_dim;
}

}  // namespace

// What is left of a query or key head after its product: bias, norm, rotation.
void Decoder::rotate_head(float* head, const float* bias, const std::vector<float>& norm,
                          int rotary, int row) const {
  if (bias != nullptr) kernels().add(bias, config_.head_dim, head);
  if (!norm.empty()) {
    kernels().rmsnorm(head, norm.data(), config_.norm_eps, config_.head_dim, head);
  }
  const int half = config_.rotary_dim / 2;
  const size_t offset = (size_t(row) * config_.rotaries.size() + rotary) * half;
  const auto rotate = config_.rotates_neighbours ? kernels().rotate_neighbours
                                                  : kernels().rotate_halves;
  rotate(head, ws_->cosine.data() + offset, ws_->sine.data() + offset, half);
}

void Decoder::rotate_and_store(const LayerWeights& weights, int layer,
                               Span<const ForwardSegment> segments, int row) {
  const int head_dim = config_.head_dim, rotary = config_.layers[layer].rotary;
  float* query = ws_->query.data() + size_t(row) * config_.query_size();
  for (int h = 0; h < config_.num_heads; ++h) {
    rotate_head(query + h * head_dim, bias_of(weights.q_bias, h, head_dim), weights.q_norm, rotary,
                row);
  }
  for (int h = 0; h < config_.num_kv_heads; ++h) store_kv(weights, layer, segments, row, h);
}

// Makes the key of one head ready and stores it with its value. Once a row: the products get their
// biases in place.
void Decoder::store_kv(const LayerWeights& weights, int layer, Span<const ForwardSegment> segments,
                       int row, int kv_head) {
  const auto& r = ws_->rows[row];
  const int head_dim = config_.head_dim;
  const BlockId block = segments[r.segment].blocks[r.place / kBlockTokens];
  const int slot = r.place % kBlockTokens;
  const size_t offset = size_t(row) * config_.kv_size() + size_t(kv_head) * head_dim;
  float* key = ws_->key.data() + offset;
  float* value = ws_->value.data() + offset;
  rotate_head(key, bias_of(weights.k_bias, kv_head, head_dim), weights.k_norm,
              config_.layers[layer].rotary, row);
  if (const float* bias = bias_of(weights.v_bias, kv_head, head_dim)) {
    kernels().add(bias, head_dim, value);
  }
  uint8_t* k_block = blocks_->data(block) + layout_.k_offset(layer, kv_head);
  uint8_t* v_block = blocks_->data(block) + layout_.v_offset(layer, kv_head);
  store_key(layout_, kernels(), key, slot, k_block);
  store_value(layout_, kernels(), value, slot, v_block);
}

// What comes before attention, for one tile and KV head: queries rotated into a place of the task's
// own, since tasks of other splits rotate them too; keys and values of the rows that lie in the
// tile's blocks, which no other task reads.
void Decoder::prepare_task(const LayerWeights& weights, int layer, const AttentionTile& tile,
                           Span<const ForwardSegment> segments, int kv_head, float* query) {
  const int head_dim = config_.head_dim, group = config_.num_group_heads();
  for (int i = 0; i < tile.num_rows; ++i, query += group * head_dim) {
    const int row = tile.row_begin + i;
    const float* from = ws_->query.data() + size_t(row) * config_.query_size() +
                        size_t(kv_head) * group * head_dim;
    std::copy(from, from + group * head_dim, query);
    for (int h = 0; h < group; ++h) {
      rotate_head(query + h * head_dim, bias_of(weights.q_bias, kv_head * group + h, head_dim),
                  weights.q_norm, config_.layers[layer].rotary, row);
    }
    const int block = ws_->rows[row].place / kBlockTokens;
    if (tile.passage == kOwnBlocks && block >= tile.block_begin && block < tile.block_end) {
      store_kv(weights, layer, segments, row, kv_head);
    }
  }
}

Span<const uint8_t> Decoder::AttentionRead::first_bytes(int thread) const {
  const int num_heads = decoder_.config_.num_kv_heads;
  const int64_t num_tasks = plan_.num_tasks(num_heads);
  const int64_t task = ThreadPool::share_begin(num_tasks, thread, decoder_.threads_->num_threads());
  if (task >= num_tasks) return {};
  const AttentionTile& tile = plan_.tiles[task / num_heads];
  const uint8_t* block = decoder_.block_of(tile, segments_[tile.segment], tile.block_end - 1);
  return {block + decoder_.layout_.k_offset(layer_, static_cast<int>(task % num_heads)),
          decoder_.layout_.head_size_bytes()};
}

const uint8_t* Decoder::block_of(const AttentionTile& tile, const ForwardSegment& segment,
                                 int block) const {
  return tile.passage == kOwnBlocks ? blocks_->data(segment.blocks[block])
                                    : segment.passages[tile.passage]->block(block);
}

// What the thread reads after this task: the next task's first blocks, after its last one what the
// `next` run begins with.
void Decoder::find_ahead(int layer, const AttentionPlan& plan, Span<const ForwardSegment> segments,
                         int64_t task, int thread, const NextRead& next, AttentionArgs* args) {
  const int64_t share_end = ThreadPool::share_begin(
      plan.num_tasks(config_.num_kv_heads), thread + 1, threads_->num_threads());
  const int64_t piece = static_cast<int64_t>(layout_.head_size_bytes());
  constexpr int kPieces = 2 * kAttentionBlocksAhead;
  if (task + 1 < share_end) {
    const AttentionTile& tile = plan.tiles[(task + 1) / config_.num_kv_heads];
    const int kv_head = static_cast<int>((task + 1) % config_.num_kv_heads);
    for (int i = 0; i < kAttentionBlocksAhead && tile.block_begin + i < tile.block_end; ++i) {
      const uint8_t* block = block_of(tile, segments[tile.segment], tile.block_begin + i);
      args->ahead[2 * i] = block + layout_.k_offset(layer, kv_head);
      args->ahead[2 * i + 1] = block + layout_.v_offset(layer, kv_head);
    }
  } else if (task + 1 == share_end) {
    const Span<const uint8_t> bytes = read_while_waiting(next, thread, kPieces * piece, threads_);
    for (int i = 0; i < kPieces && (i + 1) * piece <= static_cast<int64_t>(bytes.size()); ++i) {
      args->ahead[i] = bytes.data() + i * piece;
    }
  }
}

// What a row sees of a tile's passage or sequence.
Decoder::VisibleRange Decoder::visible(const AttentionTile& tile, int window,
                                       const ForwardSegment& segment, int row) const {
  const auto& r = ws_->rows[row];
  const int first_position = window == 0 ? 0 : r.position + 1 - window;
  if (tile.passage == kOwnBlocks) return {segment.first_place(first_position), r.place + 1};
  if (r.place < segment.sees_from) return {0, 0};
  return {first_position - segment.num_head, segment.passages[tile.passage]->num_tokens()};
}

// Whether the tile's blocks of the sequence lie before what its rows attend to without tiles.
bool Decoder::is_before(const AttentionTile& tile) const {
  return tile.passage == kOwnBlocks &&
         tile.block_end <= ws_->near_block(ws_->rows[tile.row_begin].place);
}

void Decoder::attend(const LayerWeights& weights, int layer, const AttentionPlan& plan,
                     Span<const ForwardSegment> segments, int64_t task, int thread,
                     const NextRead& next) {
  const int kv_head = static_cast<int>(task % config_.num_kv_heads);
  const int64_t tile_index = task / config_.num_kv_heads;
  const AttentionTile& tile = plan.tiles[tile_index];
  const int group = config_.num_group_heads();
  const ForwardSegment& segment = segments[tile.segment];
  const int num_blocks = tile.block_end - tile.block_begin;
  const void* k_blocks[kSplitBlocks];
  const void* v_blocks[kSplitBlocks];
  for (int i = 0; i < num_blocks; ++i) {
    const uint8_t* base = block_of(tile, segment, tile.block_begin + i);
    k_blocks[i] = base + layout_.k_offset(layer, kv_head);
    v_blocks[i] = base + layout_.v_offset(layer, kv_head);
  }
  int32_t first_visible[kMaxAttentionRows], end_visible[kMaxAttentionRows];
  const int split_begin = tile.block_begin * kBlockTokens, split_size = num_blocks * kBlockTokens;
  for (int i = 0; i < tile.num_rows; ++i) {
    const VisibleRange range = visible(tile, plan.window, segment, tile.row_begin + i);
    first_visible[i] = std::clamp(range.first - split_begin, 0, split_size);
    end_visible[i] = std::clamp(range.end - split_begin, 0, split_size);
  }
  const size_t cell = Workspace::cell_of(config_, tile, kv_head);
  AttentionArgs args;
  if (ws_->prepares_in_tasks) {
    float* query = ws_->task_query.data() + cell * config_.head_dim;
    prepare_task(weights, layer, tile, segments, kv_head, query);
    args.q = query;
    args.q_row_stride = int64_t{group} * config_.head_dim;
  } else {
    args.q = ws_->query.data() + size_t(tile.row_begin) * config_.query_size() +
             size_t(kv_head) * group * config_.head_dim;
    args.q_row_stride = config_.query_size();
  }
  args.num_rows = tile.num_rows;
  args.num_group_heads = group;
  args.head_dim = config_.head_dim;
  args.scale = config_.attention_scale;
  args.kv_format = layout_.format;
  args.in_tiles = ws_->has_tiles && is_before(tile);
  if (args.in_tiles) {
    args.scratch = ws_->attention_scratch.data() + thread * kernels().attention_scratch_bytes;
  }
  args.k_blocks = k_blocks;
  args.v_blocks = v_blocks;
  args.block_begin = 0;
  args.block_end = num_blocks;
  args.first_visible = first_visible;
  args.end_visible = end_visible;
  args.out = ws_->partial_out.data() + cell * config_.head_dim;
  args.row_max = ws_->partial_max.data() + cell;
  args.row_sum = ws_->partial_sum.data() + cell;
  find_ahead(layer, plan, segments, task, thread, next, &args);
  kernels().attention(args);
}

// softmax over all splits: weights exp(max_s - max) bring the splits' sums to one scale.
void Decoder::join_splits(const AttentionPlan& plan, int row) {
  const int group = config_.num_group_heads(), head_dim = config_.head_dim;
  float* out = ws_->input.row(row);
  for (int h = 0; h < config_.num_heads; ++h) {
    const auto cell_of = [&](int t) {
      const AttentionTile& tile = plan.tiles[t];
      return Workspace::cell_of(config_, tile, h / group) +
             size_t(row - tile.row_begin) * group + h % group;
    };
    float max = -INFINITY;
    for (int t = plan.first_tile[row]; t < plan.end_tile[row]; ++t) {
      max = std::max(max, ws_->partial_max[cell_of(t)]);
    }
    float sum = 0.0f;
    float* head_out = out + h * head_dim;
    std::fill(head_out, head_out + head_dim, 0.0f);
    for (int t = plan.first_tile[row]; t < plan.end_tile[row]; ++t) {
      const size_t cell = cell_of(t);
      if (ws_->partial_max[cell] == -INFINITY) continue;
      const float weight = std::exp(ws_->partial_max[cell] - max);
      const float* part = ws_->partial_out.data() + cell * head_dim;
      sum += weight * ws_->partial_sum[cell];
      for (int d = 0; d < head_dim; ++d) head_out[d] += weight * part[d];
    }
    const float inverse = 1.0f / sum;
    for (int d = 0; d < head_dim; ++d) head_out[d] *= inverse;
  }
}

}  // namespace flarecore
