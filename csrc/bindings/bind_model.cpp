// Decoder models: from a GGUF file, or from a checkpoint whose configuration Python has read.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/quantize_option.h"
#include "bindings/safetensors_object.h"
#include "common/check.h"
#include "model/model.h"
#include "model/tensor_export.h"

namespace py = pybind11;

namespace flarecore {
namespace {

py::dict config_dict(const Model& model) {
  const DecoderConfig& c = model.config();
  return py::dict(py::arg("architecture") = c.architecture_name, py::arg("name") = c.name,
                  py::arg("num_layers") = c.num_layers, py::arg("hidden_size") = c.hidden_size,
                  py::arg("intermediate_size") = c.intermediate_size,
                  py::arg("num_heads") = c.num_heads, py::arg("num_kv_heads") = c.num_kv_heads,
                  py::arg("head_dim") = c.head_dim, py::arg("context_length") = c.context_length,
                  py::arg("vocab_size") = c.vocab_size);
}

Activation parse_activation(const std::string& name) {
  check(name == "silu" || name == "gelu_tanh", ErrorKind::kConfig,
        "activation must be \"silu\" or \"gelu_tanh\", got \"", name, "\"");
  return name == "silu" ? Activation::kSilu : Activation::kGeluTanh;
}

// The dict that flarecore/checkpoint/config.py makes; checked values, so that a wrong type is ours.
DecoderConfig parse_config(const py::dict& dict) {
  DecoderConfig config;
  config.architecture_name = dict["architecture"].cast<std::string>();
  config.name = dict["name"].cast<std::string>();
  config.num_layers = dict["num_layers"].cast<int>();
  config.hidden_size = dict["hidden_size"].cast<int>();
  config.intermediate_size = dict["intermediate_size"].cast<int>();
  config.num_heads = dict["num_heads"].cast<int>();
  config.num_kv_heads = dict["num_kv_heads"].cast<int>();
  config.head_dim = config.rotary_dim = dict["head_dim"].cast<int>();
  config.context_length = dict["context_length"].cast<int>();
  config.vocab_size = dict["vocab_size"].cast<int64_t>();
  config.norm_eps = dict["norm_eps"].cast<float>();
  config.attention_scale = dict["attention_scale"].cast<float>();
  config.embedding_scale = dict["embedding_scale"].cast<float>();
  config.activation = parse_activation(dict["activation"].cast<std::string>());
  config.tied_head = dict["tied_head"].cast<bool>();
  config.rotates_neighbours = false;  // checkpoints keep the halves of a head apart
  config.has_qkv_bias = dict["has_qkv_bias"].cast<bool>();
  config.has_output_bias = dict["has_output_bias"].cast<bool>();
  config.norms_heads = dict["norms_heads"].cast<bool>();
  config.norms_outputs = dict["norms_outputs"].cast<bool>();
  for (const py::handle rotary : dict["inverse_frequencies"]) {
    config.rotaries.push_back({rotary.cast<std::vector<float>>()});
  }
  for (const py::handle layer : dict["layers"]) {
    const auto [window, rotary] = layer.cast<std::pair<int, int>>();
    config.layers.push_back({window, rotary});
  }
  return config;
}

using Places = std::map<std::string, std::pair<size_t, std::string>>;

std::shared_ptr<Model> from_checkpoint(const py::dict& config, const py::list& files,
                                       const Places& places, float vector_offset, int num_threads,
                                       const std::string& quantize) {
  DecoderConfig parsed = parse_config(config);
  std::vector<std::shared_ptr<const SafetensorsFile>> opened;
  for (const py::handle file : files) opened.push_back(file.cast<SafetensorsObject&>().file);
  std::map<std::string, CheckpointTensors::Place> named;
  for (const auto& [name, place] : places) named[name] = {place.first, place.second};
  py::gil_scoped_release release;
  check_decoder_config(parsed);
  auto tensors =
      std::make_shared<CheckpointTensors>(std::move(opened), std::move(named), vector_offset);
  return std::make_shared<Model>(std::move(tensors), std::move(parsed), num_threads,
                                 parse_quantize(quantize));
}

py::list model_quantization(Model& model) {
  std::vector<TensorQuantization> tensors;
  {
    py::gil_scoped_release release;
    tensors = model.quantization();
  }
  return quantization_list(tensors);
}

// Calls read(tensor) with the tensor made ready, and gives what that returns.
template <typename F>
auto with_tensor(const Model& model, const std::string& name, F&& read) {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<TensorExport> tensor;
  {
    py::gil_scoped_release release;
    pool = std::make_unique<ThreadPool>(model.num_threads());
    tensor = std::make_unique<TensorExport>(model.tensors(), name, model.quantize(), pool.get());
  }
  return read(*tensor);
}

py::array_t<float> tensor_values(const Model& model, const std::string& name) {
  return with_tensor(model, name, [](const TensorExport& tensor) {
    py::array_t<float> out(tensor.shape());
    float* values = out.mutable_data();
    py::gil_scoped_release release;
    tensor.values(values);
    return out;
  });
}

py::object tensor_groups(const Model& model, const std::string& name) {
  return with_tensor(model, name, [](const TensorExport& tensor) -> py::object {
    if (!tensor.is_quantized()) return py::none();
    const int64_t rows = tensor.shape()[0], cols = tensor.shape()[1];
    py::array_t<int8_t> codes({rows, cols});
    py::array_t<uint8_t> scales({rows, cols / kGroupSize, int64_t{tensor.scale_bytes()}});
    const int64_t num_supers = tensor.super_bytes() > 0 ? cols / 256 : 0;
    py::array_t<uint8_t> supers({rows, num_supers, int64_t{tensor.super_bytes()}});
    int8_t* code_data = codes.mutable_data();
    uint8_t* scale_data = scales.mutable_data();
    uint8_t* super_data = supers.mutable_data();
    {
      py::gil_scoped_release release;
      tensor.groups(code_data, scale_data, super_data);
    }
    return py::make_tuple(ggml_type_info(tensor.type()).name, codes, scales, supers);
  });
}

}  // namespace

void bind_model(py::module_& m) {
  py::class_<Model, std::shared_ptr<Model>>(m, "Model")
      .def(py::init([](const std::string& path, int num_threads, const std::string& quantize) {
             const Quantize parsed = parse_quantize(quantize);
             const auto file = GgufFile::open(path);
             return std::make_shared<Model>(std::make_shared<GgufTensors>(file),
                                            read_decoder_config(*file), num_threads, parsed);
           }),
           py::arg("path"), py::arg("num_threads") = 0, py::arg("quantize") = "none",
           py::call_guard<py::gil_scoped_release>())
      .def_static("from_checkpoint", &from_checkpoint, py::arg("config"), py::arg("files"),
                  py::arg("places"), py::arg("vector_offset"), py::arg("num_threads") = 0,
                  py::arg("quantize") = "none")
      .def("config", &config_dict)
      .def_property_readonly("num_threads", &Model::num_threads)
      .def("quantization", &model_quantization,
           "Name, type in the file, \"q4\", \"q8\" or \"none\", number of values, squares of "
           "errors and of values, largest error of every matrix. Packs the weights if nobody has.")
      .def("tensor_names", [](const Model& model) { return model.tensors().names(); })
      .def("tensor_values", &tensor_values, py::arg("name"),
           "The values of a tensor as float32, quantised first if the model is quantised at load.")
      .def("tensor_groups", &tensor_groups, py::arg("name"),
           "Type, codes (rows, columns) int8, scales (rows, columns / 32, bytes) and supers (rows, "
           "columns / 256, bytes) uint8 of a quantised matrix, as csrc/model/tensor_export.h has "
           "them; None for a tensor of floats.")
      .def("set_vocabulary",
           [](Model& model, std::vector<std::string> bytes, const std::vector<TokenId>& special,
              const std::vector<TokenId>& end_of_text) {
             model.set_vocabulary(
                 std::make_shared<Vocabulary>(std::move(bytes), special, end_of_text));
           },
           py::arg("token_bytes"), py::arg("special"), py::arg("end_of_text"));
}

}  // namespace flarecore
