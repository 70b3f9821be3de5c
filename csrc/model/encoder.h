// A BERT-style sentence encoder: token ids to one vector of length 1 per text, in float32 or, with
// quantised weights, in products of 8-bit activations.
//
// Devlin et al., "BERT", NAACL 2019 (post-layernorm, absolute positions, GELU by erf) with the
// pooling of Reimers and Gurevych, "Sentence-BERT", EMNLP 2019.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/span.h"
#include "common/thread_pool.h"
#include "common/types.h"
#include "model/encoder_weights.h"
#include "model/linear.h"

namespace flarecore {

class Encoder {
 public:
  // Reads a safetensors file. Raises ModelFileError for a file or configuration that does not fit,
  // ConfigError for num_threads < 1.
  static std::unique_ptr<Encoder> load(const std::string& path, const EncoderConfig& config,
                                       Quantize quantize, int num_threads);

  const EncoderConfig& config() const { return config_; }
  const std::vector<TensorQuantization>& quantization() const { return weights_.quantization; }
  int num_threads() const { return pool_.num_threads(); }

  // Encodes texts that lie one after the other in `token_ids`, `lengths[i]` tokens each (at least
  // 1, at most max_positions), into `out` (num_texts, hidden_size). A vector depends on its own
  // text only, bit for bit, not on batch mates or threads. Raises ConfigError, before any work, for
  // lengths or ids out of range. Several threads may call; one call runs at a time.
  void encode(Span<const TokenId> token_ids, Span<const int64_t> lengths, float* out);

 private:
  // Texts that go through the layers together: rows [begin[i], begin[i + 1]) are text i.
  struct Batch {
    Span<const TokenId> token_ids;
    std::vector<int64_t> begin;
    int64_t num_texts() const { return static_cast<int64_t>(begin.size()) - 1; }
    int64_t num_rows() const { return begin.back(); }
  };

  Encoder(EncoderConfig config, int num_threads);
  void check_input(Span<const TokenId> token_ids, Span<const int64_t> lengths) const;
  void encode_batch(const Batch& batch, float* out);
  void embed(const Batch& batch);
  void plan_products();
  void run_layer(size_t index, const Batch& batch);
  void attend(const Batch& batch);
  void attend_head(const Batch& batch, int64_t text, int64_t head, int thread);
  enum class Epilogue { kBias, kBiasGelu };
  void linear(size_t product, const float* x, int64_t num_rows, Epilogue epilogue, float* y);
  void multiply_float(size_t product, const float* x, int64_t num_rows, Epilogue epilogue,
                      float* y);
  void multiply_quantized(size_t product, const float* x, int64_t num_rows, Epilogue epilogue,
                          float* y);
  const NextRead* run_after(size_t product) const;
  void add_and_norm(const float* update, const LayerNormWeights& norm, int64_t num_rows);
  void pool_text(const Batch& batch, int64_t text, float* out) const;
  template <typename F>
  void for_rows(int64_t num_rows, F&& body);

  EncoderConfig config_;
  ThreadPool pool_;
  EncoderWeights weights_;
  // The products of a forward pass in their order, four a layer: qkv, attention_output, up, down.
  struct Product {
    const LinearWeights* weights;
    TileRun tiles;
  };
  std::vector<Product> products_;
  std::mutex mutex_;  // guards the pool and the scratch below

  std::vector<float> hidden_;        // (rows, hidden_size)
  std::vector<float> qkv_;           // (rows, 3 * hidden_size)
  std::vector<float> attended_;      // (rows, hidden_size)
  std::vector<float> update_;        // (rows, hidden_size)
  std::vector<float> intermediate_;  // (rows, intermediate_size)
  ActivationRows quantized_;         // a product's input, where its weights are quantised
  std::vector<float> kv_blocks_;     // (threads, 2, max_positions up to whole blocks, head_dim)
};

}  // namespace flarecore
