#include "model/tensor_quantization.h"

#include "common/check.h"
#include "cpu/cpu_isa.h"

namespace flarecore {

PackedMatrix quantize_tensor(const std::string& shown, const TensorView& view, Quantize quantize,
                             PackMode mode, ThreadPool* pool, QuantizationError* error) {
  PackedMatrix matrix =
      PackedMatrix::pack_quantizing(view, quantize, mode, kernels(), pool, error);
  check(error->first_bad_row < 0, ErrorKind::kModelFile, shown, ": row ", error->first_bad_row,
        " holds a value that is not finite or beyond ", quantize_limit(quantize), ", which ",
        quantize_name(quantize), " cannot hold; load the model without quantize");
  return matrix;
}

}  // namespace flarecore
