// The weights of a decoder in their run-time format, shared by all engines of one compute mode.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/tensor_quantization.h"

namespace flarecore {

struct LayerWeights {
  std::vector<float> attention_norm;  // (hidden)
  std::vector<float> ffn_norm;        // (hidden)
  std::vector<float> q_norm, k_norm;  // (head_dim), only if the config norms heads
  std::vector<float> attention_post_norm, ffn_post_norm;  // (hidden), only if it norms outputs
  std::vector<float> q_bias, k_bias, v_bias;  // (query), (kv) twice, only if it has_qkv_bias
  std::vector<float> o_bias;                  // (hidden), only if it has_output_bias
  PackedMatrix q, k, v, o;            // (query, hidden), (kv, hidden) twice, (hidden, query)
  PackedMatrix gate, up, down;        // (ffn, hidden) twice, (hidden, ffn)
};

// What `quantize` does to a matrix of this name: kQ8 quantises all of F32, F16 and BF16, kQ4 all
// but token embedding and head, which get 8 bits, since errors of theirs go straight into the
// logits. What is quantised already, or has rows that are no multiple of 32, is kept (kNone).
Quantize quantization_of(const std::string& name, const TensorView& view, Quantize quantize);

struct DecoderWeights {
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // (hidden)
  PackedMatrix token_embedding;    // (vocab, hidden); the head too if it is tied
  PackedMatrix output;             // (vocab, hidden); empty if tied

  const PackedMatrix& head() const {
    return output.num_rows() > 0 ? output : token_embedding;
  }
  size_t size_bytes() const;

  std::vector<TensorQuantization> quantization;  // of every matrix; empty without quantising

  // Packs every tensor for the CPU level in force, quantised as quantization_of() says. Raises
  // ModelFileError for a missing tensor, a wrong shape or a value that cannot be quantised,
  // UnsupportedError for a tensor that the forward pass would not use.
  static std::shared_ptr<const DecoderWeights> load(const DecoderTensors& tensors,
                                                    const DecoderConfig& config, PackMode mode,
                                                    Quantize quantize, ThreadPool* pool);

  // Raises what load() would raise for names, shapes and types, without reading a weight, and
  // ConfigError if `quantize` would find nothing to quantise.
  static void check_tensors(const DecoderTensors& tensors, const DecoderConfig& config,
                            Quantize quantize);
};

}  // namespace flarecore
