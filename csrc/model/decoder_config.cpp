#include "model/decoder_config.h"

#include <cmath>

#include "common/check.h"
#include "cpu/kernels.h"

namespace flarecore {
namespace {

// Sizes beyond these are taken for damage, not for a model.
constexpr int64_t kMaxLayers = 1024, kMaxSize = 1 << 20, kMaxContext = 1 << 24;

int read_size(const GgufFile& file, const std::string& key, int64_t limit) {
  const int64_t value = file.get_int(key);
  check(value >= 1 && value <= limit, ErrorKind::kModelFile, "GGUF key ", key, " is ", value,
        ", expected 1 to ", limit);
  return static_cast<int>(value);
}

// RoPE, Su et al., arXiv 2104.09864: pair i turns by position * base^(-2i/d). Rounded to float32 at
// the same two places as the transformers implementation, so that long positions agree with it.
void read_rope(const GgufFile& file, const std::string& prefix, DecoderConfig* config) {
  config->rotary_dim =
      static_cast<int>(file.get_int(prefix + "rope.dimension_count", config->head_dim));
  check(config->rotary_dim > 0 && config->rotary_dim <= config->head_dim &&
            config->rotary_dim % 2 == 0,
        ErrorKind::kModelFile, "GGUF key ", prefix, "rope.dimension_count is ", config->rotary_dim,
        ", expected an even number up to the head size ", config->head_dim);
  const double base = file.get_float(prefix + "rope.freq_base", 10000.0);
  check(base > 0 && std::isfinite(base), ErrorKind::kModelFile, "GGUF key ", prefix,
        "rope.freq_base is ", base, ", expected a finite number above 0");
  const std::string scaling = file.get_string(prefix + "rope.scaling.type", "none");
  check(scaling == "none" || scaling == "linear", ErrorKind::kUnsupported, "RoPE scaling '",
        scaling, "' is not supported; supported are none, linear and a rope_freqs tensor");
  const double factor = scaling == "linear" ? file.get_float(prefix + "rope.scaling.factor", 1.0)
                                            : 1.0;
  check(factor > 0 && std::isfinite(factor), ErrorKind::kModelFile, "GGUF key ", prefix,
        "rope.scaling.factor is ", factor, ", expected a finite number above 0");
  const int half = config->rotary_dim / 2;
  config->inverse_frequency.resize(half);
  for (int i = 0; i < half; ++i) {
    const float power = static_cast<float>(
        std::pow(static_cast<float>(base), 2.0f * i / static_cast<float>(config->rotary_dim)));
    config->inverse_frequency[i] = (1.0f / power) / static_cast<float>(factor);
  }
  if (const GgufTensor* divisors = file.find("rope_freqs.weight")) {
    check(divisors->type == GgmlType::kF32 && divisors->num_rows() * divisors->num_cols() == half,
          ErrorKind::kModelFile, "tensor rope_freqs.weight must hold ", half, " F32 values, got ",
          divisors->num_rows() * divisors->num_cols());
    std::vector<float> values(half);
    dequantize(GgmlType::kF32, divisors->data, half, values.data());
    for (int i = 0; i < half; ++i) {
      check(values[i] > 0 && std::isfinite(values[i]), ErrorKind::kModelFile,
            "tensor rope_freqs.weight holds ", values[i], ", expected finite numbers above 0");
      config->inverse_frequency[i] /= values[i];
    }
  }
}

}  // namespace

DecoderConfig read_decoder_config(const GgufFile& file) {
  DecoderConfig config;
  config.architecture = file.get_string("general.architecture");
  check(config.architecture == "llama", ErrorKind::kUnsupported, "architecture '",
        config.architecture, "' is not supported; supported: llama");
  const std::string prefix = config.architecture + ".";
  check(file.get_int(prefix + "expert_count", 0) == 0, ErrorKind::kUnsupported,
        "mixture-of-experts models are not supported (", prefix, "expert_count is ",
        file.get_int(prefix + "expert_count", 0), ")");
  config.name = file.get_string("general.name", "");
  config.num_layers = read_size(file, prefix + "block_count", kMaxLayers);
  config.context_length = read_size(file, prefix + "context_length", kMaxContext);
  config.hidden_size = read_size(file, prefix + "embedding_length", kMaxSize);
  config.intermediate_size = read_size(file, prefix + "feed_forward_length", kMaxSize);
  config.num_heads = read_size(file, prefix + "attention.head_count", kMaxSize);
  config.num_kv_heads = file.has(prefix + "attention.head_count_kv")
                            ? read_size(file, prefix + "attention.head_count_kv", kMaxSize)
                            : config.num_heads;
  check(config.num_heads % config.num_kv_heads == 0, ErrorKind::kModelFile, config.num_heads,
        " query heads cannot share ", config.num_kv_heads, " KV heads evenly");
  config.head_dim = static_cast<int>(
      file.get_int(prefix + "attention.key_length", config.hidden_size / config.num_heads));
  const int64_t value_dim = file.get_int(prefix + "attention.value_length", config.head_dim);
  check(value_dim == config.head_dim, ErrorKind::kUnsupported, "value heads of size ", value_dim,
        " with key heads of size ", config.head_dim, " are not supported");
  check(config.head_dim >= 8 && config.head_dim <= 512 && config.head_dim % 8 == 0,
        ErrorKind::kUnsupported, "a head size of ", config.head_dim,
        " is not supported; it must be a multiple of 8 up to 512");
  check(config.num_heads / config.num_kv_heads <= kMaxGroupHeads, ErrorKind::kUnsupported,
        config.num_heads / config.num_kv_heads, " query heads a KV head are not supported; at most ",
        kMaxGroupHeads);
  config.norm_eps =
      static_cast<float>(file.get_float(prefix + "attention.layer_norm_rms_epsilon"));
  check(config.norm_eps >= 0 && config.norm_eps < 1, ErrorKind::kModelFile, "GGUF key ", prefix,
        "attention.layer_norm_rms_epsilon is ", config.norm_eps, ", expected 0 to 1");
  config.vocab_size = file.require("token_embd.weight").num_rows();
  config.tied_head = file.find("output.weight") == nullptr;
  read_rope(file, prefix, &config);
  return config;
}

}  // namespace flarecore
