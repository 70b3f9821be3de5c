#include "model/decoder_workspace.h"

#include <algorithm>
#include <atomic>
#include <cmath>

namespace flarecore {
namespace {

std::atomic<int64_t> prepared_passes{0};

void grow(std::vector<float>* buffer, size_t size) {
  if (buffer->size() < size) buffer->resize(size);
}

}  // namespace

int64_t num_prepared_passes() { return prepared_passes.load(std::memory_order_relaxed); }

void Decoder::Workspace::resize(const DecoderConfig& config, bool can_fuse_rows,
                                bool can_fuse_blocks) {
  const size_t num_rows = rows.size();
  const bool is_many = num_rows >= size_t{kManyRows};
  hidden_size_ = config.hidden_size;
  grow(&residual, num_rows * config.hidden_size);
  grow(&delta, num_rows * config.hidden_size);
  grow(&query, num_rows * config.query_size());
  grow(&key, num_rows * config.kv_size());
  grow(&value, num_rows * config.kv_size());
  input.set_blocked(is_many);
  gated.set_blocked(is_many);
  fused = is_many ? can_fuse_blocks : can_fuse_rows;
  int64_t widest = std::max(config.hidden_size, config.query_size());
  if (fused) {
    gated.resize(num_rows, config.intermediate_size);
  } else {
    grow(&gate, num_rows * config.intermediate_size);
    grow(&up, num_rows * config.intermediate_size);
    widest = std::max<int64_t>(widest, config.intermediate_size);
  }
  const size_t angles = num_rows * config.rotaries.size() * (config.rotary_dim / 2);
  grow(&cosine, angles);
  grow(&sine, angles);
  // The head's input reuses these rows, so there are always enough for it.
  input.resize(std::max<int64_t>(num_rows, 8), widest);
}

void Decoder::Workspace::plan_attention(const DecoderConfig& config,
                                        Span<const ForwardSegment> segments) {
  // A task may read what it stores itself, not what another one stores in the same run: so all rows
  // of a segment have to share their tiles.
  prepares_in_tasks = std::all_of(segments.begin(), segments.end(), [this](const auto& segment) {
    const int num_rows = static_cast<int>(segment.tokens.size()), begin = segment.place_begin;
    return num_rows == 0 || (num_rows <= kMaxAttentionRows &&
                             near_block(begin) == near_block(begin + num_rows - 1));
  });
  if (prepares_in_tasks) prepared_passes.fetch_add(1, std::memory_order_relaxed);
  plans.clear();
  for (const LayerConfig& layer : config.layers) {
    const auto known = std::find_if(plans.begin(), plans.end(), [&](const AttentionPlan& plan) {
      return plan.window == layer.window;
    });
    if (known != plans.end()) continue;
    plans.emplace_back();
    plans.back().window = layer.window;
    plan_tiles(&plans.back(), segments);
  }
  int64_t num_rows = 0;
  for (const AttentionPlan& plan : plans) num_rows = std::max(num_rows, plan.num_rows());
  const size_t cells = size_t(num_rows) * config.num_heads;
  grow(&partial_out, cells * config.head_dim);
  if (prepares_in_tasks) grow(&task_query, cells * config.head_dim);
  grow(&partial_max, cells);
  grow(&partial_sum, cells);
}

void Decoder::Workspace::plan_tiles(AttentionPlan* plan, Span<const ForwardSegment> segments) {
  const int total = static_cast<int>(rows.size());
  plan->first_tile.assign(total, 0);
  plan->end_tile.assign(total, 0);
  for (int row = 0, end = 0; row < total; row = end) {
    while (end < total && end - row < kMaxAttentionRows && rows[end].segment == rows[row].segment &&
           near_block(rows[end].place) == near_block(rows[row].place)) {
      ++end;
    }
    const ForwardSegment& segment = segments[rows[row].segment];
    const int first = static_cast<int>(plan->tiles.size());
    const int first_position = plan->window == 0 ? 0 : rows[row].position + 1 - plan->window;
    const auto add = [&](int passage, int block_begin, int block_end) {
      plan->tiles.push_back({rows[row].segment, row, end - row, passage, block_begin, block_end,
                             plan->num_rows()});
    };
    // Splits that no row sees are left out; the others begin where they always begin.
    const auto add_splits = [&](int passage, int first_token, int num_blocks, int cut) {
      const int first_split = split_of(first_token) * kSplitBlocks;
      for (int block = first_split; block < num_blocks; block += kSplitBlocks) {
        const int block_end = std::min(block + kSplitBlocks, num_blocks);
        if (block < cut && cut < block_end) {
          add(passage, block, cut);
          add(passage, cut, block_end);
        } else {
          add(passage, block, block_end);
        }
      }
    };
    if (rows[end - 1].place >= segment.sees_from) {
      for (size_t i = 0; i < segment.passages.size(); ++i) {
        add_splits(static_cast<int>(i), std::max(0, first_position - segment.num_head),
                   segment.passages[i]->num_blocks(), 0);
      }
    }
    add_splits(kOwnBlocks, segment.first_place(first_position),
               rows[end - 1].place / kBlockTokens + 1, near_block(rows[row].place));
    std::fill(plan->first_tile.begin() + row, plan->first_tile.begin() + end, first);
    std::fill(plan->end_tile.begin() + row, plan->end_tile.begin() + end,
              static_cast<int>(plan->tiles.size()));
  }
}

void Decoder::Workspace::fill_rotation(const DecoderConfig& config, int row, int position) {
  const size_t half = config.rotary_dim / 2;
  size_t out = size_t(row) * config.rotaries.size() * half;
  for (const RotaryConfig& rotary : config.rotaries) {
    for (size_t i = 0; i < half; ++i, ++out) {
      // The angle is rounded to float32 as in the transformers implementation.
      const double angle = static_cast<float>(position) * rotary.inverse_frequency[i];
      cosine[out] = static_cast<float>(std::cos(angle));
      sine[out] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace flarecore
