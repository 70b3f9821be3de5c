#include "model/decoder_weights.h"

#include <set>

#include "common/check.h"
#include "cpu/cpu_isa.h"

namespace flarecore {
namespace {

// Takes tensors by name, checks their shape and remembers what was taken.
class TensorLoader {
 public:
  // `packs` false: everything is checked, no weight is read.
  TensorLoader(const DecoderTensors& tensors, PackMode mode, Quantize quantize, ThreadPool* pool,
               bool packs)
      : tensors_(tensors), mode_(mode), quantize_(quantize), pool_(pool), packs_(packs) {}

  PackedMatrix matrix(const std::string& name, int64_t num_rows, int64_t num_cols) {
    const DecoderTensor tensor = take(name, {num_rows, num_cols});
    const TensorView view{tensor.type, tensor.data, num_rows, num_cols};
    const Quantize quantize = quantization_of(name, view, quantize_);
    if (quantize_ != Quantize::kNone) {
      quantization_.push_back({name, ggml_type_info(tensor.type).name, quantize, {}});
    }
    if (!packs_) return {};
    if (quantize == Quantize::kNone) {
      return PackedMatrix::pack(view, mode_, kernels().tile, pool_);
    }
    return quantize_tensor(tensor.shown, view, quantize, mode_, pool_, &quantization_.back().error);
  }

  std::vector<float> vector(const std::string& name, int64_t size) {
    const DecoderTensor tensor = take(name, {size});
    std::vector<float> values(size);
    if (!packs_) return values;
    dequantize(tensor.type, tensor.data, size, values.data());
    for (float& value : values) value += tensor.offset;
    return values;
  }

  void mark(const std::string& name) { taken_.insert(name); }

  void check_nothing_left() const {
    for (const std::string& name : tensors_.names()) {
      check(taken_.count(name) != 0, ErrorKind::kUnsupported, "tensor ", name,
            " is not part of the forward pass of this architecture; running without it would give "
            "wrong results");
    }
  }

  std::vector<TensorQuantization> quantization() && { return std::move(quantization_); }

 private:
  DecoderTensor take(const std::string& name, const std::vector<int64_t>& shape) {
    DecoderTensor tensor = tensors_.require(name);
    check(tensor.shape == shape, ErrorKind::kModelFile, tensor.shown, " has the shape ",
          show_shape(tensor.shape), ", expected ", show_shape(shape));
    taken_.insert(name);
    return tensor;
  }

  const DecoderTensors& tensors_;
  PackMode mode_;
  Quantize quantize_;
  ThreadPool* pool_;
  bool packs_;
  std::set<std::string> taken_;
  std::vector<TensorQuantization> quantization_;
};

LayerWeights load_layer(TensorLoader* loader, const DecoderConfig& config, int index) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  LayerWeights layer;
  layer.attention_norm = loader->vector(prefix + "attn_norm.weight", hidden);
  layer.ffn_norm = loader->vector(prefix + "ffn_norm.weight", hidden);
  if (config.norms_heads) {
    layer.q_norm = loader->vector(prefix + "attn_q_norm.weight", config.head_dim);
    layer.k_norm = loader->vector(prefix + "attn_k_norm.weight", config.head_dim);
  }
  if (config.norms_outputs) {
    layer.attention_post_norm = loader->vector(prefix + "post_attention_norm.weight", hidden);
    layer.ffn_post_norm = loader->vector(prefix + "post_ffw_norm.weight", hidden);
  }
  if (config.has_qkv_bias) {
    layer.q_bias = loader->vector(prefix + "attn_q.bias", config.query_size());
    layer.k_bias = loader->vector(prefix + "attn_k.bias", config.kv_size());
    layer.v_bias = loader->vector(prefix + "attn_v.bias", config.kv_size());
  }
  if (config.has_output_bias) layer.o_bias = loader->vector(prefix + "attn_output.bias", hidden);
  layer.q = loader->matrix(prefix + "attn_q.weight", config.query_size(), hidden);
  layer.k = loader->matrix(prefix + "attn_k.weight", config.kv_size(), hidden);
  layer.v = loader->matrix(prefix + "attn_v.weight", config.kv_size(), hidden);
  layer.o = loader->matrix(prefix + "attn_output.weight", hidden, config.query_size());
  layer.gate = loader->matrix(prefix + "ffn_gate.weight", ffn, hidden);
  layer.up = loader->matrix(prefix + "ffn_up.weight", ffn, hidden);
  layer.down = loader->matrix(prefix + "ffn_down.weight", hidden, ffn);
  return layer;
}

void load_all(TensorLoader* loader, const DecoderConfig& config, DecoderWeights* weights) {
  weights->output_norm = loader->vector("output_norm.weight", config.hidden_size);
  weights->token_embedding =
      loader->matrix("token_embd.weight", config.vocab_size, config.hidden_size);
  if (!config.tied_head) {
    weights->output = loader->matrix("output.weight", config.vocab_size, config.hidden_size);
  }
  loader->mark("rope_freqs.weight");  // read with the configuration
  for (int i = 0; i < config.num_layers; ++i) {
    weights->layers.push_back(load_layer(loader, config, i));
  }
  loader->check_nothing_left();
}

}  // namespace

Quantize quantization_of(const std::string& name, const TensorView& view, Quantize quantize) {
  const bool is_float = ggml_type_info(view.type).block_values == 1;
  if (!is_float || view.num_cols % kGroupSize != 0) return Quantize::kNone;
  const bool at_the_ends = name == "token_embd.weight" || name == "output.weight";
  return quantize == Quantize::kQ4 && at_the_ends ? Quantize::kQ8 : quantize;
}

std::shared_ptr<const DecoderWeights> DecoderWeights::load(const DecoderTensors& tensors,
                                                           const DecoderConfig& config,
                                                           PackMode mode, Quantize quantize,
                                                           ThreadPool* pool) {
  TensorLoader loader(tensors, mode, quantize, pool, true);
  auto weights = std::make_shared<DecoderWeights>();
  load_all(&loader, config, weights.get());
  weights->quantization = std::move(loader).quantization();
  return weights;
}

void DecoderWeights::check_tensors(const DecoderTensors& tensors, const DecoderConfig& config,
                                   Quantize quantize) {
  TensorLoader loader(tensors, PackMode::kQuantized, quantize, nullptr, false);
  DecoderWeights weights;
  load_all(&loader, config, &weights);
  if (quantize == Quantize::kNone) return;
  std::string kept;
  for (const TensorQuantization& tensor : std::move(loader).quantization()) {
    if (tensor.quantize != Quantize::kNone) return;
    kept = tensor.source;
  }
  fail(ErrorKind::kConfig, "quantize=\"", quantize_name(quantize),
       "\" finds nothing to quantise: no matrix of the model is F32, F16 or BF16 with rows of a "
       "multiple of 32 values (they are ", kept, "); load it without quantize");
}

size_t DecoderWeights::size_bytes() const {
  size_t total = token_embedding.size_bytes() + output.size_bytes();
  for (const LayerWeights& l : layers) {
    for (const PackedMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
      total += m->size_bytes();
    }
  }
  return total;
}

}  // namespace flarecore
