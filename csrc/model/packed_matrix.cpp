#include "model/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "cpu/packed_layout.h"
#include "model/packed_groups.h"
#include "model/weight_memory.h"

namespace flarecore {
namespace {

WeightFormat format_of(GgmlType type, PackMode mode) {
  if (mode == PackMode::kFloat32) return WeightFormat::kF32;
  switch (type) {
    case GgmlType::kF32: return WeightFormat::kF32;
    case GgmlType::kF16: return WeightFormat::kF16;
    case GgmlType::kBF16: return WeightFormat::kBF16;
    case GgmlType::kQ4_0: return WeightFormat::kQ4_0;
    case GgmlType::kQ4_1: return WeightFormat::kQ4_1;
    case GgmlType::kQ4_K: return WeightFormat::kQ4_K;
    case GgmlType::kQ5_0: return WeightFormat::kQ5_0;
    case GgmlType::kQ5_1: return WeightFormat::kQ5_1;
    case GgmlType::kQ5_K: return WeightFormat::kQ5_K;
    case GgmlType::kQ8_0: return WeightFormat::kQ8_0;
    case GgmlType::kQ6_K: return WeightFormat::kQ6_K;
  }
  fail(ErrorKind::kInternal, "tensor type ", static_cast<uint32_t>(type),
       " has no run-time format");
}

GgmlType type_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return GgmlType::kF32;
    case WeightFormat::kF16: return GgmlType::kF16;
    case WeightFormat::kBF16: return GgmlType::kBF16;
    case WeightFormat::kQ4_0: return GgmlType::kQ4_0;
    case WeightFormat::kQ4_1: return GgmlType::kQ4_1;
    case WeightFormat::kQ4_K: return GgmlType::kQ4_K;
    case WeightFormat::kQ5_0: return GgmlType::kQ5_0;
    case WeightFormat::kQ5_1: return GgmlType::kQ5_1;
    case WeightFormat::kQ5_K: return GgmlType::kQ5_K;
    case WeightFormat::kQ8_0: return GgmlType::kQ8_0;
    case WeightFormat::kQ6_K: return GgmlType::kQ6_K;
  }
  fail(ErrorKind::kInternal, "unknown weight format ", static_cast<int>(format));
}

void pack_quantized_tile(const TensorView& source, const PackedView& w, int64_t tile,
                         uint8_t* tile_data) {
  const GgmlTypeInfo& info = ggml_type_info(source.type);
  const int64_t row_bytes = source.num_cols / info.block_values * info.block_size_bytes;
  std::memset(tile_data, 0, static_cast<size_t>(w.tile_size_bytes));
  const int64_t begin = tile * w.tile;
  const int channels = static_cast<int>(std::min<int64_t>(w.tile, source.num_rows - begin));
  GgmlGroup g;
  for (int c = 0; c < channels; ++c) {
    const uint8_t* row = source.data + (begin + c) * row_bytes;
    for (int64_t group = 0; group < source.num_cols / kGroupSize; ++group) {
      read_ggml_group(source.type, row, group, &g);
      store_group(g, fields_of(w, tile_data, group, c));
    }
  }
}

// Values of one channel, `tile` apart. The row may lie at any address.
template <typename T>
void scatter(const uint8_t* row, int64_t num_cols, int tile, uint8_t* out) {
  T value;
  for (int64_t k = 0; k < num_cols; ++k, row += sizeof(T), out += tile * sizeof(T)) {
    std::memcpy(&value, row, sizeof(T));
    std::memcpy(out, &value, sizeof(T));
  }
}

