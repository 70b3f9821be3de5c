#include "model/model.h"

#include "common/check.h"

namespace flarecore {

Model::Model(std::shared_ptr<const DecoderTensors> tensors, DecoderConfig config, int num_threads,
             Quantize quantize)
    : tensors_(std::move(tensors)),
      config_(std::move(config)),
      num_threads_(num_threads > 0 ? num_threads : usable_num_threads()),
      quantize_(quantize) {
  DecoderWeights::check_tensors(*tensors_, config_, quantize_);
}

const Vocabulary& Model::vocabulary() const {
  check(vocabulary_ != nullptr, ErrorKind::kInternal, "the model has no vocabulary yet");
  return *vocabulary_;
}

void Model::set_vocabulary(std::shared_ptr<const Vocabulary> vocabulary) {
  check(vocabulary->size() == config_.vocab_size, ErrorKind::kModelFile, "the tokenizer has ",
        vocabulary->size(), " tokens, the token embedding ", config_.vocab_size, " rows");
  vocabulary_ = std::move(vocabulary);
}

std::shared_ptr<const DecoderWeights> Model::weights(ComputeMode mode) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<const DecoderWeights>& weights = weights_[mode];
  if (weights == nullptr) {
    ThreadPool pool(num_threads_);
    weights = DecoderWeights::load(
        *tensors_, config_,
        mode == ComputeMode::kInt8 ? PackMode::kQuantized : PackMode::kFloat32, quantize_, &pool);
  }
  return weights;
}

std::vector<TensorQuantization> Model::quantization() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [mode, weights] : weights_) {
      if (weights != nullptr) return weights->quantization;
    }
  }
  return weights(ComputeMode::kInt8)->quantization;
}

}  // namespace flarecore
