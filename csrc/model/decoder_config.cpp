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

double read_positive(const GgufFile& file, const std::string& key, double fallback) {
  const double value = file.get_float(key, fallback);
  check(value > 0 && std::isfinite(value), ErrorKind::kModelFile, "GGUF key ", key, " is ", value,
        ", expected a finite number above 0");
  return value;
}

void check_heads(const DecoderConfig& config) {
  const int64_t head_dim = config.head_dim;
  check(config.num_heads % config.num_kv_heads == 0, ErrorKind::kModelFile, config.num_heads,
        " query heads cannot share ", config.num_kv_heads, " KV heads evenly");
  check(head_dim >= 8 && head_dim <= kMaxHeadDim && head_dim % 8 == 0, ErrorKind::kUnsupported,
        "a head size of ", head_dim, " is not supported; it must be a multiple of 8 up to ",
        kMaxHeadDim);
  check(config.num_group_heads() <= kMaxGroupHeads, ErrorKind::kUnsupported,
        config.num_group_heads(), " query heads a KV head are not supported; at most ",
        kMaxGroupHeads);
  check(int64_t{config.num_heads} * head_dim <= kMaxSize, ErrorKind::kModelFile, config.num_heads,
        " heads of size ", head_dim, " are taken for damage");
}

void read_shape(const GgufFile& file, const std::string& prefix, DecoderConfig* config) {
  config->num_layers = read_size(file, prefix + "block_count", kMaxLayers);
  config->context_length = read_size(file, prefix + "context_length", kMaxContext);
  config->hidden_size = read_size(file, prefix + "embedding_length", kMaxSize);
  config->intermediate_size = read_size(file, prefix + "feed_forward_length", kMaxSize);
  config->num_heads = read_size(file, prefix + "attention.head_count", kMaxSize);
  config->num_kv_heads = file.has(prefix + "attention.head_count_kv")
                             ? read_size(file, prefix + "attention.head_count_kv", kMaxSize)
                             : config->num_heads;
  const int64_t head_dim =
      file.get_int(prefix + "attention.key_length", config->hidden_size / config->num_heads);
  const int64_t value_dim = file.get_int(prefix + "attention.value_length", head_dim);
  check(value_dim == head_dim, ErrorKind::kUnsupported, "value heads of size ", value_dim,
        " with key heads of size ", head_dim, " are not supported");
  check(head_dim >= 0 && head_dim <= kMaxSize, ErrorKind::kModelFile, "GGUF key ", prefix,
        "attention.key_length is ", head_dim, ", expected 1 to ", kMaxSize);
  config->head_dim = static_cast<int>(head_dim);
  check_heads(*config);
}

// RoPE, Su et al., arXiv 2104.09864: pair i turns by position * base^(-2i/d). Rounded to float32 at
// the same two places as the transformers implementation, so that long positions agree with it.
RotaryConfig make_rotary(int rotary_dim, double base, double factor) {
  RotaryConfig rotary;
  for (int i = 0; i < rotary_dim / 2; ++i) {
    const float power = static_cast<float>(
        std::pow(static_cast<float>(base), 2.0f * i / static_cast<float>(rotary_dim)));
    rotary.inverse_frequency.push_back((1.0f / power) / static_cast<float>(factor));
  }
  return rotary;
}

// Llama 3's tensor of divisors, one per pair.
void divide_frequencies(const GgufTensor& divisors, RotaryConfig* rotary) {
  const int64_t half = static_cast<int64_t>(rotary->inverse_frequency.size());
  const int64_t size = divisors.num_rows() * divisors.num_cols();
  check(divisors.type == GgmlType::kF32 && size == half, ErrorKind::kModelFile, "tensor ",
        divisors.name, " must hold ", half, " F32 values, got ", size);
  std::vector<float> values(half);
  dequantize(GgmlType::kF32, divisors.data, half, values.data());
  for (int64_t i = 0; i < half; ++i) {
    check(values[i] > 0 && std::isfinite(values[i]), ErrorKind::kModelFile, "tensor ",
          divisors.name, " holds ", values[i], ", expected finite numbers above 0");
    rotary->inverse_frequency[i] /= values[i];
  }
}

