// PickleInput: the bytes of a pickle, read from front to back. Every length is checked, since the bytes are untrusted.
// Errors name the place that was read last, so whoever checks what was read makes its errors here as well.
// One use, one thread. Lifetime: the bytes and the path outlive it, and the bytes outlive what is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::formats {

class PickleInput {
 public:
  PickleInput(std::string_view bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  // Little-endian, as all numbers of a pickle except its floats.
  template <class Number>
  Result<Number> take_number() {
    if (bytes_.size() - at_ < sizeof(Number)) return corrupt("it ends in the middle of an opcode");
    Number number;
    std::memcpy(&number, bytes_.data() + at_, sizeof number);
    at_ += sizeof number;
    return number;
  }
  Result<std::string_view> take_bytes(std::uint64_t count) {
    if (count > bytes_.size() - at_) return corrupt("a value of {} bytes reaches beyond its end", count);
    const std::string_view found = bytes_.substr(at_, count);
    at_ += count;
    return found;
  }
  // Without its line feed.
  Result<std::string_view> take_line(std::size_t most) {
    const std::size_t end = bytes_.substr(at_, most + 1).find('\n');
    if (end == std::string_view::npos) return corrupt("a name has no end");
    const std::string_view found = bytes_.substr(at_, end);
    at_ += end + 1;
    return found;
  }

  template <class... Args>
  std::unexpected<Error> corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(
        ErrorKind::kCorrupt,
        fmt::format("the pickle is damaged near byte {}: {}", at_, fmt::format(format, std::forward<Args>(args)...)),
        path_);
  }
  [[nodiscard]] std::unexpected<Error> unsupported(std::uint8_t opcode) const {
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("the pickle has the opcode {:#04x} at byte {}, which no weights file needs", opcode, at_ - 1),
        path_);
  }

 private:
  const std::string_view bytes_;
  const std::string& path_;
  std::size_t at_ = 0;
};

}  // namespace slackwater::formats
