// RegisteredBuffers: which slabs of the pool the I/O queue knows in advance, so that the kernel need not map their
// pages for every write. A refusal is logged once; writes then go without.
// Owner: FileWriter. Thread rule: the writer's thread alone.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/log.hpp"
#include "os/io_queue.hpp"

namespace slackwater {

class RegisteredBuffers {
 public:
  explicit RegisteredBuffers(unsigned slots) : registered_(slots) {}

  // Registers one slab. False if it was refused, or another one before it.
  bool add(IoQueue& queue, int index, std::span<std::byte> memory, const Log& log);
  [[nodiscard]] bool registered(int index) const {
    return index >= 0 && static_cast<std::size_t>(index) < registered_.size() &&
           registered_[static_cast<std::size_t>(index)];
  }

 private:
  std::vector<bool> registered_;  // by buffer number
  bool refused_ = false;
};

}  // namespace slackwater
