// A model file made ready: configuration, vocabulary, and its weights packed once a compute mode.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "model/decoder_weights.h"
#include "text/vocabulary.h"

namespace flarecore {

enum class ComputeMode { kFloat32, kInt8 };

class Model {
 public:
  // Raises ModelFileError or UnsupportedError if the tensors do not fit the configuration,
  // ConfigError if `quantize` finds nothing to quantise. num_threads <= 0: the usable ones.
  Model(std::shared_ptr<const DecoderTensors> tensors, DecoderConfig config, int num_threads,
        Quantize quantize);

  const DecoderConfig& config() const { return config_; }
  int num_threads() const { return num_threads_; }
  const Vocabulary& vocabulary() const;  // raises FlarecoreError before set_vocabulary
  void set_vocabulary(std::shared_ptr<const Vocabulary> vocabulary);

  // Packs at the first call per mode; every engine of the process shares the result.
  std::shared_ptr<const DecoderWeights> weights(ComputeMode mode);

  const DecoderTensors& tensors() const { return *tensors_; }
  Quantize quantize() const { return quantize_; }
  // What quantising did to each matrix, measured while packing: by whatever is packed, else this
  // packs for kInt8.
  std::vector<TensorQuantization> quantization();

 private:
  std::shared_ptr<const DecoderTensors> tensors_;
  DecoderConfig config_;
  int num_threads_;
  Quantize quantize_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::mutex mutex_;
  std::map<ComputeMode, std::shared_ptr<const DecoderWeights>> weights_;
};

}  // namespace flarecore
