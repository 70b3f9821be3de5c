#include "model/decoder_weights.h"

#include <set>

#include "common/check.h"
#include "cpu/cpu_isa.h"

namespace flarecore {
namespace {

// Takes tensors by name, checks their shape and remembers what was taken.
class TensorLoader {
 public:
  TensorLoader(const GgufFile& file, PackMode mode, ThreadPool* pool)
      : file_(file), mode_(mode), pool_(pool) {}

  PackedMatrix matrix(const std::string& name, int64_t num_rows, int64_t num_cols) {
    const GgufTensor& tensor = take(name, {num_cols, num_rows});
    return PackedMatrix::pack({tensor.type, tensor.data, num_rows, num_cols}, mode_,
                              kernels().tile, pool_);
  }

  std::vector<float> vector(const std::string& name, int64_t size) {
    const GgufTensor& tensor = take(name, {size});
    std::vector<float> values(size);
    dequantize(tensor.type, tensor.data, size, values.data());
    return values;
  }

  void mark(const std::string& name) { taken_.insert(name); }

  void check_nothing_left() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      check(taken_.count(tensor.name) != 0, ErrorKind::kUnsupported, "tensor ", tensor.name,
            " is not part of the forward pass of this architecture; running without it would give "
            "wrong results");
    }
  }

 private:
  const GgufTensor& take(const std::string& name, const std::vector<int64_t>& shape) {
    const GgufTensor& tensor = file_.require(name);
    std::vector<int64_t> got = tensor.shape;
    while (got.size() > shape.size() && got.back() == 1) got.pop_back();
    check(got == shape, ErrorKind::kModelFile, "tensor ", name, " has ", tensor.num_rows(),
          " rows of ", tensor.num_cols(), " values, expected ",
          shape.size() > 1 ? shape[1] : int64_t{1}, " of ", shape[0]);
    taken_.insert(name);
    return tensor;
  }

  const GgufFile& file_;
  PackMode mode_;
  ThreadPool* pool_;
  std::set<std::string> taken_;
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
  layer.q = loader->matrix(prefix + "attn_q.weight", config.query_size(), hidden);
  layer.k = loader->matrix(prefix + "attn_k.weight", config.kv_size(), hidden);
  layer.v = loader->matrix(prefix + "attn_v.weight", config.kv_size(), hidden);
  layer.o = loader->matrix(prefix + "attn_output.weight", hidden, config.query_size());
  layer.gate = loader->matrix(prefix + "ffn_gate.weight", ffn, hidden);
  layer.up = loader->matrix(prefix + "ffn_up.weight", ffn, hidden);
  layer.down = loader->matrix(prefix + "ffn_down.weight", hidden, ffn);
  return layer;
}

}  // namespace

std::shared_ptr<const DecoderWeights> DecoderWeights::load(const GgufFile& file,
                                                           const DecoderConfig& config,
                                                           PackMode mode, ThreadPool* pool) {
  TensorLoader loader(file, mode, pool);
  auto weights = std::make_shared<DecoderWeights>();
  weights->output_norm = loader.vector("output_norm.weight", config.hidden_size);
  weights->token_embedding =
      loader.matrix("token_embd.weight", config.vocab_size, config.hidden_size);
  if (!config.tied_head) {
    weights->output = loader.matrix("output.weight", config.vocab_size, config.hidden_size);
  }
  loader.mark("rope_freqs.weight");  // read with the configuration
  for (int i = 0; i < config.num_layers; ++i) {
    weights->layers.push_back(load_layer(&loader, config, i));
  }
  loader.check_nothing_left();
  return weights;
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
