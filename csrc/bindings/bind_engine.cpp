// Model, engine, sequences and operations.
//
// Every call that may wait releases the GIL. Waiting for an operation looks for signals between
// short waits, so that Ctrl-C gets through.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "bindings/engine_handles.h"
#include "common/check.h"
#include "engine/retired_workers.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

std::shared_ptr<Operation> submit(const SequenceHandle& handle, OperationRequest request) {
  py::gil_scoped_release no_gil;
  return handle.engine().submit(handle.sequence(), std::move(request));
}

std::shared_ptr<Operation> submit_extend(const SequenceHandle& handle, std::vector<TokenId> ids,
                                         std::optional<double> deadline_ms) {
  OperationRequest request;
  request.kind = OperationKind::kExtend;
  request.token_ids = std::move(ids);
  request.deadline_ms = deadline_ms;
  return submit(handle, std::move(request));
}

std::shared_ptr<Operation> submit_encode(const SequenceHandle& handle, std::vector<TokenId> ids,
                                         std::optional<double> deadline_ms) {
  OperationRequest request;
  request.token_ids = std::move(ids);
  request.deadline_ms = deadline_ms;
  py::gil_scoped_release no_gil;
  return handle.engine().encode(*handle.sequence(), std::move(request));
}

std::shared_ptr<Operation> submit_score(const SequenceHandle& handle, std::vector<TokenId> ids,
                                        float beta, std::optional<double> deadline_ms) {
  OperationRequest request;
  request.kind = OperationKind::kScore;
  request.token_ids = std::move(ids);
  request.decode.beta = beta;
  request.deadline_ms = deadline_ms;
  return submit(handle, std::move(request));
}

std::shared_ptr<Operation> submit_decode(const SequenceHandle& handle, std::vector<TokenId> ids,
                                         int max_tokens, const py::dict& sampling,
                                         bool until_sentence, bool ignore_eos,
                                         std::vector<std::string> stop, float beta,
                                         float stop_below, bool stop_at_punctuation,
                                         uint32_t pass_index, std::vector<TokenId> proposal,
                                         std::vector<TokenId> lookup,
                                         std::optional<double> deadline_ms) {
  OperationRequest request;
  request.kind = OperationKind::kDecode;
  request.token_ids = std::move(ids);
  request.proposal = std::move(proposal);
  request.lookup = std::move(lookup);
  request.decode.max_tokens = max_tokens;
  request.decode.sampling = sampling_from_dict(sampling);
  request.decode.pass = pass_index;
  request.decode.until_sentence = until_sentence;
  request.decode.ignore_eos = ignore_eos;
  request.decode.stop = std::move(stop);
  request.decode.beta = beta;
  request.decode.stop_below = stop_below;
  request.decode.stop_at_punctuation = stop_at_punctuation;
  request.deadline_ms = deadline_ms;
  return submit(handle, std::move(request));
}

