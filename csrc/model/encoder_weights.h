// Weights of a BERT-style sentence encoder, from a safetensors file and packed for the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/thread_pool.h"
#include "model/safetensors.h"
#include "model/tensor_quantization.h"

namespace flarecore {

enum class Pooling { kMean, kFirst };  // over all tokens of a text; its first token ([CLS])

struct EncoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;        // a multiple of num_heads; hidden_size / num_heads of 8
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t intermediate_size = 0;
  int64_t max_positions = 0;      // longest text in tokens
  int64_t num_token_types = 0;
  float layer_norm_eps = 0;
  Pooling pooling = Pooling::kMean;

  int64_t head_dim() const { return hidden_size / num_heads; }
  // Raises ModelFileError naming the field and its limit.
  void validate() const;
};

struct LayerNormWeights {
  std::vector<float> weight, bias;  // (hidden_size)
};

struct LinearWeights {
  PackedMatrix weight;      // (out, in)
  std::vector<float> bias;  // (out)
};

struct EncoderLayer {
  LinearWeights qkv;               // query, key and value rows, one after the other
  LinearWeights attention_output;
  LayerNormWeights attention_norm;
  LinearWeights up, down;
  LayerNormWeights output_norm;
};

struct EncoderWeights {
  // Matrices are packed as float32 or, if their rows are a multiple of 32, as `quantize` says.
  // Raises ModelFileError if a tensor is missing, has another shape or no float type, or holds a
  // value that cannot be quantised.
  static EncoderWeights load(std::shared_ptr<const SafetensorsFile> file,
                             const EncoderConfig& config, Quantize quantize, ThreadPool* pool);

  // The word embeddings are large and used a row at a time: they stay in the mapped file.
  void read_word_embedding(int64_t token_id, float* out) const;  // (hidden_size)

  std::shared_ptr<const SafetensorsFile> file;
  const SafeTensor* word_embeddings = nullptr;  // (vocab_size, hidden_size), owned by file
  // (max_positions, hidden_size): position plus the embedding of token type 0.
  std::vector<float> position_embeddings;
  LayerNormWeights embedding_norm;
  std::vector<EncoderLayer> layers;
  std::vector<TensorQuantization> quantization;  // of every matrix; empty without quantising
};

}  // namespace flarecore
