// Shape of a decoder, read from the metadata of its file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/gguf.h"

namespace flarecore {

enum class Activation { kSilu, kGeluTanh };

// Rotary embedding (RoPE): which angles, and which two values of a head make a pair.
struct RotaryConfig {
  std::vector<float> inverse_frequency;  // (rotary_dim / 2) radians per position
};

struct LayerConfig {
  int window = 0;  // a token sees the last `window` positions, itself among them; 0: all
  int rotary = 0;  // index into DecoderConfig::rotaries
};

struct DecoderConfig {
  std::string architecture_name;
  std::string name;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;  // leading dimensions of a head that RoPE turns
  int context_length = 0;
  int64_t vocab_size = 0;
  float norm_eps = 0.0f;
  float attention_scale = 0.0f;
  float embedding_scale = 1.0f;
  Activation activation = Activation::kSilu;
  bool tied_head = false;        // the output head is the token embedding
  bool rotates_neighbours = true;  // pairs are (2 i, 2 i + 1), else (i, i + rotary_dim / 2)
  bool has_qkv_bias = false;     // queries, keys and values are products plus a bias
  bool has_output_bias = false;  // attention's output is one too
  bool norms_heads = false;      // RMS norm over each query and key head
  bool norms_outputs = false;    // RMS norm of what attention and FFN add to the residual
  std::vector<RotaryConfig> rotaries;
  std::vector<LayerConfig> layers;

  int query_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
  int num_group_heads() const { return num_heads / num_kv_heads; }
};

// Raises ModelFileError for missing or impossible values, UnsupportedError for an architecture or a
// feature that the forward pass does not have.
DecoderConfig read_decoder_config(const GgufFile& file);

// Raises ModelFileError for impossible values, UnsupportedError for sizes that the kernels do not
// take, of a configuration that was put together elsewhere.
void check_decoder_config(const DecoderConfig& config);

}  // namespace flarecore