// True when done; looks for signals every 50 ms. A completed operation wakes it at once.
bool wait(const Operation& operation, std::optional<double> timeout_ms) {
  double left = timeout_ms.value_or(-1.0);
  while (true) {
    const double slice = left < 0.0 ? 50.0 : std::min(left, 50.0);
    bool done;
    {
      py::gil_scoped_release no_gil;
      done = operation.wait_for(slice);
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (left >= 0.0 && (left -= slice) <= 0.0) return false;
  }
}

void on_done(Operation& operation, py::function callback) {
  // The last copy may die on the worker thread: the deleter takes the GIL.
  std::shared_ptr<py::function> shared(new py::function(std::move(callback)),
                                       [](py::function* function) {
                                         py::gil_scoped_acquire gil;
                                         delete function;
                                       });
  py::gil_scoped_release no_gil;
  operation.on_done([shared] {
    py::gil_scoped_acquire gil;
    try {
      (*shared)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("flarecore operation callback");
    }
  });
}

template <typename T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::dict result_dict(const Operation& operation) {
  const OperationResult& r = operation.result();
  const OperationStats& s = r.stats;
  py::dict stats(py::arg("num_reused") = s.num_reused, py::arg("num_prefilled") = s.num_prefilled,
                 py::arg("num_decoded") = s.num_decoded, py::arg("num_proposed") = s.num_proposed,
                 py::arg("num_accepted") = s.num_accepted, py::arg("num_steps") = s.num_steps,
                 py::arg("time_ms") = s.time_ms);
  return py::dict(py::arg("token_ids") = py::tuple(py::cast(r.token_ids)),
                  py::arg("probs") = to_array(r.probs),
                  py::arg("mask") = to_array(r.mask).attr("astype")("bool"),
                  py::arg("min_prob") = r.min_prob,
                  py::arg("eos_prob") = r.end_of_text_prob < 0.0f
                                            ? py::object(py::none())
                                            : py::object(py::float_(r.end_of_text_prob)),
                  py::arg("text_bytes") = py::bytes(r.text),
                  py::arg("stop_reason") = stop_reason_name(r.stop_reason),
                  py::arg("passage") = r.passage == nullptr ? py::object(py::none())
                                                            : py::cast(PassageHandle{r.passage}),
                  py::arg("stats") = stats);
}

py::dict stats_dict(const EngineHandle& engine) {
  EngineStats s;
  {
    py::gil_scoped_release no_gil;
    s = engine->stats();
  }
  return py::dict(py::arg("num_blocks") = s.num_blocks, py::arg("num_held_blocks") = s.num_held_blocks,
                  py::arg("num_cached_blocks") = s.num_cached_blocks,
                  py::arg("block_size_bytes") = s.block_size_bytes,
                  py::arg("weights_size_bytes") = s.weights_size_bytes,
                  py::arg("num_sequences") = s.num_sequences, py::arg("num_steps") = s.num_steps,
                  py::arg("num_rows") = s.num_rows);
}

KvFormat kv_format_of_name(const std::string& name) {
  for (KvFormat format : {KvFormat::kFloat32, KvFormat::kFloat16, KvFormat::kInt16}) {
    if (name == kv_format_name(format)) return format;
  }
  fail(ErrorKind::kConfig, "unknown kv_format '", name, "'; known: float32, float16, int16");
}

void bind_operation(py::module_& m) {
  py::class_<Operation, std::shared_ptr<Operation>>(m, "Operation")
      .def("is_done", &Operation::is_done, NoGil())
      .def("cancel", &Operation::cancel)
      .def("wait", &wait, py::arg("timeout_ms") = py::none())
      .def("on_done", &on_done, py::arg("callback"))
      .def("result", &result_dict);
}

void bind_sequence(py::module_& m) {
  py::class_<Checkpoint, std::shared_ptr<Checkpoint>>(m, "Checkpoint")
      .def_property_readonly("num_tokens", [](const Checkpoint& c) { return c.tokens.size(); });
  py::class_<SequenceHandle, std::shared_ptr<SequenceHandle>>(m, "Sequence")
      .def_property_readonly("num_tokens",
                             py::cpp_function([](const SequenceHandle& h) {
                               return h.engine().num_tokens(*h.sequence());
                             }, NoGil()))
      .def_property_readonly("num_head",
                             py::cpp_function([](const SequenceHandle& h) {
                               return h.engine().num_head_and_reserved(*h.sequence()).first;
                             }, NoGil()))
      .def_property_readonly("num_reserved",
                             py::cpp_function([](const SequenceHandle& h) {
                               return h.engine().num_head_and_reserved(*h.sequence()).second;
                             }, NoGil()))
      .def("token_ids", [](const SequenceHandle& h) { return h.engine().token_ids(*h.sequence()); },
           NoGil())
      .def("truncate",
           [](const SequenceHandle& h, int n) { h.engine().truncate(h.sequence().get(), n); },
           py::arg("num_tokens"), NoGil())
      .def("checkpoint",
           [](const SequenceHandle& h) { return h.engine().checkpoint(*h.sequence()); }, NoGil())
      .def("rollback",
           [](const SequenceHandle& h, const Checkpoint& checkpoint) {
             h.engine().rollback(h.sequence().get(), checkpoint);
           },
           py::arg("checkpoint"), NoGil())
      .def("fork",
           [](const SequenceHandle& h) {
             return std::make_shared<SequenceHandle>(h.engine_pointer(),
                                                     h.engine().fork(*h.sequence()));
           },
           NoGil())
      .def("attach",
           [](const SequenceHandle& h, const std::vector<PassageHandle>& handles, int sees_from) {
             Passages passages;
             for (const PassageHandle& handle : handles) passages.push_back(handle.passage);
             h.engine().attach(h.sequence().get(), passages, sees_from);
           },
           py::arg("passages"), py::arg("sees_from"), NoGil())
      .def("encode", &submit_encode, py::arg("token_ids"), py::arg("deadline_ms") = py::none())
      .def("close", [](const SequenceHandle& h) { h.engine().close(h.sequence()); }, NoGil())
      .def("extend", &submit_extend, py::arg("token_ids"), py::arg("deadline_ms") = py::none())
      .def("score", &submit_score, py::arg("token_ids"), py::arg("beta") = 0.0f,
           py::arg("deadline_ms") = py::none())
      .def("decode", &submit_decode, py::arg("token_ids"), py::arg("max_tokens"),
           py::arg("sampling"), py::arg("until_sentence"), py::arg("ignore_eos"), py::arg("stop"),
           py::arg("beta"), py::arg("stop_below"), py::arg("stop_at_punctuation"),
           py::arg("pass_index"), py::arg("proposal"), py::arg("lookup"),
           py::arg("deadline_ms"));
}

}  // namespace

