// What an engine on another device shares with the one here: the text side of a decode, proposals,
// and what a forward pass must know of a model.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "common/check.h"
#include "engine/decode_state.h"
#include "engine/proposer.h"
#include "model/model.h"

namespace py = pybind11;

namespace flarecore {
namespace {

// The state refers to its options and to the model's vocabulary: they live beside it.
class DecodeStateObject {
 public:
  DecodeStateObject(std::shared_ptr<Model> model, DecodeOptions options)
      : model_(std::move(model)),
        options_(std::move(options)),
        state_(options_, model_->vocabulary()) {}
  DecodeStateObject(const DecodeStateObject&) = delete;

  // Takes tokens until the decode is over; how many of them.
  size_t accept(const std::vector<TokenId>& tokens, const std::vector<float>& probs) {
    check(tokens.size() == probs.size(), ErrorKind::kConfig, tokens.size(), " tokens with ",
          probs.size(), " confidences");
    size_t taken = 0;
    while (taken < tokens.size() && !state_.finished()) {
      check(tokens[taken] >= 0 && tokens[taken] < model_->vocabulary().size(), ErrorKind::kConfig,
            "token id ", tokens[taken], " is not in the vocabulary");
      state_.accept({tokens[taken], probs[taken]});
      ++taken;
    }
    return taken;
  }
  DecodeState& state() { return state_; }

 private:
  std::shared_ptr<Model> model_;
  DecodeOptions options_;
  DecodeState state_;
};

py::list pairs(const std::vector<Sampled>& sampled) {
  py::list out;
  for (const Sampled& s : sampled) out.append(py::make_tuple(s.token, s.prob));
  return out;
}

std::unique_ptr<DecodeStateObject> make_state(std::shared_ptr<Model> model, int max_tokens,
                                              bool until_sentence, bool ignore_eos,
                                              std::vector<std::string> stop, float stop_below,
                                              bool stop_at_punctuation) {
  for (const std::string& text : stop) {
    check(!text.empty(), ErrorKind::kConfig, "an empty stop string would end every decode");
  }
  check(max_tokens >= 1, ErrorKind::kConfig, "max_tokens must be >= 1, got ", max_tokens);
  DecodeOptions options;
  options.max_tokens = max_tokens;
  options.until_sentence = until_sentence;
  options.ignore_eos = ignore_eos;
  options.stop = std::move(stop);
  options.stop_below = stop_below;
  options.stop_at_punctuation = stop_at_punctuation;
  return std::make_unique<DecodeStateObject>(std::move(model), std::move(options));
}

void bind_state(py::module_& m) {
  using Object = DecodeStateObject;
  py::class_<Object>(m, "DecodeState",
                     "Takes sampled tokens and knows when the sentence is over.")
      .def(py::init(&make_state), py::arg("model"), py::arg("max_tokens"),
           py::arg("until_sentence"), py::arg("ignore_eos"), py::arg("stop"),
           py::arg("stop_below"), py::arg("stop_at_punctuation"))
      .def("accept", &Object::accept, py::arg("tokens"), py::arg("probs"))
      .def("end_at_context", [](Object& o) { o.state().end_at_context(); })
      .def("tokens", [](Object& o) { return pairs(o.state().tokens()); })
      .def("held", [](Object& o) { return pairs(o.state().held()); })
      .def_property_readonly("num_tokens", [](Object& o) { return o.state().tokens().size(); })
      .def_property_readonly("num_kept", [](Object& o) { return o.state().num_kept(); })
      .def_property_readonly("is_finished", [](Object& o) { return o.state().finished(); })
      .def_property_readonly("is_looking_ahead",
                             [](Object& o) { return o.state().is_looking_ahead(); })
      .def_property_readonly("stop_reason",
                             [](Object& o) { return stop_reason_name(o.state().reason()); })
      .def_property_readonly("text", [](Object& o) { return py::bytes(o.state().text()); });
}

void bind_proposer(py::module_& m) {
  py::class_<Proposer>(m, "Proposer", "Guesses for speculative decoding (design, 3.6).")
      .def(py::init<std::vector<TokenId>, const std::vector<std::vector<TokenId>>&>(),
           py::arg("draft"), py::arg("sources"))
      .def("propose",
           [](Proposer& proposer, const std::vector<TokenId>& tokens, int num_sampled,
              int max_tokens) {
             check(num_sampled >= 0 && static_cast<size_t>(num_sampled) <= tokens.size(),
                   ErrorKind::kConfig, num_sampled, " sampled tokens among ", tokens.size());
             const auto guess = proposer.propose(tokens, num_sampled, max_tokens);
             return std::vector<TokenId>(guess.begin(), guess.end());
           },
           py::arg("tokens"), py::arg("num_sampled"), py::arg("max_tokens"))
      .def("report", &Proposer::report, py::arg("num_proposed"), py::arg("num_accepted"));
}

py::array_t<float> frequencies(const RotaryConfig& rotary) {
  return py::array_t<float>(static_cast<py::ssize_t>(rotary.inverse_frequency.size()),
                            rotary.inverse_frequency.data());
}

py::dict model_details(const Model& model) {
  const DecoderConfig& c = model.config();
  py::list rotaries, layers;
  for (const RotaryConfig& rotary : c.rotaries) rotaries.append(frequencies(rotary));
  for (const LayerConfig& layer : c.layers) {
    layers.append(py::make_tuple(layer.window, layer.rotary));
  }
  return py::dict(py::arg("rotary_dim") = c.rotary_dim, py::arg("norm_eps") = c.norm_eps,
                  py::arg("attention_scale") = c.attention_scale,
                  py::arg("embedding_scale") = c.embedding_scale,
                  py::arg("is_gelu") = c.activation == Activation::kGeluTanh,
                  py::arg("tied_head") = c.tied_head,
                  py::arg("rotates_neighbours") = c.rotates_neighbours,
                  py::arg("has_qkv_bias") = c.has_qkv_bias,
                  py::arg("has_output_bias") = c.has_output_bias,
                  py::arg("norms_heads") = c.norms_heads,
                  py::arg("norms_outputs") = c.norms_outputs, py::arg("rotaries") = rotaries,
                  py::arg("layers") = layers);
}

}  // namespace

void bind_decode_parts(py::module_& m) {
  bind_state(m);
  bind_proposer(m);
  m.def("model_details", &model_details, py::arg("model"),
        "What the forward pass needs beyond Model.config(): numbers, flags, `rotaries` (one "
        "(rotary_dim / 2,) float32 array of radians per position each) and `layers` (pairs of "
        "window and index of the rotary).");
}

}  // namespace flarecore
