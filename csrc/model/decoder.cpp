#include "model/decoder.h"

#include <algorithm>
#include <atomic>

#include "cpu/cpu_isa.h"
#include "model/decoder_workspace.h"

namespace flarecore {
namespace {

constexpr int kSerialRows = 4;  // up to here row work stays on the calling thread
constexpr int kHeadRows = 8;    // rows of logits held at a time

std::atomic<int64_t> dropped_rows{0};

// A norm's weights are read by one thread while the others wait: asked for before the product that
// comes before it.
void ask_for(const std::vector<float>& weights) {
  for (size_t i = 0; i < weights.size(); i += 16) __builtin_prefetch(weights.data() + i, 0, 2);
}

// Whether every feed-forward matrix is of a format that these kernels take.
bool all_ffn(const DecoderWeights& weights, bool (*takes)(WeightFormat format)) {
  return std::all_of(weights.layers.begin(), weights.layers.end(), [&](const auto& layer) {
    return takes(layer.gate.view().format) && takes(layer.up.view().format) &&
           takes(layer.down.view().format);
  });
}

}  // namespace

int64_t num_dropped_rows() { return dropped_rows.load(std::memory_order_relaxed); }

Decoder::Decoder(const DecoderConfig& config, std::shared_ptr<const DecoderWeights> weights,
                 const KvLayout& layout, const BlockPool* blocks, ThreadPool* threads)
    : config_(config),
      weights_(std::move(weights)),
      can_fuse_rows_(all_ffn(*weights_, is_quantized)),
      can_fuse_blocks_(all_ffn(*weights_, kernels().multiplies_blocks)),
      layout_(layout),
      blocks_(blocks),
      threads_(threads),
      ws_(std::make_unique<Workspace>()) {}

Decoder::~Decoder() = default;

template <typename F>
void Decoder::for_rows(F&& body) {
  const int num_rows = static_cast<int>(ws_->rows.size());
  if (num_rows <= kSerialRows) {
    for (int row = 0; row < num_rows; ++row) body(row);
  } else {
    threads_->parallel_for(num_rows, [&](int64_t row, int) { body(static_cast<int>(row)); });
  }
}

template <typename F>
void Decoder::for_blocks(F&& body) {
  const int num_rows = static_cast<int>(ws_->rows.size()), step = ws_->input.block_rows();
  if (step == 1) return for_rows([&](int row) { body(row, 1); });
  threads_->parallel_for((num_rows + step - 1) / step, [&](int64_t block, int) {
    const int first = static_cast<int>(block) * step;
    body(first, std::min(step, num_rows - first));
  });
}

void Decoder::forward(Span<const ForwardSegment> segments, const LogitsConsumer& consume) {
  plan(segments);
  if (ws_->rows.empty()) return;
  embed(segments);
  for (int i = 0; i < config_.num_layers; ++i) {
    attention_block(weights_->layers[i], i, segments);
    if (ws_->rows.empty()) return;
    ffn_block(weights_->layers[i], i);
  }
  head(segments, consume);
}

void Decoder::plan(Span<const ForwardSegment> segments) {
  ws_->rows.clear();
  for (size_t s = 0; s < segments.size(); ++s) {
    for (size_t r = 0; r < segments[s].tokens.size(); ++r) {
      const int place = segments[s].place_begin + static_cast<int>(r);
      ws_->rows.push_back({static_cast<int>(s), static_cast<int>(r), place,
                           segments[s].position(place)});
    }
  }
  ws_->has_tiles = layout_.format == KvFormat::kFloat16 && kernels().attention_scratch_bytes > 0;
  ws_->resize(config_, can_fuse_rows_, can_fuse_blocks_);
  ws_->plan_attention(config_, segments);
  // Short contexts need none; the rows that are kept later need no more.
  const auto takes_tiles = [&](const auto& row) { return ws_->near_block(row.place) > 0; };
  if (ws_->has_tiles && std::any_of(ws_->rows.begin(), ws_->rows.end(), takes_tiles)) {
    const size_t size_bytes = static_cast<size_t>(kernels().attention_scratch_bytes);
    ws_->attention_scratch.grow(size_t(threads_->num_threads()) * size_bytes);
  }
}

void Decoder::embed(Span<const ForwardSegment> segments) {
  for_rows([&](int row) {
    const auto& r = ws_->rows[row];
    float* hidden = ws_->hidden(row);
    weights_->token_embedding.dequantize_row(segments[r.segment].tokens[r.index], hidden);
    if (config_.embedding_scale != 1.0f) {
      for (int i = 0; i < config_.hidden_size; ++i) hidden[i] *= config_.embedding_scale;
    }
    ws_->fill_rotation(config_, row, r.position);
  });
}

void Decoder::attention_block(const LayerWeights& layer, int index,
                              Span<const ForwardSegment> segments) {
  for_blocks([&](int first, int count) {
    ws_->input.norm_and_quantize(first, count, ws_->hidden(first), layer.attention_norm,
                                 config_.norm_eps, {&layer.q, &layer.k, &layer.v});
  });
  const std::vector<LinearTarget> qkv = {
      {&layer.q, ws_->query.data(), config_.query_size()},
      {&layer.k, ws_->key.data(), config_.kv_size()},
      {&layer.v, ws_->value.data(), config_.kv_size()}};
  const int window = config_.layers[index].window;
  {
    const AttentionRead kv(*this, index, ws_->plan_of(window), segments);  // of this plan only
    run_linear(qkv, ws_->input, static_cast<int>(ws_->rows.size()), threads_, &kv);
  }
  if (!ws_->prepares_in_tasks) {
    for_rows([&](int row) { rotate_and_store(layer, index, segments, row); });
    if (index + 1 == config_.num_layers) keep_wanted_rows(segments);
  }
  const int num_rows = static_cast<int>(ws_->rows.size());
  if (num_rows == 0) return;
  const AttentionPlan& plan = ws_->plan_of(window);
  const TileRun o({&layer.o}, *threads_);
  threads_->parallel_for(plan.num_tasks(config_.num_kv_heads),
                         [&](int64_t task, int thread) {
                           attend(layer, index, plan, segments, task, thread, o);
                         });
  for_blocks([&](int first, int count) {
    for (int row = first; row < first + count; ++row) join_splits(plan, row);
    ws_->input.quantize(first, count, config_.query_size(), {&layer.o});
  });
  const LinearTarget out = residual_target(layer.o, ws_->input, layer.o_bias,
                                           layer.attention_post_norm);
  const TileRun gate_up = gate_and_up_run(layer);
  ask_for(layer.ffn_norm);
  run_linear({&out, 1}, ws_->input, num_rows, threads_, &gate_up);
  ws_->adds_later = !out.adds;
}

// Once the last layer's keys and values are stored, only rows that yield logits are worked on.
void Decoder::keep_wanted_rows(Span<const ForwardSegment> segments) {
  const int num_rows = static_cast<int>(ws_->rows.size());
  int kept = 0;
  for (int row = 0; row < num_rows; ++row) {
    const auto r = ws_->rows[row];
    if (r.index < segments[r.segment].logits_begin) continue;
    const size_t size = config_.query_size();
    float* query = ws_->query.data();
    if (kept != row) {
      std::copy_n(ws_->hidden(row), config_.hidden_size, ws_->hidden(kept));
      std::copy_n(query + row * size, size, query + kept * size);
    }
    ws_->rows[kept++] = r;
  }
  if (kept == num_rows) return;
  dropped_rows.fetch_add(num_rows - kept, std::memory_order_relaxed);
  ws_->rows.resize(kept);
  ws_->resize(config_, can_fuse_rows_, can_fuse_blocks_);
  ws_->plan_attention(config_, segments);
}

// Where a block's last product goes: to the residual at once, if the kernel can add and neither
// bias nor norm comes between, else to `delta`.
LinearTarget Decoder::residual_target(const PackedMatrix& matrix, const ActivationRows& input,
                                      const std::vector<float>& bias,
                                      const std::vector<float>& post_norm) {
  const bool adds =
      bias.empty() && post_norm.empty() && input.reads_blocks(matrix.view().format);
  return {&matrix, adds ? ws_->residual.data() : ws_->delta.data(), config_.hidden_size, adds};
}

// residual += delta, with its bias and normed first where the architecture has them.
void Decoder::add_to_residual(int row, const std::vector<float>& bias,
                              const std::vector<float>& post_norm) {
  float* delta = ws_->delta.data() + size_t(row) * config_.hidden_size;
  if (!bias.empty()) kernels().add(bias.data(), config_.hidden_size, delta);
  if (!post_norm.empty()) {
    kernels().rmsnorm(delta, post_norm.data(), config_.norm_eps, config_.hidden_size, delta);
  }
  kernels().add(delta, config_.hidden_size, ws_->hidden(row));
}

// The first product after layer `index`.
TileRun Decoder::run_after(int index) const {
  if (index + 1 == config_.num_layers) {
    const PackedMatrix& head = weights_->head();
    return TileRun({&head}, *threads_, kLogitRun / head.view().tile);
  }
  const LayerWeights& layer = weights_->layers[index + 1];
  return TileRun({&layer.q, &layer.k, &layer.v}, *threads_);
}

TileRun Decoder::gate_and_up_run(const LayerWeights& layer) const {
  return ws_->fused ? gated_run(layer.gate, *threads_)
                    : TileRun({&layer.gate, &layer.up}, *threads_);
}

void Decoder::ffn_block(const LayerWeights& layer, int index) {
  const int num_rows = static_cast<int>(ws_->rows.size());
  for_blocks([&](int first, int count) {
    for (int row = first; ws_->adds_later && row < first + count; ++row) {
      add_to_residual(row, layer.o_bias, layer.attention_post_norm);
    }
    ws_->input.norm_and_quantize(first, count, ws_->hidden(first), layer.ffn_norm,
                                 config_.norm_eps, {&layer.gate, &layer.up});
  });
  const auto activate = config_.activation == Activation::kSilu ? kernels().silu_mul
                                                                : kernels().gelu_tanh_mul;
  if (ws_->fused) {
    const TileRun next({&layer.down}, *threads_);
    run_gated(layer.gate, layer.up, activate, ws_->input, num_rows, threads_, &ws_->gated, &next);
  } else {
    gate_and_up(layer, activate);
  }
  const ActivationRows& input = ws_->fused ? ws_->gated : ws_->input;
  const LinearTarget down = residual_target(layer.down, input, {}, layer.ffn_post_norm);
  const TileRun after = run_after(index);
  if (index + 1 < config_.num_layers) ask_for(weights_->layers[index + 1].attention_norm);
  run_linear({&down, 1}, input, num_rows, threads_, &after);
  if (!down.adds) for_rows([&](int row) { add_to_residual(row, {}, layer.ffn_post_norm); });
}

// The input of `down`, by way of gate and up in memory.
void Decoder::gate_and_up(const LayerWeights& layer,
                          void (*activate)(const float*, const float*, int64_t, float*)) {
  const int64_t ffn = config_.intermediate_size;
  const std::vector<LinearTarget> gate_up = {{&layer.gate, ws_->gate.data(), ffn},
                                             {&layer.up, ws_->up.data(), ffn}};
  const TileRun next({&layer.down}, *threads_);
  run_linear(gate_up, ws_->input, static_cast<int>(ws_->rows.size()), threads_, &next);
  for_blocks([&](int first, int count) {
    for (int row = first; row < first + count; ++row) {
      activate(ws_->gate.data() + row * ffn, ws_->up.data() + row * ffn, ffn,
               ws_->input.row(row));
    }
    ws_->input.quantize(first, count, ffn, {&layer.down});
  });
}

void Decoder::head(Span<const ForwardSegment> segments, const LogitsConsumer& consume) {
  std::vector<int> wanted;  // not all rows where tasks prepared: those were not dropped
  for (size_t row = 0; row < ws_->rows.size(); ++row) {
    const auto& r = ws_->rows[row];
    if (r.index >= segments[r.segment].logits_begin) wanted.push_back(static_cast<int>(row));
  }
  ws_->input.set_blocked(false);
  std::vector<bool> finished(segments.size(), false);
  std::vector<int> batch;
  size_t next = 0;
  while (next < wanted.size()) {
    batch.clear();
    for (; next < wanted.size() && batch.size() < size_t{kHeadRows}; ++next) {
      if (!finished[ws_->rows[wanted[next]].segment]) batch.push_back(wanted[next]);
    }
    if (batch.empty()) continue;
    head_rows(segments, batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      const auto& r = ws_->rows[batch[i]];
      if (finished[r.segment]) continue;
      finished[r.segment] = !consume(r.segment, r.index, ws_->logits_row(config_, i));
    }
  }
}

void Decoder::head_rows(Span<const ForwardSegment> segments, Span<const int> rows) {
  const int num_rows = static_cast<int>(rows.size());
  const PackedMatrix& matrix = weights_->head();
  const int64_t vocab = config_.vocab_size, num_runs = num_logit_runs(vocab);
  for (int i = 0; i < num_rows; ++i) {
    ws_->input.norm_and_quantize(i, 1, ws_->hidden(rows[i]), weights_->output_norm,
                                 config_.norm_eps, {&matrix});
  }
  ws_->logits.resize(std::max<size_t>(ws_->logits.size(), size_t(kHeadRows) * vocab));
  ws_->stats.resize(size_t(kHeadRows) * num_runs);
  const LinearTarget target = {&matrix, ws_->logits.data(), vocab};
  // A task makes one run of logits and its statistics while the run is still in the cache.
  const TileRun tiles({&matrix}, *threads_, kLogitRun / matrix.view().tile);
  threads_->parallel_for(num_runs, [&](int64_t run, int) {
    const int64_t end = tiles.task_begin(run + 1);
    run_tiles(target, ws_->input, num_rows, tiles.task_begin(run), end, tiles.address(end));
    const int64_t begin = run * kLogitRun, size = std::min<int64_t>(kLogitRun, vocab - begin);
    for (int i = 0; i < num_rows; ++i) {
      const auto& r = ws_->rows[rows[i]];
      kernels().logit_stats(ws_->logits.data() + i * vocab + begin, size,
                            segments[r.segment].inverse_temperature,
                            &ws_->stats[i * num_runs + run]);
    }
  });
}

}  // namespace flarecore
