// PatternState: tensors whose every byte is a function of one number, which the tree of the state holds too. So a
// checkpoint says what its bytes must be, whoever wrote it and however often it was rewritten. Not thread-safe; must
// outlive its snapshots' sources.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "slackwater/checkpoint.hpp"
#include "slackwater/engine.hpp"
#include "support/bytes.hpp"

namespace slackwater::test {

class PatternState {
 public:
  struct Part {
    std::string name;
    std::uint64_t size_bytes = 0;
  };
  explicit PatternState(const std::vector<Part>& parts) {
    for (const Part& part : parts) tensors_.push_back({part.name, Bytes(part.size_bytes)});
  }

  void fill(std::uint64_t number) {
    number_ = number;
    for (std::size_t i = 0; i < tensors_.size(); ++i) fill_pattern(tensors_[i].bytes, key_of(number, i));
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
        tensor.bytes.assign(tensor.bytes.size(), std::byte{0});
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
      const Bytes& bytes = tensors_[i].bytes;
      Bytes expected(bytes.size());
      fill_pattern(expected, key_of(number_, i));
      if (bytes == expected) continue;
      const auto at = std::ranges::mismatch(bytes, expected).in1 - bytes.begin();
      return fmt::format("tensor '{}' differs from state {} at byte {}", tensors_[i].name, number_, at);
    }
    return std::nullopt;
  }
  [[nodiscard]] Bytes& bytes(std::size_t tensor) { return tensors_.at(tensor).bytes; }

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
    Bytes bytes;
  };
  static std::uint64_t key_of(std::uint64_t number, std::size_t tensor) { return number * 0x100000001b3 + tensor; }

  std::vector<Named> tensors_;
  std::uint64_t number_ = 0;
};

}  // namespace slackwater::test
