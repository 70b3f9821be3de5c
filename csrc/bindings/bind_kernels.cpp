// Bindings of the CPU level in force, and of the kernels as tests and benchmarks see them
// (`_C.testing`): numpy in, numpy out, any available level by name.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bind_kernels_testing.h"
#include "bindings/bindings.h"
#include "common/aligned_buffer.h"
#include "common/check.h"
#include "common/thread_pool.h"
#include "cpu/cpu_isa.h"
#include "cpu/kernel_tables.h"
#include "kv_cache/kv_slots.h"
#include "model/ggml_types.h"

namespace py = pybind11;

namespace flarecore {
namespace {

using ElementwiseFn = void (*)(const float*, const float*, int64_t, float*);

FloatArray apply_two(ElementwiseFn fn, const FloatArray& a, const FloatArray& b) {
  check(a.size() == b.size(), ErrorKind::kConfig, "both inputs need the same size, got ", a.size(),
        " and ", b.size());
  FloatArray y(a.size());
  fn(a.data(), b.data(), a.size(), y.mutable_data());
  return y;
}

FloatArray rmsnorm(const std::string& isa, const FloatArray& x, const FloatArray& weight,
                   float eps) {
  check(x.size() == weight.size(), ErrorKind::kConfig, "x and weight need the same size, got ",
        x.size(), " and ", weight.size());
  FloatArray y(x.size());
  table_of(isa).rmsnorm(x.data(), weight.data(), eps, x.size(), y.mutable_data());
  return y;
}

FloatArray layernorm(const std::string& isa, const FloatArray& x, const FloatArray& weight,
                     const FloatArray& bias, float eps) {
  check(x.size() == weight.size() && x.size() == bias.size(), ErrorKind::kConfig,
        "x, weight and bias need the same size, got ", x.size(), ", ", weight.size(), ", ",
        bias.size());
  FloatArray y(x.size());
  table_of(isa).layernorm(x.data(), weight.data(), bias.data(), eps, x.size(), y.mutable_data());
  return y;
}

FloatArray gelu_erf(const std::string& isa, const FloatArray& x) {
  FloatArray y(x.size());
  table_of(isa).gelu_erf(x.data(), x.size(), y.mutable_data());
  return y;
}

FloatArray add(const std::string& isa, const FloatArray& x, const FloatArray& y) {
  check(x.size() == y.size(), ErrorKind::kConfig, "both inputs need the same size, got ", x.size(),
        " and ", y.size());
  FloatArray out(y.size());
  std::copy(y.data(), y.data() + y.size(), out.mutable_data());
  table_of(isa).add(x.data(), x.size(), out.mutable_data());
  return out;
}

py::array_t<uint16_t> to_float16(const std::string& isa, const FloatArray& x) {
  py::array_t<uint16_t> y(x.size());
  table_of(isa).to_float16(x.data(), x.size(), y.mutable_data());
  return y;
}

std::vector<QuantizedGroup> groups_for(const FloatArray& x) {
  check(x.size() % kGroupSize == 0, ErrorKind::kConfig, "a row needs a multiple of ", kGroupSize,
        " values, got ", x.size());
  return std::vector<QuantizedGroup>(static_cast<size_t>(x.size() / kGroupSize));
}

// q + shift (n) int16, scale (n / 32), sums (n / 32, 2) over the group and its first half, shift
// (n / 32).
py::tuple group_arrays(const std::vector<QuantizedGroup>& groups) {
  const auto num_groups = static_cast<py::ssize_t>(groups.size());
  py::array_t<int16_t> q(num_groups * kGroupSize);
  py::array_t<int32_t> shift(num_groups);
  FloatArray scale(num_groups), sums({num_groups, py::ssize_t{2}});
  int16_t* out = q.mutable_data();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const int8_t value : groups[g].q) *out++ = static_cast<int16_t>(value + groups[g].shift);
    shift.mutable_data()[g] = groups[g].shift;
    scale.mutable_data()[g] = groups[g].scale;
    sums.mutable_data()[2 * g] = groups[g].sum;
    sums.mutable_data()[2 * g + 1] = groups[g].first_half_sum;
  }
  return py::make_tuple(q, scale, sums, shift);
}

py::tuple quantize_row(const std::string& isa, const FloatArray& x) {
  std::vector<QuantizedGroup> groups = groups_for(x);
  table_of(isa).quantize_row(x.data(), x.size(), groups.data());
  return group_arrays(groups);
}

