#include "model/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "cpu/half.h"
#include "cpu/packed_layout.h"
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

// Addresses of the fields of one channel in one group of a tile.
struct GroupFields {
  PackedLayout layout;
  int tile;
  uint8_t* codes;   // of the group; vectors of tile * 4 bytes
  uint8_t* scales;  // of the group
  uint8_t* supers;  // of the group's 256 inputs
  int channel;

  uint8_t* code_byte(int vector, int i) const {
    return codes + (vector * tile + channel) * 4 + i;
  }
  uint8_t* scale_field(int field, int size) const {
    return scales + (field * tile + channel) * size;
  }
  uint8_t* super_field(int field) const { return supers + (field * tile + channel) * 2; }
};

GroupFields fields_of(const PackedView& w, uint8_t* tile_data, int64_t group, int channel) {
  const PackedLayout layout = packed_layout(w.format);
  const int64_t super = group / (kSuperSize / kGroupSize);
  return {layout,
          w.tile,
          tile_data + group * layout.code_bytes * w.tile,
          tile_data + scales_offset(layout, w.tile, w.num_cols) +
              group * layout.scale_bytes * w.tile,
          tile_data + supers_offset(layout, w.tile, w.num_cols) +
              super * layout.super_bytes * w.tile,
          channel};
}

void store_codes(const uint8_t* codes, const GroupFields& f) {
  const int bits = f.layout.bits;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 4; ++i) {
      const int code = codes[4 * j + i];
      if (bits == 8) {
        *f.code_byte(j, i) = static_cast<uint8_t>(code ^ 0x80);
        continue;
      }
      *f.code_byte(j % 4, i) |= static_cast<uint8_t>((code & 15) << (j < 4 ? 0 : 4));
      if (bits == 5) *f.code_byte(4, i) |= static_cast<uint8_t>((code >> 4) << j);
      if (bits == 6) {
        *f.code_byte(4 + j / 4, i) |= static_cast<uint8_t>((code >> 4) << (2 * (j % 4)));
      }
    }
  }
}

// The codes as the kernels read them: 8-bit ones are signed.
void load_codes(const GroupFields& f, int* codes) {
  const int bits = f.layout.bits;
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 4; ++i) {
      int code;
      if (bits == 8) {
        code = static_cast<int8_t>(*f.code_byte(j, i));
      } else {
        code = (*f.code_byte(j % 4, i) >> (j < 4 ? 0 : 4)) & 15;
        if (bits == 5) code |= ((*f.code_byte(4, i) >> j) & 1) << 4;
        if (bits == 6) code |= ((*f.code_byte(4 + j / 4, i) >> (2 * (j % 4))) & 3) << 4;
      }
      codes[4 * j + i] = code;
    }
  }
}

void store_group(const GgmlGroup& g, const GroupFields& f) {
  store_codes(g.codes, f);
  if (f.layout.super_bytes == 0) {
    std::memcpy(f.scale_field(0, 2), &g.d, 2);
    if (f.layout.scale_bytes == 4) std::memcpy(f.scale_field(1, 2), &g.m, 2);
    return;
  }
  const bool has_min = f.layout.has_min;
  *f.scale_field(0, 1) = g.sub_scale[0];
  *f.scale_field(1, 1) = has_min ? g.sub_min : g.sub_scale[1];
  std::memcpy(f.super_field(0), &g.d, 2);
  if (has_min) std::memcpy(f.super_field(1), &g.m, 2);
}

float load_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return float_from_half(bits);
}

// The inverse of store_group: the 32 values, by the arithmetic of the specification.
void load_group(const GroupFields& f, float* out) {
  int codes[32];
  load_codes(f, codes);
  const bool has_min = f.layout.has_min;
  float scale[2], min = 0.0f;
  if (f.layout.super_bytes == 0) {
    scale[0] = scale[1] = load_half(f.scale_field(0, 2));
    if (has_min) min = load_half(f.scale_field(1, 2));
  } else {
    const float d = load_half(f.super_field(0));
    const uint8_t first = *f.scale_field(0, 1), second = *f.scale_field(1, 1);
    if (has_min) {
      scale[0] = scale[1] = d * static_cast<float>(first);
      min = -(load_half(f.super_field(1)) * static_cast<float>(second));
    } else {
      scale[0] = d * static_cast<float>(static_cast<int8_t>(first));
      scale[1] = d * static_cast<float>(static_cast<int8_t>(second));
    }
  }
  for (int i = 0; i < 32; ++i) {
    const float q = static_cast<float>(codes[i] - f.layout.zero);
    out[i] = has_min ? q * scale[i / 16] + min : q * scale[i / 16];
  }
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
    for (int64_t k = 0; k < source.num_cols; ++k) {
      std::memcpy(out + k * w.tile * value_bytes, row + k * value_bytes,
                  static_cast<size_t>(value_bytes));
    }
  }
}

}  // namespace

PackedMatrix PackedMatrix::pack(const TensorView& source, PackMode mode, int tile,
                                ThreadPool* pool) {
  const GgmlTypeInfo& info = ggml_type_info(source.type);
  check(source.num_rows > 0 && source.num_cols > 0, ErrorKind::kModelFile,
        "a weight matrix needs at least one row and column, got ", source.num_rows, " x ",
        source.num_cols);
  check(source.num_cols % info.block_values == 0, ErrorKind::kModelFile, info.name,
        " rows hold whole blocks of ", info.block_values, " values, got ", source.num_cols,
        " columns");
  check(tile > 0, ErrorKind::kInternal, "a tile needs at least one channel, got ", tile);
  PackedMatrix matrix;
  PackedView& w = matrix.view_;
  w.format = format_of(source.type, mode);
  w.num_rows = source.num_rows;
  w.num_cols = source.num_cols;
  w.tile = tile;
  w.tile_size_bytes = packed_tile_bytes(w.format, tile, source.num_cols);
  matrix.memory_ = allocate_weights(static_cast<size_t>(matrix.size_bytes()));
  w.data = matrix.memory_.get();

  const int num_threads = pool != nullptr ? pool->num_threads() : 1;
  std::vector<float> scratch(static_cast<size_t>(num_threads * source.num_cols));
  const auto pack_tile = [&](int64_t t, int thread) {
    uint8_t* tile_data = matrix.memory_.get() + t * w.tile_size_bytes;
    if (is_quantized(w.format)) {
      pack_quantized_tile(source, w, t, tile_data);
    } else {
      pack_float_tile(source, w, t, scratch.data() + thread * source.num_cols, tile_data);
    }
  };
  if (pool != nullptr) {
    pool->parallel_for(matrix.num_tiles(), pack_tile);
  } else {
    for (int64_t t = 0; t < matrix.num_tiles(); ++t) pack_tile(t, 0);
  }
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

}  // namespace flarecore
