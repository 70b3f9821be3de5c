#include "model/encoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "cpu/cpu_isa.h"
#include "model/linear.h"

namespace flarecore {
namespace {

// Rows of one forward pass, unless a single text is longer: the scratch stays near the L2 cache.
constexpr int64_t kBatchRows = 512;
// Work of one task. Fixed, so that no result depends on the number of threads.
constexpr int64_t kTaskRows = 64;
constexpr int64_t kTaskChannels = 32;
// Below this many rows handing out row-wise work costs more than doing it.
constexpr int64_t kSerialRows = 4;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What follows a product, for the channels of tiles [tile_begin, tile_end) of y (num_rows, out).
void finish_tiles(const LinearWeights& weights, bool has_gelu, int64_t tile_begin,
                  int64_t tile_end, int64_t num_rows, float* y) {
  const PackedView w = weights.weight.view();
  const int64_t channel = tile_begin * w.tile;
  const int64_t num_channels = std::min(w.num_rows, tile_end * w.tile) - channel;
  for (int64_t row = 0; row < num_rows; ++row) {
    float* out = y + row * w.num_rows + channel;
    kernels().add(weights.bias.data() + channel, num_channels, out);
    if (has_gelu) kernels().gelu_erf(out, num_channels, out);
  }
}

}  // namespace

Encoder::Encoder(EncoderConfig config, int num_threads)
    : config_(std::move(config)), pool_(num_threads) {}

std::unique_ptr<Encoder> Encoder::load(const std::string& path, const EncoderConfig& config,
                                       Quantize quantize, int num_threads) {
  config.validate();
  check(num_threads >= 1 && num_threads <= 1024, ErrorKind::kConfig,
        "encoder: threads must be between 1 and 1024, got ", num_threads);
  auto file = SafetensorsFile::open(path);
  std::unique_ptr<Encoder> encoder(new Encoder(config, num_threads));
  encoder->weights_ = EncoderWeights::load(std::move(file), config, quantize, &encoder->pool_);
  encoder->plan_products();
  const int64_t rows = std::max(kBatchRows, config.max_positions);
  const auto size = [](int64_t a, int64_t b) { return static_cast<size_t>(a * b); };
  encoder->hidden_.resize(size(rows, config.hidden_size));
  encoder->qkv_.resize(size(rows, 3 * config.hidden_size));
  encoder->attended_.resize(size(rows, config.hidden_size));
  encoder->update_.resize(size(rows, config.hidden_size));
  encoder->intermediate_.resize(size(rows, config.intermediate_size));
  if (quantize != Quantize::kNone) {
    encoder->quantized_.set_blocked(true);
    encoder->quantized_.resize(rows, std::max(config.hidden_size, config.intermediate_size));
  }
  const int64_t num_blocks = divide_up(config.max_positions, kBlockTokens);
  encoder->kv_blocks_.resize(
      size(num_threads, 2 * num_blocks * kBlockTokens * config.head_dim()));
  return encoder;
}

// Which thread reads which tiles is known before the first run, so each product can ask for the
// beginning of the next one, whatever lies between the two.
void Encoder::plan_products() {
  const auto add = [&](const LinearWeights& weights) {
    const int64_t task_tiles = std::max<int64_t>(1, kTaskChannels / weights.weight.view().tile);
    products_.push_back({&weights, TileRun({&weights.weight}, pool_, task_tiles)});
  };
  for (const EncoderLayer& layer : weights_.layers) {
    add(layer.qkv);
    add(layer.attention_output);
    add(layer.up);
    add(layer.down);
  }
}

void Encoder::check_input(Span<const TokenId> token_ids, Span<const int64_t> lengths) const {
  int64_t total = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    check(lengths[i] >= 1 && lengths[i] <= config_.max_positions, ErrorKind::kConfig,
          "encoder: text ", i, " must have between 1 and ", config_.max_positions,
          " tokens, got ", lengths[i], "; cut it first");
    total += lengths[i];
  }
  check(total == static_cast<int64_t>(token_ids.size()), ErrorKind::kConfig,
        "encoder: the lengths add up to ", total, ", there are ", token_ids.size(), " token ids");
  for (const TokenId id : token_ids) {
    check(id >= 0 && id < config_.vocab_size, ErrorKind::kConfig, "encoder: token id ", id,
          " is outside the vocabulary of ", config_.vocab_size);
  }
}

void Encoder::encode(Span<const TokenId> token_ids, Span<const int64_t> lengths, float* out) {
  check_input(token_ids, lengths);
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t text = 0, first_id = 0;
  while (text < lengths.size()) {
    Batch batch{{}, {0}};
    const size_t first_text = text;
    do {
      batch.begin.push_back(batch.num_rows() + lengths[text]);
      ++text;
    } while (text < lengths.size() && batch.num_rows() + lengths[text] <= kBatchRows);
    batch.token_ids = token_ids.subspan(first_id, static_cast<size_t>(batch.num_rows()));
    first_id += batch.token_ids.size();
    encode_batch(batch, out + static_cast<int64_t>(first_text) * config_.hidden_size);
  }
}

