#include "model/tensor_export.h"

#include "common/check.h"
#include "cpu/cpu_isa.h"
#include "cpu/packed_layout.h"
#include "model/decoder_weights.h"

namespace flarecore {

TensorExport::TensorExport(const DecoderTensors& tensors, const std::string& name,
                           Quantize quantize, ThreadPool* pool)
    : tensor_(tensors.require(name)), type_(tensor_.type), pool_(pool) {
  if (tensor_.shape.size() != 2) return;
  const TensorView view{tensor_.type, tensor_.data, tensor_.shape[0], tensor_.shape[1]};
  const Quantize wanted = quantization_of(name, view, quantize);
  if (wanted != Quantize::kNone) {
    QuantizationError error;
    packed_ = quantize_tensor(tensor_.shown, view, wanted, PackMode::kQuantized, pool, &error);
    type_ = quantized_type(wanted);
  } else if (ggml_type_info(tensor_.type).block_values > 1) {
    packed_ = PackedMatrix::pack(view, PackMode::kQuantized, kernels().tile, pool);
  }
  if (packed_.num_rows() > 0) groups_per_row_ = view.num_cols / kGroupSize;
}

template <typename F>
void TensorExport::for_rows(F&& work) const {
  const int64_t num_rows = tensor_.shape[0];
  if (pool_ != nullptr) {
    pool_->parallel_for(num_rows, [&](int64_t row, int) { work(row); });
  } else {
    for (int64_t row = 0; row < num_rows; ++row) work(row);
  }
}

void TensorExport::values(float* out) const {
  if (tensor_.shape.size() != 2) {
    int64_t size = 1;
    for (const int64_t n : tensor_.shape) size *= n;
    dequantize(tensor_.type, tensor_.data, size, out);
    for (int64_t i = 0; i < size; ++i) out[i] += tensor_.offset;
    return;
  }
  const int64_t num_cols = tensor_.shape[1];
  if (is_quantized()) {
    for_rows([&](int64_t row) { packed_.dequantize_row(row, out + row * num_cols); });
    return;
  }
  const int64_t row_bytes = num_cols * ggml_type_info(type_).block_size_bytes;
  for_rows([&](int64_t row) {
    dequantize(type_, tensor_.data + row * row_bytes, num_cols, out + row * num_cols);
  });
}

int TensorExport::scale_bytes() const {
  return packed_layout(packed_.view().format).scale_bytes;
}

int TensorExport::super_bytes() const {
  return packed_layout(packed_.view().format).super_bytes;
}

void TensorExport::groups(int8_t* codes, uint8_t* scales, uint8_t* supers) const {
  check(is_quantized(), ErrorKind::kInternal, tensor_.shown, " has no groups");
  const int64_t num_cols = tensor_.shape[1];
  const int64_t row_scales = groups_per_row_ * scale_bytes();
  const int64_t row_supers = num_cols / kSuperSize * super_bytes();
  for_rows([&](int64_t row) {
    packed_.export_row(row, codes + row * num_cols, scales + row * row_scales,
                       supers + row * row_supers);
  });
}

}  // namespace flarecore
