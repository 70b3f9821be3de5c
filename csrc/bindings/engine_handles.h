// What Python owns of an engine: the engine, its sequences and its passages.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/engine.h"
#include "model/mapped_file.h"

namespace flarecore {

// Owned by Python: the engine ends with its last Python reference.
class EngineHandle {
 public:
  EngineHandle(std::shared_ptr<Model> model, const EngineOptions& options)
      : engine_(Engine::create(std::move(model), options)) {}
  ~EngineHandle() {
    pybind11::gil_scoped_release no_gil;
    engine_->shutdown();
  }
  Engine& operator*() const { return *engine_; }
  Engine* operator->() const { return engine_.get(); }
  const std::shared_ptr<Engine>& pointer() const { return engine_; }

 private:
  std::shared_ptr<Engine> engine_;
};

// Owned by Python: the sequence's blocks go back with its last Python reference.
class SequenceHandle {
 public:
  SequenceHandle(std::shared_ptr<Engine> engine, std::shared_ptr<Sequence> sequence)
      : engine_(std::move(engine)), sequence_(std::move(sequence)) {}
  ~SequenceHandle() {
    pybind11::gil_scoped_release no_gil;
    engine_->close(sequence_);
  }
  Engine& engine() const { return *engine_; }
  const std::shared_ptr<Engine>& engine_pointer() const { return engine_; }
  const std::shared_ptr<Sequence>& sequence() const { return sequence_; }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Sequence> sequence_;
};

// Python sees passages by value of their reference: they never change.
struct PassageHandle {
  std::shared_ptr<const PassageKv> passage;
};

// A passage out of a file; its blocks are used where they are mapped.
PassageHandle load_passage(const EngineHandle& engine, const std::shared_ptr<MappedFile>& file,
                           size_t offset, size_t size_bytes, std::vector<TokenId> head,
                           std::vector<TokenId> tokens);
void bind_passage(pybind11::module_& m);

}  // namespace flarecore