py::tuple rmsnorm_quantize(const std::string& isa, const FloatArray& x, const FloatArray& weight,
                           float eps) {
  check(weight.size() == x.size(), ErrorKind::kConfig, "x and weight differ in size");
  std::vector<QuantizedGroup> groups = groups_for(x);
  table_of(isa).rmsnorm_quantize(x.data(), weight.data(), eps, x.size(), groups.data());
  return group_arrays(groups);
}

py::tuple logit_stats(const std::string& isa, const FloatArray& logits,
                      float inverse_temperature) {
  check(logits.size() >= 1, ErrorKind::kConfig, "logits must not be empty");
  LogitStats s;
  table_of(isa).logit_stats(logits.data(), logits.size(), inverse_temperature, &s);
  return py::make_tuple(s.max, s.argmax, s.sum, s.sum_scaled);
}

int num_converted = 0;  // blocks that attention has made float32

// Blocks of one head in kInt16, from k (blocks, head_dim, 32) and v (blocks, 32, head_dim).
struct WordBlocks {
  std::vector<AlignedBuffer> memory;

  WordBlocks(const KernelTable& kernels, const FloatArray& k, const FloatArray& v) {
    const int head_dim = static_cast<int>(k.shape(1));
    const KvLayout layout{1, 1, head_dim, KvFormat::kInt16};
    std::vector<float> key(static_cast<size_t>(head_dim));
    for (py::ssize_t b = 0; b < k.shape(0); ++b) {
      memory.emplace_back();
      memory.back().grow(layout.block_size_bytes());
      for (int slot = 0; slot < kBlockTokens; ++slot) {
        for (int d = 0; d < head_dim; ++d) key[static_cast<size_t>(d)] = *k.data(b, d, slot);
        store_key(layout, kernels, key.data(), slot, memory.back().data());
        store_value(layout, kernels, v.data(b, slot, 0), slot,
                    memory.back().data() + layout.v_offset(0, 0));
      }
    }
  }
  const void* k(size_t block) const { return memory[block].data(); }
  const void* v(size_t block, int head_dim) const {
    return memory[block].data() + kv_head_bytes(KvFormat::kInt16, head_dim);
  }
};

// q (rows, heads, head_dim), k (blocks, head_dim, 32), v (blocks, 32, head_dim), one KV head.
template <typename T, bool InWords>
py::tuple attention(const std::string& isa, const FloatArray& q, const Array<T>& k,
                    const Array<T>& v, const Array<int32_t>& first_visible,
                    const Array<int32_t>& end_visible, int block_begin, int block_end,
                    float scale, bool in_tiles) {
  check(q.ndim() == 3 && k.ndim() == 3 && v.ndim() == 3, ErrorKind::kConfig,
        "q, k and v need three dimensions");
  const py::ssize_t rows = q.shape(0), heads = q.shape(1), dim = q.shape(2);
  check(rows >= 1 && rows <= kMaxAttentionRows && heads >= 1 && heads <= kMaxGroupHeads &&
            dim % 8 == 0 && dim >= 8 && dim <= kMaxHeadDim,
        ErrorKind::kConfig, "unsupported query shape");
  check(k.shape(1) == dim && k.shape(2) == kBlockTokens && v.shape(1) == kBlockTokens &&
            v.shape(2) == dim && v.shape(0) == k.shape(0),
        ErrorKind::kConfig, "k and v do not match q and the block layout");
  check(first_visible.size() == rows && end_visible.size() == rows && block_begin >= 0 &&
            block_end <= k.shape(0),
        ErrorKind::kConfig, "visible ranges or block range do not match");
  std::vector<const void*> k_blocks, v_blocks;
  std::optional<WordBlocks> words;
  if constexpr (InWords) words.emplace(table_of(isa), k, v);
  for (py::ssize_t b = 0; b < k.shape(0); ++b) {
    const size_t i = static_cast<size_t>(b);
    k_blocks.push_back(words ? words->k(i) : k.data(b, 0, 0));
    v_blocks.push_back(words ? words->v(i, static_cast<int>(dim)) : v.data(b, 0, 0));
  }
  const KvFormat format = InWords          ? KvFormat::kInt16
                          : sizeof(T) == 2 ? KvFormat::kFloat16
                                           : KvFormat::kFloat32;
  FloatArray out({rows, heads, dim}), row_max({rows, heads}), row_sum({rows, heads});
  AttentionArgs args{q.data(), heads * dim, static_cast<int>(rows), static_cast<int>(heads),
                     static_cast<int>(dim), scale, format, k_blocks.data(),
                     v_blocks.data(), block_begin, block_end, first_visible.data(),
                     end_visible.data(), out.mutable_data(), row_max.mutable_data(),
                     row_sum.mutable_data()};
  AlignedBuffer scratch;
  scratch.grow(static_cast<size_t>(table_of(isa).attention_scratch_bytes));
  args.in_tiles = in_tiles;
  args.scratch = scratch.data();
  args.num_converted = &num_converted;
  table_of(isa).attention(args);
  return py::make_tuple(out, row_max, row_sum);
}

