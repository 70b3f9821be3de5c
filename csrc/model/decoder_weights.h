// The weights of a decoder in their run-time format, shared by all engines of one compute mode.
#pragma once

#include <memory>
#include <vector>

#include "common/thread_pool.h"
#include "model/decoder_config.h"
#include "model/packed_matrix.h"

namespace flarecore {

struct LayerWeights {
  std::vector<float> attention_norm;  // (hidden)
  std::vector<float> ffn_norm;        // (hidden)
  std::vector<float> q_norm, k_norm;  // (head_dim), only if the config norms heads
  std::vector<float> attention_post_norm, ffn_post_norm;  // (hidden), only if it norms outputs
  PackedMatrix q, k, v, o;            // (query, hidden), (kv, hidden) twice, (hidden, query)
  PackedMatrix gate, up, down;        // (ffn, hidden) twice, (hidden, ffn)
};

struct DecoderWeights {
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // (hidden)
  PackedMatrix token_embedding;    // (vocab, hidden); the head too if it is tied
  PackedMatrix output;             // (vocab, hidden); empty if tied

  const PackedMatrix& head() const {
    return output.num_rows() > 0 ? output : token_embedding;
  }
  size_t size_bytes() const;

  // Packs every tensor for the CPU level in force. Raises ModelFileError for a missing tensor or a
  // wrong shape, UnsupportedError for a tensor that the forward pass would not use.
  static std::shared_ptr<const DecoderWeights> load(const GgufFile& file,
                                                    const DecoderConfig& config, PackMode mode,
                                                    ThreadPool* pool);
};

}  // namespace flarecore