void read_rotary(const GgufFile& file, const std::string& prefix, double default_base,
                 DecoderConfig* config) {
  const int64_t rotary_dim = file.get_int(prefix + "rope.dimension_count", config->head_dim);
  check(rotary_dim > 0 && rotary_dim <= config->head_dim && rotary_dim % 2 == 0,
        ErrorKind::kModelFile, "GGUF key ", prefix, "rope.dimension_count is ", rotary_dim,
        ", expected an even number up to the head size ", config->head_dim);
  config->rotary_dim = static_cast<int>(rotary_dim);
  const double base = read_positive(file, prefix + "rope.freq_base", default_base);
  const std::string scaling = file.get_string(prefix + "rope.scaling.type", "none");
  check(scaling == "none" || scaling == "linear", ErrorKind::kUnsupported, "RoPE scaling '",
        scaling, "' is not supported; supported are none, linear and a rope_freqs tensor");
  const double factor =
      scaling == "linear" ? read_positive(file, prefix + "rope.scaling.factor", 1.0) : 1.0;
  config->rotaries.push_back(make_rotary(config->rotary_dim, base, factor));
  if (const GgufTensor* divisors = file.find("rope_freqs.weight")) {
    divide_frequencies(*divisors, &config->rotaries[0]);
  }
}

// Gemma 3 report, arXiv 2503.19786: five layers with a sliding window and RoPE base 10,000 for each
// one that sees everything; norms before and after each block; embeddings times sqrt(n).
void read_gemma3(const GgufFile& file, const std::string& prefix, DecoderConfig* config) {
  const int pattern = file.has(prefix + "attention.sliding_window_pattern")
                          ? read_size(file, prefix + "attention.sliding_window_pattern", kMaxLayers)
                          : 6;
  const int window = read_size(file, prefix + "attention.sliding_window", kMaxContext);
  config->rotaries.push_back(
      make_rotary(config->rotary_dim,
                  read_positive(file, prefix + "rope.freq_base_swa", 10000.0), 1.0));
  for (int i = 0; i < config->num_layers; ++i) {
    if ((i + 1) % pattern != 0) config->layers[i] = {window, 1};
  }
  // The 27B model alone scales by hidden size / heads. Its file tells it only by its layers.
  constexpr int kLayersOf27B = 62;
  const double scalar = config->num_layers == kLayersOf27B
                            ? static_cast<double>(config->hidden_size) / config->num_heads
                            : config->head_dim;
  config->attention_scale = static_cast<float>(
      read_positive(file, prefix + "attention.scale", 1.0 / std::sqrt(scalar)));
  config->embedding_scale = std::sqrt(static_cast<float>(config->hidden_size));
  config->activation = Activation::kGeluTanh;
  config->norms_outputs = true;
  check(file.get_float(prefix + "attn_logit_softcapping", 0.0) == 0.0 &&
            file.get_float(prefix + "final_logit_softcapping", 0.0) == 0.0,
        ErrorKind::kUnsupported, "logit soft-capping is not supported");
}

enum class Biases {
  kNone,
  kQkv,        // of queries, keys and values
  kAsFileHas,  // attention_bias, which only the tensors tell
};

// How GGUF files of one architecture differ from those of another.
struct Architecture {
  const char* name;         // general.architecture
  double rope_base;         // where the file has none
  bool rotates_neighbours;  // converters reorder the rows of Llama's Q and K for it, of no other's
  Biases biases;
  bool norms_heads;
  // What only this one has, or null.
  void (*read_rest)(const GgufFile& file, const std::string& prefix, DecoderConfig* config);
};

constexpr Architecture kArchitectures[] = {
    {"llama", 1e4, true, Biases::kAsFileHas, false, nullptr},
    {"qwen2", 1e4, false, Biases::kQkv, false, nullptr},  // arXiv 2407.10671
    {"qwen3", 1e4, false, Biases::kNone, true, nullptr},  // arXiv 2505.09388
    {"gemma3", 1e6, false, Biases::kNone, true, read_gemma3},
};