// (words (n), what a step stands for)
py::tuple words_of(const std::string& isa, const FloatArray& x, bool by_norm) {
  check(x.ndim() == 1 && x.size() >= 1 && x.size() <= kMaxHeadDim, ErrorKind::kConfig,
        "x must have 1 to ", kMaxHeadDim, " numbers");
  const KernelTable& kernels = table_of(isa);
  int16_t words[kMaxHeadDim];
  const float step = (by_norm ? kernels.words_by_norm : kernels.words_by_peak)(x.data(), x.size(),
                                                                               words);
  return py::make_tuple(Array<int16_t>(x.size(), words), step);
}

void bind_elementwise(py::module_& t) {
  t.def("rmsnorm", &rmsnorm, py::arg("isa"), py::arg("x"), py::arg("weight"), py::arg("eps"));
  t.def("layernorm", &layernorm, py::arg("isa"), py::arg("x"), py::arg("weight"), py::arg("bias"),
        py::arg("eps"));
  t.def("silu_mul", [](const std::string& isa, const FloatArray& gate, const FloatArray& up) {
    return apply_two(table_of(isa).silu_mul, gate, up);
  });
  t.def("gelu_tanh_mul", [](const std::string& isa, const FloatArray& gate, const FloatArray& up) {
    return apply_two(table_of(isa).gelu_tanh_mul, gate, up);
  });
  t.def("gelu_erf", &gelu_erf);
#ifdef FLARECORE_X86
  t.def("num_amx_products", &num_amx_products);
  t.def("num_amx_bands", &num_amx_bands, py::arg("in_units"));
#endif
  t.def("add", &add);
  t.def("to_float16", &to_float16);
  t.def("words_of", &words_of, py::arg("isa"), py::arg("x"), py::arg("by_norm"));
  t.def("quantize_row", &quantize_row);
  t.def("rmsnorm_quantize", &rmsnorm_quantize);
  t.def("logit_stats", &logit_stats, py::arg("isa"), py::arg("logits"),
        py::arg("inverse_temperature") = 1.0f);
}

}  // namespace

CpuIsa isa_of_name(const std::string& name) {
  for (CpuIsa isa : available_isas()) {
    if (name == isa_name(isa)) return isa;
  }
  fail(ErrorKind::kUnsupported, "CPU level '", name, "' is not available on this machine");
}

const KernelTable& table_of(const std::string& isa) { return kernels_of(isa_of_name(isa)); }

GgmlType ggml_type_of_name(const std::string& name) {
  for (uint32_t id = 0; id < 64; ++id) {
    const GgmlTypeInfo* info = find_ggml_type(id);
    if (info != nullptr && name == info->name) return static_cast<GgmlType>(id);
  }
  fail(ErrorKind::kConfig, "unknown tensor type '", name, "'");
}

void bind_kernels(py::module_& m) {
  m.def("cpu_isa", [] { return isa_name(active_isa()); }, "CPU level in force.");
  m.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (CpuIsa isa : available_isas()) names.push_back(isa_name(isa));
        return names;
      },
      "CPU levels that this machine can run, lowest first.");
  m.def("usable_num_threads", &usable_num_threads,
        "Threads this process may really use: CPU affinity and cgroup quota.");

  py::module_ t = m.def_submodule("testing", "Kernels one by one, for tests and benchmarks.");
  t.def(
      "choose_isa",
      [](const std::string& wanted, const std::vector<std::string>& available) {
        std::vector<CpuIsa> isas;
        for (const std::string& name : available) isas.push_back(isa_of_name(name));
        return isa_name(choose_isa(wanted.c_str(), isas));
      },
      "The level FLARECORE_CPU_ISA=wanted gives on a machine that has `available`.");
  bind_elementwise(t);
  const auto def_attention = [&](const char* name, auto function) {
    t.def(name, function, py::arg("isa"), py::arg("q"), py::arg("k"), py::arg("v"),
          py::arg("first_visible"), py::arg("end_visible"), py::arg("block_begin"),
          py::arg("block_end"), py::arg("scale"), py::arg("in_tiles") = false);
  };
  def_attention("attention", &attention<float, false>);
  def_attention("attention_float16", &attention<uint16_t, false>);
  def_attention("attention_int16", &attention<float, true>);
  t.def("num_converted_blocks", [] { return num_converted; });
  bind_matrix_testing(t);
}

}  // namespace flarecore
