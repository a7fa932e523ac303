// What the fuzz targets share. A target parses what the fuzzer gives it and then checks what must hold of anything that
// was accepted: a parser that lets nonsense through is as wrong as one that crashes.
// Sealed files close with their own digest, which no fuzzer guesses: their targets take the text without it, and seal
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.hpp"
#include "slackwater/error.hpp"

namespace slackwater::fuzz {

// Ends the process, which is how a fuzzer learns of a find.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "the property does not hold: %s\n", property);
  std::abort();
}

// A refusal is one sentence of a bounded length, of a kind that blames the file.
inline void require_refusal(const Error& error) {
  require(error.kind == ErrorKind::kCorrupt || error.kind == ErrorKind::kUnsupported, "a refusal blames the file");
  require(!error.message.empty(), "a refusal says why");
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The text with a digest that fits, in place of its closing brace.
inline std::string sealed(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('}')) text.remove_suffix(1);
  return seal_json_text(std::string(text));
}

// For sealed values: what was accepted is written and read again as the same text, and without its seal it is refused.
template <class Parse, class Serialize, class Check>
void round_trip(std::string_view text, const Parse& parse, const Serialize& write, const Check& check) {
  if (const auto unsealed = parse(text); !unsealed) require_refusal(unsealed.error());
  const auto value = parse(sealed(text));
  if (!value) return require_refusal(value.error());
  check(*value);
  const std::string written = write(*value);
  const auto again = parse(written);
  require(again.has_value(), "what was written can be read");
  require(write(*again) == written, "what was read is what was written");
}

}  // namespace slackwater::fuzz
