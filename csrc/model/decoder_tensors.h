// The tensors of a decoder under the names of GGUF files, whatever file they lie in.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/gguf.h"
#include "model/safetensors.h"

namespace flarecore {

struct DecoderTensor {
  std::string shown;  // for messages: "tensor blk.0.attn_q.weight", or with its file
  GgmlType type;
  const uint8_t* data;         // in the mapped file
  std::vector<int64_t> shape;  // outermost first
  float offset = 0.0f;         // to be added to a vector's values
};

// Immutable. What it hands out lives as long as the object.
class DecoderTensors {
 public:
  virtual ~DecoderTensors() = default;
  // Raises ModelFileError, naming the tensor, if it is missing.
  virtual DecoderTensor require(const std::string& name) const = 0;
  virtual std::vector<std::string> names() const = 0;
};

class GgufTensors : public DecoderTensors {
 public:
  explicit GgufTensors(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {}
  DecoderTensor require(const std::string& name) const override;
  std::vector<std::string> names() const override;

 private:
  std::shared_ptr<const GgufFile> file_;
};

// Safetensors files of one checkpoint. Its own names are mapped to those of GGUF by whoever read
// its configuration.
class CheckpointTensors : public DecoderTensors {
 public:
  struct Place {
    size_t file;        // index into the files
    std::string name;   // in that file
  };

  // `vector_offset` is added to every vector: Gemma's checkpoints store norm weights minus 1.
  // Raises ModelFileError if a place is not in the files or is no float tensor.
  CheckpointTensors(std::vector<std::shared_ptr<const SafetensorsFile>> files,
                    std::map<std::string, Place> places, float vector_offset);
  DecoderTensor require(const std::string& name) const override;
  std::vector<std::string> names() const override;

 private:
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
  float vector_offset_;
};

}  // namespace flarecore