void bind_engine(py::module_& m) {
  m.def("join_retired_workers", &join_retired_workers, NoGil(),
        "Waits for workers whose engines were ended by a callback on themselves.");
  bind_passage(m);
  bind_operation(m);
  bind_sequence(m);
  py::class_<EngineHandle>(m, "Engine")
      .def(py::init([](std::shared_ptr<Model> model, int64_t kv_cache_bytes, bool int8,
                       bool reference_sampler, int max_batch_tokens, bool preallocate,
                       const std::optional<std::string>& kv_format) {
             EngineOptions options;
             options.kv_cache_bytes = kv_cache_bytes;
             options.compute = int8 ? ComputeMode::kInt8 : ComputeMode::kFloat32;
             options.sampler = reference_sampler ? SamplerKind::kReference : SamplerKind::kFused;
             options.max_batch_tokens = max_batch_tokens;
             options.preallocate = preallocate;
             if (kv_format) options.kv_format = kv_format_of_name(*kv_format);
             return std::make_unique<EngineHandle>(std::move(model), options);
           }),
           py::arg("model"), py::arg("kv_cache_bytes"), py::arg("int8"),
           py::arg("reference_sampler"), py::arg("max_batch_tokens"), py::arg("preallocate"),
           py::arg("kv_format") = py::none(), NoGil())
      .def("sequence",
           [](const EngineHandle& e, int num_head, int num_reserved) {
             return std::make_shared<SequenceHandle>(e.pointer(),
                                                     e->open_sequence(num_head, num_reserved));
           },
           py::arg("num_head") = 0, py::arg("num_reserved") = 0, NoGil())
      .def("load_passage", &load_passage, py::arg("file"), py::arg("offset"), py::arg("size_bytes"),
           py::arg("head_ids"), py::arg("token_ids"), NoGil())
      .def("check_integrity", [](const EngineHandle& e) { e->check_integrity(); }, NoGil())
      .def("stats", &stats_dict)
      .def_property_readonly("kv_format",
                             [](const EngineHandle& e) { return kv_format_name(e->kv_format()); })
      .def("close", [](const EngineHandle& e) { e->shutdown(); }, NoGil());
}

}  // namespace flarecore