// `scratch` is (num_cols), used where the type changes.
void pack_float_tile(const TensorView& source, const PackedView& w, int64_t tile, float* scratch,
                     uint8_t* tile_data) {
  const GgmlTypeInfo& info = ggml_type_info(source.type);
  const int64_t row_bytes = source.num_cols / info.block_values * info.block_size_bytes;
  const int value_bytes = float_value_bytes(w.format);
  const bool keep = format_of(source.type, PackMode::kQuantized) == w.format;
  std::memset(tile_data, 0, static_cast<size_t>(w.tile_size_bytes));
  const int64_t begin = tile * w.tile;
  const int channels = static_cast<int>(std::min<int64_t>(w.tile, source.num_rows - begin));
  for (int c = 0; c < channels; ++c) {
    const uint8_t* row = source.data + (begin + c) * row_bytes;
    if (!keep) {
      dequantize(source.type, row, source.num_cols, scratch);
      row = reinterpret_cast<const uint8_t*>(scratch);
    }
    uint8_t* out = tile_data + c * value_bytes;
    if (value_bytes == 4) {
      scatter<uint32_t>(row, source.num_cols, w.tile, out);
    } else {
      scatter<uint16_t>(row, source.num_cols, w.tile, out);
    }
  }
}

// One row on its way from floats to a tile.
class QuantizedRow {
 public:
  explicit QuantizedRow(int64_t num_cols)
      : values_(static_cast<size_t>(num_cols)),
        restored_(values_.size()),
        groups_(values_.size() / kGroupSize) {}

  // False if a value is not finite or too large.
  bool read(const TensorView& source, int64_t row, Quantize quantize, const KernelTable& kernels,
            QuantizationError* error) {
    const int value_bytes = ggml_type_info(source.type).block_size_bytes;
    const int64_t num_cols = source.num_cols;
    dequantize(source.type, source.data + row * num_cols * value_bytes, num_cols, values_.data());
    const float limit = quantize_limit(quantize);
    for (const float value : values_) {
      if (std::fabs(value) <= limit) continue;  // false for NaN
      error->first_bad_row = row;
      return false;
    }
    const int64_t num_groups = static_cast<int64_t>(groups_.size());
    quantize_groups(quantize, kernels, values_.data(), num_groups, groups_.data());
    for (int64_t g = 0; g < num_groups; ++g) {
      restore_group(groups_[g], restored_.data() + g * kGroupSize);
    }
    error->measure(values_.data(), restored_.data(), num_cols);
    return true;
  }

  void store(const PackedView& w, int channel, uint8_t* tile_data) const {
    if (!is_quantized(w.format)) {
      scatter<float>(reinterpret_cast<const uint8_t*>(restored_.data()), w.num_cols, w.tile,
                     tile_data + channel * sizeof(float));
      return;
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      store_group(groups_[g], fields_of(w, tile_data, static_cast<int64_t>(g), channel));
    }
  }

 private:
  std::vector<float> values_, restored_;
  std::vector<GgmlGroup> groups_;
};

}  // namespace

void PackedMatrix::allocate(const TensorView& source, WeightFormat format, int tile) {
  const GgmlTypeInfo& info = ggml_type_info(source.type);
  check(source.num_rows > 0 && source.num_cols > 0, ErrorKind::kModelFile,
        "a weight matrix needs at least one row and column, got ", source.num_rows, " x ",
        source.num_cols);
  check(source.num_cols % info.block_values == 0, ErrorKind::kModelFile, info.name,
        " rows hold whole blocks of ", info.block_values, " values, got ", source.num_cols,
        " columns");
  check(tile > 0, ErrorKind::kInternal, "a tile needs at least one channel, got ", tile);
  PackedView& w = view_;
  w.format = format;
  w.num_rows = source.num_rows;
  w.num_cols = source.num_cols;
  w.tile = tile;
  w.tile_size_bytes = packed_tile_bytes(w.format, tile, source.num_cols);
  memory_ = allocate_weights(static_cast<size_t>(size_bytes()));
  w.data = memory_.get();
}

// Calls pack_tile(tile, memory of the tile, thread) for every tile.
template <typename F>
void PackedMatrix::for_tiles(ThreadPool* pool, F&& pack_tile) {
  const auto pack_one = [&](int64_t t, int thread) {
    pack_tile(t, memory_.get() + t * view_.tile_size_bytes, thread);
  };
  if (pool != nullptr) {
    pool->parallel_for(num_tiles(), pack_one);
  } else {
    for (int64_t t = 0; t < num_tiles(); ++t) pack_one(t, 0);
  }
}