const Architecture& find_architecture(const std::string& name) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (name == architecture.name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  // qwen2moe, qwen3moe, granitemoe, ...
  const bool is_moe = name.size() > 3 && name.compare(name.size() - 3, 3, "moe") == 0;
  fail(ErrorKind::kUnsupported, "architecture '", name, "' is not supported",
       is_moe ? ": it is a mixture of experts" : "", "; supported: ", known);
}

void apply_architecture(const Architecture& architecture, const GgufFile& file,
                        const std::string& prefix, DecoderConfig* config) {
  const auto has = [&](const char* bias) {
    return architecture.biases == Biases::kAsFileHas && file.find(bias) != nullptr;
  };
  config->rotates_neighbours = architecture.rotates_neighbours;
  config->norms_heads = architecture.norms_heads;
  config->has_qkv_bias = architecture.biases == Biases::kQkv || has("blk.0.attn_q.bias");
  config->has_output_bias = has("blk.0.attn_output.bias");
  read_rotary(file, prefix, architecture.rope_base, config);
  if (architecture.read_rest != nullptr) architecture.read_rest(file, prefix, config);
}

}  // namespace

DecoderConfig read_decoder_config(const GgufFile& file) {
  DecoderConfig config;
  config.architecture_name = file.get_string("general.architecture");
  const Architecture& architecture = find_architecture(config.architecture_name);
  config.name = file.get_string("general.name", "");
  const std::string prefix = config.architecture_name + ".";
  check(file.get_int(prefix + "expert_count", 0) == 0, ErrorKind::kUnsupported,
        "mixture-of-experts models are not supported (", prefix, "expert_count is ",
        file.get_int(prefix + "expert_count", 0), ")");
  read_shape(file, prefix, &config);
  config.norm_eps =
      static_cast<float>(file.get_float(prefix + "attention.layer_norm_rms_epsilon"));
  check(config.norm_eps >= 0 && config.norm_eps < 1, ErrorKind::kModelFile, "GGUF key ", prefix,
        "attention.layer_norm_rms_epsilon is ", config.norm_eps, ", expected 0 to 1");
  config.vocab_size = file.require("token_embd.weight").num_rows();
  config.tied_head = file.find("output.weight") == nullptr;
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  config.layers.resize(config.num_layers);
  apply_architecture(architecture, file, prefix, &config);
  return config;
}

void check_decoder_config(const DecoderConfig& config) {
  const auto check_size = [](const char* name, int64_t value, int64_t limit) {
    check(value >= 1 && value <= limit, ErrorKind::kModelFile, "model configuration: ", name,
          " is ", value, ", expected 1 to ", limit);
  };
  check_size("num_layers", config.num_layers, kMaxLayers);
  check_size("context_length", config.context_length, kMaxContext);
  check_size("hidden_size", config.hidden_size, kMaxSize);
  check_size("intermediate_size", config.intermediate_size, kMaxSize);
  check_size("num_heads", config.num_heads, kMaxSize);
  check_size("num_kv_heads", config.num_kv_heads, kMaxSize);
  check_size("vocab_size", config.vocab_size, INT32_MAX);
  check_heads(config);
  check(config.norm_eps >= 0 && config.norm_eps < 1, ErrorKind::kModelFile,
        "model configuration: the epsilon of norms is ", config.norm_eps, ", expected 0 to 1");
  check(config.rotary_dim == config.head_dim, ErrorKind::kInternal, "rotary_dim is not head_dim");
  for (const RotaryConfig& rotary : config.rotaries) {
    check(rotary.inverse_frequency.size() == static_cast<size_t>(config.rotary_dim / 2),
          ErrorKind::kInternal, "a rotary embedding needs one frequency a pair");
  }
  check(config.layers.size() == static_cast<size_t>(config.num_layers), ErrorKind::kInternal,
        "every layer needs its window");
  for (const LayerConfig& layer : config.layers) {
    check(layer.window >= 0 && layer.rotary >= 0 &&
              static_cast<size_t>(layer.rotary) < config.rotaries.size(),
          ErrorKind::kInternal, "a layer's window or rotary embedding is out of range");
  }
}

}  // namespace flarecore
