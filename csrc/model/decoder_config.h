// Shape of a decoder, read from the metadata of its file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/gguf.h"

namespace flarecore {

struct DecoderConfig {
  std::string architecture;
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
  bool tied_head = false;               // the output head is the token embedding
  std::vector<float> inverse_frequency;  // (rotary_dim / 2) radians per position

  int query_size() const { return num_heads * head_dim; }
  int kv_size() const { return num_kv_heads * head_dim; }
};

// Raises ModelFileError for missing or impossible values, UnsupportedError for an architecture or a
// feature that the forward pass does not have.
DecoderConfig read_decoder_config(const GgufFile& file);

}  // namespace flarecore