void Encoder::encode_batch(const Batch& batch, float* out) {
  embed(batch);
  for (size_t i = 0; i < weights_.layers.size(); ++i) run_layer(i, batch);
  for (int64_t text = 0; text < batch.num_texts(); ++text) {
    pool_text(batch, text, out + text * config_.hidden_size);
  }
}

template <typename F>
void Encoder::for_rows(int64_t num_rows, F&& body) {
  if (num_rows <= kSerialRows) {
    for (int64_t row = 0; row < num_rows; ++row) body(row);
    return;
  }
  pool_.parallel_for(divide_up(num_rows, kSerialRows), [&](int64_t task, int) {
    const int64_t end = std::min(num_rows, (task + 1) * kSerialRows);
    for (int64_t row = task * kSerialRows; row < end; ++row) body(row);
  });
}

void Encoder::embed(const Batch& batch) {
  const KernelTable& k = kernels();
  const int64_t hidden = config_.hidden_size;
  const LayerNormWeights& norm = weights_.embedding_norm;
  for (int64_t text = 0; text < batch.num_texts(); ++text) {
    const int64_t begin = batch.begin[text];
    for_rows(batch.begin[text + 1] - begin, [&](int64_t position) {
      float* x = hidden_.data() + (begin + position) * hidden;
      weights_.read_word_embedding(batch.token_ids[begin + position], x);
      k.add(weights_.position_embeddings.data() + position * hidden, hidden, x);
      k.layernorm(x, norm.weight.data(), norm.bias.data(), config_.layer_norm_eps, hidden, x);
    });
  }
}

void Encoder::run_layer(size_t index, const Batch& batch) {
  const EncoderLayer& layer = weights_.layers[index];
  const int64_t rows = batch.num_rows();
  const size_t product = 4 * index;
  linear(product, hidden_.data(), rows, Epilogue::kBias, qkv_.data());
  attend(batch);
  linear(product + 1, attended_.data(), rows, Epilogue::kBias, update_.data());
  add_and_norm(update_.data(), layer.attention_norm, rows);
  linear(product + 2, hidden_.data(), rows, Epilogue::kBiasGelu, intermediate_.data());
  linear(product + 3, intermediate_.data(), rows, Epilogue::kBias, update_.data());
  add_and_norm(update_.data(), layer.output_norm, rows);
}

const NextRead* Encoder::run_after(size_t product) const {
  return product + 1 < products_.size() ? &products_[product + 1].tiles : nullptr;
}

// y = epilogue(x W^T + bias), x (num_rows, in), y (num_rows, out)
void Encoder::linear(size_t product, const float* x, int64_t num_rows, Epilogue epilogue,
                     float* y) {
  if (is_quantized(products_[product].weights->weight.view().format)) {
    multiply_quantized(product, x, num_rows, epilogue, y);
  } else {
    multiply_float(product, x, num_rows, epilogue, y);
  }
}

void Encoder::multiply_float(size_t product, const float* x, int64_t num_rows, Epilogue epilogue,
                             float* y) {
  const TileRun& run = products_[product].tiles;
  const LinearWeights& weights = *products_[product].weights;
  const PackedView w = weights.weight.view();
  const int64_t num_tasks = run.num_tasks(), num_blocks = divide_up(num_rows, kTaskRows);
  pool_.parallel_for(num_blocks * num_tasks, [&](int64_t task, int thread) {
    const int64_t row = task / num_tasks * kTaskRows;
    const int64_t rows = std::min(kTaskRows, num_rows - row);
    const int64_t tile_begin = run.task_begin(task % num_tasks);
    const int64_t tile_end = run.task_begin(task % num_tasks + 1);
    // The shares of several blocks of rows are others than the plan's.
    const uint8_t* ahead = num_blocks == 1
                               ? run.read_after(tile_end, thread, run_after(product), &pool_)
                               : run.address(tile_end);
    float* out = y + row * w.num_rows;
    kernels().matmul_float(w, x + row * w.num_cols, w.num_cols, static_cast<int>(rows), tile_begin,
                           tile_end, out, w.num_rows, ahead);
    finish_tiles(weights, epilogue == Epilogue::kBiasGelu, tile_begin, tile_end, rows, out);
  });
}

void Encoder::multiply_quantized(size_t product, const float* x, int64_t num_rows,
                                 Epilogue epilogue, float* y) {
  const TileRun& run = products_[product].tiles;
  const LinearWeights& weights = *products_[product].weights;
  const int64_t num_cols = weights.weight.num_cols();
  quantized_.set_blocked(num_rows >= kManyRows);
  const int64_t step = std::max<int64_t>(quantized_.block_rows(), kSerialRows);
  pool_.parallel_for(divide_up(num_rows, step), [&](int64_t task, int) {
    const int64_t end = std::min(num_rows, (task + 1) * step);
    for (int64_t row = task * step; row < end; row += quantized_.block_rows()) {
      const auto count = static_cast<int>(std::min<int64_t>(quantized_.block_rows(), end - row));
      quantized_.quantize(x + row * num_cols, num_cols, row, count, num_cols, {&weights.weight});
    }
  });
  const LinearTarget target{&weights.weight, y, weights.weight.num_rows()};
  pool_.parallel_for(run.num_tasks(), [&](int64_t task, int thread) {
    const int64_t begin = run.task_begin(task), end = run.task_begin(task + 1);
    run_tiles(target, quantized_, static_cast<int>(num_rows), begin, end,
              run.read_after(end, thread, run_after(product), &pool_));
    finish_tiles(weights, epilogue == Epilogue::kBiasGelu, begin, end, num_rows, y);
  });
}

