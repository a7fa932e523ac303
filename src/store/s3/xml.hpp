// Reads the small XML that object stores answer with. Untrusted input: bounded depth and number of elements, no
// document types, no entities but the five of XML and character numbers. Attributes and comments are passed over.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater::s3 {

struct XmlElement {
  std::string name;  // without a namespace prefix
  std::string text;  // directly inside it
  std::vector<XmlElement> children;

  [[nodiscard]] const XmlElement* find(std::string_view child) const;  // the first of that name
  [[nodiscard]] std::string text_of(std::string_view child) const;     // empty if there is none
  [[nodiscard]] std::optional<std::uint64_t> number_of(std::string_view child) const;
};

// The root element. kCorrupt says what is wrong and where.
[[nodiscard]] Result<XmlElement> parse_xml(std::string_view text);

// With &, <, > and quotes escaped; for what we send.
[[nodiscard]] std::string escape_xml(std::string_view text);

}  // namespace slackwater::s3
