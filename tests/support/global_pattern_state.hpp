// GlobalPatternState: PatternState's counterpart for tensors that ranks hold together. Every byte is a function of one
// number and of its place in the global tensor, so any number of ranks can check what it got. Some tensors are cut
// unevenly by rows, some by columns, and one is held by all ranks. Not thread-safe.
// Lifetime: it must outlive the sources of its snapshots.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "slackwater/checkpoint.hpp"
#include "slackwater/engine.hpp"
#include "support/pattern_state.hpp"

namespace slackwater::test {

class GlobalPatternState {
 public:
  // About so many bytes on all ranks together, and a third of it once more on each.
  GlobalPatternState(std::uint64_t size_bytes, std::uint32_t rank, std::uint32_t world) {
    const auto third = static_cast<std::int64_t>(size_bytes / 3);
    parts_.push_back(cut("rows", {third / 61, 61}, 0, rank, world));
    parts_.push_back(cut("columns", {67, third / 67}, 1, rank, world));
    parts_.push_back(cut("all", {third / 59, 59}, 0, 0, 1));
    Shard& everywhere = parts_.back().shard;
    everywhere.replica_group = "world";
    everywhere.replica = rank;
    everywhere.replicas = world;
  }

  void fill(std::uint64_t number) {
    number_ = number;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].each([&, i](std::byte& byte, std::int64_t place) { byte = byte_of(number, i, place); });
    }
  }
  [[nodiscard]] State state() const {
    State state;
    for (const Part& part : parts_)
      state.tensors.push_back({.name = part.name,
                               .dtype = DType::kU8,
                               .shape = part.shape,
                               .data = part.bytes.data(),
                               .shard = part.shard});
    state.tree = fmt::format(R"({{"number":{}}})", number_);
    return state;
  }
  // Plans to read the boxes of this rank, and the number that the checkpoint says it holds. Wipes the old bytes first.
  [[nodiscard]] Engine::Plan plan() {
    return [this](const Checkpoint& checkpoint) -> Result<std::vector<Target>> {
      number_ = PatternState::number_in(checkpoint.tree());
      std::vector<Target> targets;
      for (Part& part : parts_) {
        part.bytes.assign(part.bytes.size(), std::byte{0});
        targets.push_back({.name = part.name,
                           .dtype = DType::kU8,
                           .shape = part.shape,
                           .data = part.bytes.data(),
                           .shard = part.shard});
      }
      return targets;
    };
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  // Where the bytes first differ from what number() asks for; nullopt: nowhere.
  [[nodiscard]] std::optional<std::string> difference() {
    std::optional<std::string> found;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].each([&, i](const std::byte& byte, std::int64_t place) {
        if (found || byte == byte_of(number_, i, place)) return;
        found = fmt::format("tensor '{}' differs from state {} at element {}", parts_[i].name, number_, place);
      });
    }
    return found;
  }

 private:
  struct Part {
    std::string name;
    std::vector<std::int64_t> shape;
    Shard shard;
    std::vector<std::byte> bytes;

    // Each byte, and which element of the global tensor it is.
    template <class Body>
    void each(const Body& body) {
      for (std::int64_t row = 0; row < shape[0]; ++row) {
        for (std::int64_t column = 0; column < shape[1]; ++column) {
          body(bytes[static_cast<std::size_t>(row * shape[1] + column)],
               (shard.offset[0] + row) * shard.global_shape[1] + shard.offset[1] + column);
        }
      }
    }
  };
  // The share of this rank, along one dimension, as torch.chunk() cuts: the last ranks may have less.
  static Part cut(std::string name, std::vector<std::int64_t> global, std::size_t dimension, std::uint32_t rank,
                  std::uint32_t world) {
    const std::int64_t chunk = (global[dimension] + world - 1) / world;
    const std::int64_t begin = std::min(chunk * rank, global[dimension]);
    std::vector<std::int64_t> shape = global;
    shape[dimension] = std::min(chunk, global[dimension] - begin);
    std::vector<std::int64_t> offset(2);
    offset[dimension] = begin;
    const auto size = static_cast<std::size_t>(shape[0] * shape[1]);
    return {std::move(name),
            std::move(shape),
            {.global_shape = std::move(global), .offset = std::move(offset)},
            std::vector<std::byte>(size)};
  }
  static std::byte byte_of(std::uint64_t number, std::size_t tensor, std::int64_t place) {
    std::uint64_t word = (number * 0x100000001b3 + tensor) * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(place);
    word = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9;
    return static_cast<std::byte>(word >> 56);
  }

  std::vector<Part> parts_;
  std::uint64_t number_ = 0;
};

}  // namespace slackwater::test