PackedMatrix PackedMatrix::pack(const TensorView& source, PackMode mode, int tile,
                                ThreadPool* pool) {
  PackedMatrix matrix;
  matrix.allocate(source, format_of(source.type, mode), tile);
  const PackedView& w = matrix.view_;
  const int num_threads = pool != nullptr ? pool->num_threads() : 1;
  std::vector<float> scratch(static_cast<size_t>(num_threads * source.num_cols));
  matrix.for_tiles(pool, [&](int64_t tile_index, uint8_t* tile_data, int thread) {
    if (is_quantized(w.format)) {
      pack_quantized_tile(source, w, tile_index, tile_data);
    } else {
      pack_float_tile(source, w, tile_index, scratch.data() + thread * source.num_cols, tile_data);
    }
  });
  return matrix;
}

PackedMatrix PackedMatrix::pack_quantizing(const TensorView& source, Quantize quantize,
                                           PackMode mode, const KernelTable& kernels,
                                           ThreadPool* pool, QuantizationError* error) {
  check(source.num_cols % kGroupSize == 0, ErrorKind::kInternal, "rows of ", source.num_cols,
        " values cannot be quantised in groups of ", kGroupSize);
  PackedMatrix matrix;
  matrix.allocate(source, format_of(quantized_type(quantize), mode), kernels.tile);
  const PackedView& w = matrix.view_;
  const int num_threads = pool != nullptr ? pool->num_threads() : 1;
  std::vector<QuantizedRow> scratch(num_threads, QuantizedRow(source.num_cols));
  std::vector<QuantizationError> errors(static_cast<size_t>(source.num_rows));
  matrix.for_tiles(pool, [&](int64_t tile_index, uint8_t* tile_data, int thread) {
    std::memset(tile_data, 0, static_cast<size_t>(w.tile_size_bytes));
    const int64_t begin = tile_index * w.tile, end = std::min(begin + w.tile, source.num_rows);
    for (int64_t r = begin; r < end; ++r) {
      if (!scratch[thread].read(source, r, quantize, kernels, &errors[r])) continue;
      scratch[thread].store(w, static_cast<int>(r - begin), tile_data);
    }
  });
  for (const QuantizationError& row : errors) error->add(row);
  return matrix;
}

void PackedMatrix::dequantize_row(int64_t row, float* out) const {
  const PackedView& w = view_;
  const int channel = static_cast<int>(row % w.tile);
  uint8_t* tile_data = memory_.get() + row / w.tile * w.tile_size_bytes;
  if (is_quantized(w.format)) {
    for (int64_t group = 0; group < w.num_cols / kGroupSize; ++group) {
      load_group(fields_of(w, tile_data, group, channel), out + group * kGroupSize);
    }
    return;
  }
  const int value_bytes = float_value_bytes(w.format);
  for (int64_t k = 0; k < w.num_cols; ++k) {
    dequantize(type_of(w.format), tile_data + (k * w.tile + channel) * value_bytes, 1, out + k);
  }
}

void PackedMatrix::export_row(int64_t row, int8_t* codes, uint8_t* scales, uint8_t* supers) const {
  const PackedView& w = view_;
  uint8_t* tile_data = memory_.get() + row / w.tile * w.tile_size_bytes;
  constexpr int64_t kGroupsPerSuper = kSuperSize / kGroupSize;
  for (int64_t group = 0; group < w.num_cols / kGroupSize; ++group) {
    const GroupFields f = fields_of(w, tile_data, group, static_cast<int>(row % w.tile));
    int loaded[kGroupSize];
    load_codes(f, loaded);
    for (int i = 0; i < kGroupSize; ++i) *codes++ = static_cast<int8_t>(loaded[i]);
    const int field_bytes = f.layout.super_bytes > 0 ? 1 : 2;
    for (int field = 0; field < f.layout.scale_bytes / field_bytes; ++field) {
      std::memcpy(scales, f.scale_field(field, field_bytes), field_bytes);
      scales += field_bytes;
    }
    if (group % kGroupsPerSuper != 0) continue;
    for (int field = 0; field < f.layout.super_bytes / 2; ++field) {
      std::memcpy(supers, f.super_field(field), 2);
      supers += 2;
    }
  }
}

}  // namespace flarecore
