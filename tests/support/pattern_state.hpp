// PatternState: tensors whose every byte is a function of one number, which the tree of the state holds too. So a
// checkpoint says what its bytes must be, whoever wrote it and however often it was rewritten. Not thread-safe; must
// outlive its snapshots' sources.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "slackwater/checkpoint.hpp"
#include "slackwater/engine.hpp"

namespace slackwater::test {

class PatternState {
 public:
  struct Part {
    std::string name;
    std::uint64_t size_bytes = 0;
  };
  explicit PatternState(const std::vector<Part>& parts) {
    for (const Part& part : parts) tensors_.push_back({part.name, std::vector<std::byte>(part.size_bytes)});
  }

  void fill(std::uint64_t number) {
    number_ = number;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::vector<std::byte>& bytes = tensors_[i].bytes;
      for (std::size_t at = 0; at < bytes.size(); at += 8) {
        const std::uint64_t word = word_of(number, i, at);
        std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
      }
    }
  }
  [[nodiscard]] State state() const {
    State state;
    for (const Named& tensor : tensors_)
      state.tensors.push_back({.name = tensor.name,
                               .dtype = DType::kU8,
                               .shape = {static_cast<std::int64_t>(tensor.bytes.size())},
                               .data = tensor.bytes.data()});
    state.tree = fmt::format(R"({{"number":{}}})", number_);
    return state;
  }

  // Takes everything the checkpoint has, and the number it says it holds. The bytes there were are wiped before.
  [[nodiscard]] Engine::Plan plan() {
    return [this](const Checkpoint& checkpoint) -> Result<std::vector<Target>> {
      number_ = number_in(checkpoint.tree());
      std::vector<Target> targets;
      for (Named& tensor : tensors_) {
        std::ranges::fill(tensor.bytes, std::byte{0});
        targets.push_back({.name = tensor.name,
                           .dtype = DType::kU8,
                           .shape = {static_cast<std::int64_t>(tensor.bytes.size())},
                           .data = tensor.bytes.data()});
      }
      return targets;
    };
  }
  [[nodiscard]] Status read(Checkpoint& checkpoint) {
    auto targets = plan()(checkpoint);
    if (!targets) return fail(std::move(targets).error());
    return checkpoint.read(*targets);
  }

  [[nodiscard]] std::uint64_t number() const { return number_; }
  // Where the bytes first differ from what number() asks for; nullopt: nowhere.
  [[nodiscard]] std::optional<std::string> difference() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::vector<std::byte>& bytes = tensors_[i].bytes;
      for (std::size_t at = 0; at < bytes.size(); at += 8) {
        const std::uint64_t word = word_of(number_, i, at);
        if (std::memcmp(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at)) != 0)
          return fmt::format("tensor '{}' differs from state {} at byte {}", tensors_[i].name, number_, at);
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] std::vector<std::byte>& bytes(std::size_t tensor) { return tensors_.at(tensor).bytes; }

  // 0 if the tree holds none.
  [[nodiscard]] static std::uint64_t number_in(std::string_view tree) {
    constexpr std::string_view kKey = R"("number":)";
    const auto at = tree.find(kKey);
    std::uint64_t number = 0;
    if (at != std::string_view::npos)
      std::from_chars(tree.data() + at + kKey.size(), tree.data() + tree.size(), number);
    return number;
  }

 private:
  struct Named {
    std::string name;
    std::vector<std::byte> bytes;
  };
  static std::uint64_t word_of(std::uint64_t number, std::size_t tensor, std::size_t at) {
    std::uint64_t word = (number * 0x100000001b3 + tensor) * 0x9e3779b97f4a7c15 + at;
    word = (word ^ (word >> 29)) * 0xbf58476d1ce4e5b9;
    return word ^ (word >> 32);
  }

  std::vector<Named> tensors_;
  std::uint64_t number_ = 0;
};

}  // namespace slackwater::test
