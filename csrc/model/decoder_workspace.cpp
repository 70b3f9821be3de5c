#include "model/decoder_workspace.h"

#include <algorithm>
#include <cmath>

namespace flarecore {
namespace {

void grow(std::vector<float>* buffer, size_t size) {
  if (buffer->size() < size) buffer->resize(size);
}

}  // namespace

void Decoder::Workspace::resize(const DecoderConfig& config) {
  const size_t num_rows = rows.size();
  hidden_size_ = config.hidden_size;
  grow(&residual, num_rows * config.hidden_size);
  grow(&delta, num_rows * config.hidden_size);
  grow(&query, num_rows * config.query_size());
  grow(&key, num_rows * config.kv_size());
  grow(&value, num_rows * config.kv_size());
  grow(&gate, num_rows * config.intermediate_size);
  grow(&up, num_rows * config.intermediate_size);
  grow(&cosine, num_rows * (config.rotary_dim / 2));
  grow(&sine, num_rows * (config.rotary_dim / 2));
  const int64_t widest =
      std::max({config.hidden_size, config.intermediate_size, config.query_size()});
  // The head's input reuses these rows, so there are always enough for it.
  input.resize(std::max<int64_t>(num_rows, 8), widest);
}

void Decoder::Workspace::plan_attention(const DecoderConfig& config,
                                        Span<const ForwardSegment> segments) {
  tiles.clear();
  first_tile.assign(rows.size(), 0);
  end_tile.assign(rows.size(), 0);
  int row = 0;
  for (size_t s = 0; s < segments.size(); ++s) {
    const int segment_end = row + static_cast<int>(segments[s].tokens.size());
    while (row < segment_end) {
      const int num_rows = std::min(kMaxAttentionRows, segment_end - row);
      const int num_blocks = rows[row + num_rows - 1].position / kBlockTokens + 1;
      const int first = static_cast<int>(tiles.size());
      for (int block = 0; block < num_blocks; block += kSplitBlocks) {
        tiles.push_back({static_cast<int>(s), row, num_rows, block,
                         std::min(block + kSplitBlocks, num_blocks)});
      }
      for (int i = 0; i < num_rows; ++i) {
        first_tile[row + i] = first;
        end_tile[row + i] = static_cast<int>(tiles.size());
      }
      row += num_rows;
    }
  }
  const size_t group = config.num_heads / config.num_kv_heads;
  const size_t cells = tiles.size() * config.num_kv_heads * kMaxAttentionRows * group;
  grow(&partial_out, cells * config.head_dim);
  grow(&partial_max, cells);
  grow(&partial_sum, cells);
}

void Decoder::Workspace::fill_rotation(const DecoderConfig& config, int row, int position) {
  const int half = config.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    // The angle is rounded to float32 as in the transformers implementation.
    const double angle = static_cast<float>(position) * config.inverse_frequency[i];
    cosine[size_t(row) * half + i] = static_cast<float>(std::cos(angle));
    sine[size_t(row) * half + i] = static_cast<float>(std::sin(angle));
  }
}

void Decoder::Workspace::quantize_if_needed(int row, int64_t num_cols,
                                            std::initializer_list<const PackedMatrix*> readers) {
  for (const PackedMatrix* matrix : readers) {
    if (is_quantized(matrix->view().format)) {
      input.quantize(row, num_cols);
      return;
    }
  }
}

}  // namespace flarecore
