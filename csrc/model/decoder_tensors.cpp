#include "model/decoder_tensors.h"

#include <algorithm>

#include "common/check.h"
#include "common/printable.h"

namespace flarecore {

DecoderTensor GgufTensors::require(const std::string& name) const {
  const GgufTensor& tensor = file_->require(name);
  std::vector<int64_t> shape(tensor.shape.rbegin(), tensor.shape.rend());
  while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
  return {"tensor " + name, tensor.type, tensor.data, std::move(shape)};
}

std::vector<std::string> GgufTensors::names() const {
  std::vector<std::string> names;
  for (const GgufTensor& tensor : file_->tensors()) names.push_back(tensor.name);
  return names;
}

CheckpointTensors::CheckpointTensors(std::vector<std::shared_ptr<const SafetensorsFile>> files,
                                     std::map<std::string, Place> places, float vector_offset)
    : files_(std::move(files)), places_(std::move(places)), vector_offset_(vector_offset) {
  for (const auto& [name, place] : places_) {
    check(place.file < files_.size() && files_[place.file]->find(place.name) != nullptr,
          ErrorKind::kModelFile, "the tensor ", printable(place.name), " (", name,
          ") is in none of the checkpoint's files");
    files_[place.file]->find(place.name)->type();  // raises for a type that is no float
  }
}

DecoderTensor CheckpointTensors::require(const std::string& name) const {
  const auto found = places_.find(name);
  check(found != places_.end(), ErrorKind::kModelFile, "the checkpoint has no tensor for ", name,
        "; it is incomplete or for another architecture");
  const SafetensorsFile& file = *files_[found->second.file];
  const SafeTensor& tensor = *file.find(found->second.name);
  return {printable(file.path(), 512) + ": tensor " + printable(tensor.name), tensor.type(),
          tensor.data, tensor.shape, tensor.shape.size() == 1 ? vector_offset_ : 0.0f};
}

std::vector<std::string> CheckpointTensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

}  // namespace flarecore
