// PySnapshot: a snapshot whose sources Python checks before it seals it (State::sealed_by_caller). If an exception,
// such as Ctrl-C, drops the snapshot before that, it must not be committed, and nobody may wait for it for ever. So the
// destructor seals it as torn.
// Thread rule: needs the GIL.
// Lifetime: may outlive its engine.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "slackwater/engine.hpp"

namespace slackwater::python {

class PySnapshot {
 public:
  explicit PySnapshot(Snapshot snapshot) : snapshot_(std::move(snapshot)) {}
  PySnapshot(PySnapshot&& other) noexcept
      : snapshot_(std::move(other.snapshot_)), sealed_(std::exchange(other.sealed_, true)) {}
  PySnapshot& operator=(PySnapshot&&) = delete;
  ~PySnapshot() {
    if (!sealed_) snapshot_.seal({"(unknown, because save() was interrupted)"});
  }

  void seal(std::vector<std::string> torn_tensors, const std::vector<std::string>& freed_tensors) {
    sealed_ = true;
    snapshot_.seal(std::move(torn_tensors), freed_tensors);
  }
  [[nodiscard]] Snapshot& get() { return snapshot_; }

 private:
  Snapshot snapshot_;
  bool sealed_ = false;
};

}  // namespace slackwater::python