// hidden = layernorm(hidden + update)
void Encoder::add_and_norm(const float* update, const LayerNormWeights& norm, int64_t num_rows) {
  const KernelTable& k = kernels();
  const int64_t hidden = config_.hidden_size;
  for_rows(num_rows, [&](int64_t row) {
    float* x = hidden_.data() + row * hidden;
    k.add(update + row * hidden, hidden, x);
    k.layernorm(x, norm.weight.data(), norm.bias.data(), config_.layer_norm_eps, hidden, x);
  });
}

void Encoder::attend(const Batch& batch) {
  pool_.parallel_for(batch.num_texts() * config_.num_heads, [&](int64_t task, int thread) {
    attend_head(batch, task / config_.num_heads, task % config_.num_heads, thread);
  });
}

// One head over one text: every token sees every token of its text. Keys and values are brought
// into the block layout of the attention kernel first.
void Encoder::attend_head(const Batch& batch, int64_t text, int64_t head, int thread) {
  const int64_t hidden = config_.hidden_size, dim = config_.head_dim();
  const int64_t begin = batch.begin[text], length = batch.begin[text + 1] - begin;
  const int64_t num_blocks = divide_up(length, kBlockTokens), block = kBlockTokens * dim;
  const int64_t max_blocks = divide_up(config_.max_positions, kBlockTokens);
  float* keys = kv_blocks_.data() + static_cast<int64_t>(thread) * 2 * max_blocks * block;
  float* values = keys + max_blocks * block;
  const float* qkv = qkv_.data() + begin * 3 * hidden + head * dim;
  // Slots behind the last token are never visible, but must not hold what another text left there
  // as NaN or infinity: 0 * NaN would spread.
  std::fill(keys + (num_blocks - 1) * block, keys + num_blocks * block, 0.0f);
  std::fill(values + (num_blocks - 1) * block, values + num_blocks * block, 0.0f);
  for (int64_t t = 0; t < length; ++t) {
    const float* key = qkv + t * 3 * hidden + hidden;
    float* column = keys + t / kBlockTokens * block + t % kBlockTokens;
    for (int64_t d = 0; d < dim; ++d) column[d * kBlockTokens] = key[d];
    std::copy_n(key + hidden, dim, values + t * dim);
  }
  std::vector<const void*> key_blocks, value_blocks;
  for (int64_t b = 0; b < num_blocks; ++b) {
    key_blocks.push_back(keys + b * block);
    value_blocks.push_back(values + b * block);
  }
  AttentionArgs args{};
  args.q_row_stride = 3 * hidden;
  args.num_group_heads = 1;
  args.head_dim = static_cast<int>(dim);
  args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  args.k_blocks = key_blocks.data();
  args.v_blocks = value_blocks.data();
  args.block_end = static_cast<int>(num_blocks);
  constexpr int kRows = 16;  // at a time: their outputs lie on the stack
  const int32_t first_visible[kRows] = {};
  int32_t end_visible[kRows];
  std::fill_n(end_visible, kRows, static_cast<int32_t>(length));
  args.first_visible = first_visible;
  args.end_visible = end_visible;
  float out[kRows * kMaxHeadDim], row_max[kRows], row_sum[kRows];
  args.out = out;
  args.row_max = row_max;
  args.row_sum = row_sum;
  for (int64_t row = 0; row < length; row += kRows) {
    args.q = qkv + row * 3 * hidden;
    args.num_rows = static_cast<int>(std::min<int64_t>(kRows, length - row));
    kernels().attention(args);
    for (int64_t r = 0; r < args.num_rows; ++r) {
      float* target = attended_.data() + (begin + row + r) * hidden + head * dim;
      for (int64_t d = 0; d < dim; ++d) target[d] = out[r * dim + d] / row_sum[r];
    }
  }
}

// Pools one text and scales the vector to length 1; sums in double, in the order of the tokens.
void Encoder::pool_text(const Batch& batch, int64_t text, float* out) const {
  const int64_t hidden = config_.hidden_size, begin = batch.begin[text];
  const int64_t end = config_.pooling == Pooling::kFirst ? begin + 1 : batch.begin[text + 1];
  std::vector<double> sum(static_cast<size_t>(hidden), 0.0);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < hidden; ++i) sum[i] += hidden_[row * hidden + i];
  }
  double square = 0;
  for (const double v : sum) square += v * v;
  // The mean's divisor falls out of the direction; a zero vector stays zero.
  const double scale = square > 0 ? 1.0 / std::sqrt(square) : 0.0;
  for (int64_t i = 0; i < hidden; ++i) out[i] = static_cast<float>(sum[i] * scale);
}

}  // namespace flarecore
