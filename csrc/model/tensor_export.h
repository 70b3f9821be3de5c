// One tensor of a model for another device: its values, or its groups without their interleaving.
#pragma once

#include <string>

#include "model/decoder_tensors.h"
#include "model/packed_matrix.h"

namespace flarecore {

class TensorExport {
 public:
  // A matrix that `quantize` is for is quantised here, as DecoderWeights::load does it. Raises
  // ModelFileError if the tensor is missing or cannot be quantised. `pool` may be null.
  TensorExport(const DecoderTensors& tensors, const std::string& name, Quantize quantize,
               ThreadPool* pool);

  const std::vector<int64_t>& shape() const { return tensor_.shape; }
  GgmlType type() const { return type_; }  // after quantising
  bool is_quantized() const { return groups_per_row_ > 0; }

  // The values, with a vector's offset, (product of the shape).
  void values(float* out) const;

  // Of a quantised matrix with `rows` = shape()[0]: bytes per group and per 256 values (0: none).
  int scale_bytes() const;
  int super_bytes() const;
  // codes (rows, cols) as the kernels read them: signed for 8 bits, else unsigned; scales (rows,
  // cols / 32, scale_bytes) and supers (rows, cols / 256, super_bytes): the stored numbers, fields
  // in the order of cpu/packed_layout.h.
  void groups(int8_t* codes, uint8_t* scales, uint8_t* supers) const;

 private:
  template <typename F>
  void for_rows(F&& work) const;

  DecoderTensor tensor_;
  GgmlType type_;
  int64_t groups_per_row_ = 0;
  PackedMatrix packed_;  // empty for values that lie in the file as they are wanted
  ThreadPool* pool_;
};

}  // namespace flarecore
