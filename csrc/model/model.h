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
  Model(std::shared_ptr<const GgufFile> file, int num_threads);

  const DecoderConfig& config() const { return config_; }
  int num_threads() const { return num_threads_; }
  const Vocabulary& vocabulary() const;  // raises FlarecoreError before set_vocabulary
  void set_vocabulary(std::shared_ptr<const Vocabulary> vocabulary);

  // Packs at the first call per mode; every engine of the process shares the result.
  std::shared_ptr<const DecoderWeights> weights(ComputeMode mode);

 private:
  std::shared_ptr<const GgufFile> file_;
  DecoderConfig config_;
  int num_threads_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::mutex mutex_;
  std::map<ComputeMode, std::shared_ptr<const DecoderWeights>> weights_;
};

}  // namespace flarecore
