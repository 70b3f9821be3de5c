#include "model/encoder_weights.h"

#include <utility>

#include "common/check.h"
#include "cpu/cpu_isa.h"

namespace flarecore {
namespace {

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  check(value >= low && value <= high, ErrorKind::kModelFile, "encoder configuration: ", name,
        " must be between ", low, " and ", high, ", got ", value);
}

// Reads tensors by name; checkpoints of a whole BERT put "bert." before the encoder's names.
class Loader {
 public:
  Loader(const SafetensorsFile& file, Quantize quantize, ThreadPool* pool)
      : file_(file), quantize_(quantize), pool_(pool) {
    const std::string probe = "embeddings.word_embeddings.weight";
    if (file.find(probe) == nullptr && file.find("bert." + probe) != nullptr) prefix_ = "bert.";
  }

  const SafeTensor& tensor(const std::string& name, const std::vector<int64_t>& shape) const {
    const SafeTensor& found = file_.require(prefix_ + name, shape);
    found.type();  // raises for a type that is no float
    return found;
  }

  // Appends a whole tensor as float32.
  void append(const std::string& name, const std::vector<int64_t>& shape,
              std::vector<float>* out) const {
    const SafeTensor& source = tensor(name, shape);
    const size_t begin = out->size();
    out->resize(begin + static_cast<size_t>(source.num_values));
    dequantize(source.type(), source.data, source.num_values, out->data() + begin);
  }

  std::vector<float> values(const std::string& name, const std::vector<int64_t>& shape) const {
    std::vector<float> out;
    append(name, shape, &out);
    return out;
  }

  // Several linear layers over the same input as one, rows in the given order. `shown` is what the
  // matrix is called in a GGUF file.
  LinearWeights linear(const std::string& shown, const std::vector<std::string>& names,
                       int64_t num_rows, int64_t num_cols) {
    std::vector<float> rows, bias;
    for (const std::string& name : names) {
      append(name + ".weight", {num_rows, num_cols}, &rows);
      append(name + ".bias", {num_rows}, &bias);
    }
    const TensorView view{GgmlType::kF32, reinterpret_cast<const uint8_t*>(rows.data()),
                          num_rows * static_cast<int64_t>(names.size()), num_cols};
    const Quantize quantize = num_cols % kGroupSize == 0 ? quantize_ : Quantize::kNone;
    if (quantize_ != Quantize::kNone) {
      const GgmlType type = tensor(names[0] + ".weight", {num_rows, num_cols}).type();
      quantization_.push_back({shown, ggml_type_info(type).name, quantize, {}});
    }
    if (quantize == Quantize::kNone) {
      return {PackedMatrix::pack(view, PackMode::kFloat32, kernels().tile, pool_),
              std::move(bias)};
    }
    std::string stacked = "tensor " + names[0];
    for (size_t i = 1; i < names.size(); ++i) stacked += " and " + names[i];
    return {quantize_tensor(stacked, view, quantize, PackMode::kQuantized, pool_,
                            &quantization_.back().error),
            std::move(bias)};
  }

  LayerNormWeights norm(const std::string& name, int64_t size) const {
    return {values(name + ".weight", {size}), values(name + ".bias", {size})};
  }

  std::vector<TensorQuantization> quantization() && { return std::move(quantization_); }

 private:
  const SafetensorsFile& file_;
  Quantize quantize_;
  ThreadPool* pool_;
  std::string prefix_;
  std::vector<TensorQuantization> quantization_;
};

}  // namespace

void EncoderConfig::validate() const {
  check_range("vocab_size", vocab_size, 1, INT32_MAX);
  check_range("hidden_size", hidden_size, 8, 16384);
  check_range("num_layers", num_layers, 1, 256);
  check_range("num_heads", num_heads, 1, hidden_size / 8);
  check_range("intermediate_size", intermediate_size, 1, 131072);
  check_range("max_positions", max_positions, 1, 32768);
  check_range("num_token_types", num_token_types, 1, 64);
  check(hidden_size % num_heads == 0 && head_dim() % 8 == 0 && head_dim() <= kMaxHeadDim,
        ErrorKind::kModelFile, "encoder configuration: hidden_size ", hidden_size, " over ",
        num_heads, " heads must give a head size that is a multiple of 8 and at most ", kMaxHeadDim);
  check(layer_norm_eps > 0 && layer_norm_eps < 1, ErrorKind::kModelFile,
        "encoder configuration: layer_norm_eps must be between 0 and 1, got ", layer_norm_eps);
}

EncoderWeights EncoderWeights::load(std::shared_ptr<const SafetensorsFile> file,
                                    const EncoderConfig& config, Quantize quantize,
                                    ThreadPool* pool) {
  config.validate();
  Loader loader(*file, quantize, pool);
  const int64_t hidden = config.hidden_size;
  EncoderWeights weights;
  weights.word_embeddings =
      &loader.tensor("embeddings.word_embeddings.weight", {config.vocab_size, hidden});
  weights.position_embeddings =
      loader.values("embeddings.position_embeddings.weight", {config.max_positions, hidden});
  const std::vector<float> types =
      loader.values("embeddings.token_type_embeddings.weight", {config.num_token_types, hidden});
  for (size_t i = 0; i < weights.position_embeddings.size(); ++i) {
    weights.position_embeddings[i] += types[i % static_cast<size_t>(hidden)];
  }
  weights.embedding_norm = loader.norm("embeddings.LayerNorm", hidden);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = "encoder.layer." + std::to_string(i) + ".";
    const std::string self = layer + "attention.self.";
    const std::string block = "blk." + std::to_string(i) + ".";
    const int64_t ffn = config.intermediate_size;
    weights.layers.push_back(
        {loader.linear(block + "attn_qkv.weight", {self + "query", self + "key", self + "value"},
                       hidden, hidden),
         loader.linear(block + "attn_output.weight", {layer + "attention.output.dense"}, hidden,
                       hidden),
         loader.norm(layer + "attention.output.LayerNorm", hidden),
         loader.linear(block + "ffn_up.weight", {layer + "intermediate.dense"}, ffn, hidden),
         loader.linear(block + "ffn_down.weight", {layer + "output.dense"}, hidden, ffn),
         loader.norm(layer + "output.LayerNorm", hidden)});
  }
  weights.quantization = std::move(loader).quantization();
  weights.file = std::move(file);
  return weights;
}

void EncoderWeights::read_word_embedding(int64_t token_id, float* out) const {
  const int64_t hidden = word_embeddings->shape[1];
  const int64_t row_bytes = word_embeddings->size_bytes / word_embeddings->shape[0];
  dequantize(word_embeddings->type(), word_embeddings->data + token_id * row_bytes, hidden, out);
}

}  // namespace flarecore
