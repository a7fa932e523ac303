#include "store/s3/xml.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::s3 {
namespace {

constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxElements = 200'000;  // a list of 1000 objects has about 8000

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool ends_name(char c) { return is_space(c) || c == '>' || c == '/' || c == '<' || c == '='; }

void append_utf8(std::string& text, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

class XmlParser {
 public:
  explicit XmlParser(std::string_view text) : text_(text) {}

  Result<XmlElement> parse() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    SW_TRY(skip_between());
    if (!next_is("<")) return wrong("there is no element");
    SW_ASSIGN(XmlElement root, element(0));
    SW_TRY(skip_between());
    if (at_ != text_.size()) return wrong("something follows the last element");
    return root;
  }

 private:
  std::unexpected<Error> wrong(std::string_view what) const {
    return fail(ErrorKind::kCorrupt, fmt::format("the object store sent malformed XML: {} at byte {}", what, at_));
  }
  bool next_is(std::string_view token) const { return text_.substr(at_).starts_with(token); }
  Status skip_past(std::string_view token) {
    const std::size_t found = text_.find(token, at_);
    if (found == std::string_view::npos) return wrong(fmt::format("'{}' is missing after it", token));
    at_ = found + token.size();
    return {};
  }

  // Spaces, declarations and comments between elements.
  Status skip_between() {
    for (;;) {
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (next_is("<?")) {
        SW_TRY(skip_past("?>"));
      } else if (next_is("<!--")) {
        SW_TRY(skip_past("-->"));
      } else if (next_is("<!")) {
        return wrong("a document type");
      } else {
        return {};
      }
    }
  }

  Result<std::string> name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && !ends_name(text_[at_])) ++at_;
    if (at_ == begin) return wrong("a name is missing");
    std::string_view found = text_.substr(begin, at_ - begin);
    if (const std::size_t colon = found.rfind(':'); colon != std::string_view::npos) found.remove_prefix(colon + 1);
    return std::string(found);
  }

  // After the name of an opening tag: passes over the attributes. True: "/>", the element is empty.
  Result<bool> end_of_tag() {
    for (;;) {
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (next_is("/>")) {
        at_ += 2;
        return true;
      }
      if (next_is(">")) {
        ++at_;
        return false;
      }
      SW_TRY(name());
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (!next_is("=")) return wrong("an attribute without a value");
      ++at_;
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      if (!next_is("\"") && !next_is("'")) return wrong("a value without quotes");
      const std::string_view quote = text_.substr(at_++, 1);
      SW_TRY(skip_past(quote));
    }
  }

  Result<XmlElement> element(std::size_t depth) {
    if (depth == kMaxDepth) return wrong("elements are nested too deeply");
    if (++count_ > kMaxElements) return wrong("there are too many elements");
    ++at_;  // '<'
    XmlElement result;
    SW_ASSIGN(result.name, name());
    SW_ASSIGN(const bool empty, end_of_tag());
    if (empty) return result;
    while (at_ < text_.size()) {
      if (next_is("</")) {
        at_ += 2;
        SW_ASSIGN(const std::string closed, name());
        while (at_ < text_.size() && is_space(text_[at_])) ++at_;
        if (closed != result.name || !next_is(">")) return wrong("a closing tag does not fit");
        ++at_;
        return result;
      }
      if (next_is("<!--")) {
        SW_TRY(skip_past("-->"));
      } else if (next_is("<![CDATA[")) {
        at_ += 9;
        const std::size_t begin = at_;
        SW_TRY(skip_past("]]>"));
        result.text.append(text_.substr(begin, at_ - 3 - begin));
      } else if (next_is("<!") || next_is("<?")) {
        return wrong("a declaration inside an element");
      } else if (next_is("<")) {
        SW_ASSIGN(XmlElement child, element(depth + 1));
        result.children.push_back(std::move(child));
      } else {
        SW_TRY(characters(result.text));
      }
    }
    return wrong("an element is not closed");
  }

  // Up to the next '<', or one reference.
  Status characters(std::string& into) {
    const std::size_t end = std::min(text_.find_first_of("<&", at_), text_.size());
    into.append(text_.substr(at_, end - at_));
    at_ = end;
    if (!next_is("&")) return {};
    constexpr std::size_t kLongest = 10;  // "&#1114111;"
    const std::size_t semicolon = text_.substr(at_, kLongest).find(';');
    if (semicolon == std::string_view::npos) return wrong("a reference without an end");
    std::string_view reference = text_.substr(at_ + 1, semicolon - 1);
    constexpr std::array<std::pair<std::string_view, char>, 5> kNamed{
        {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
    if (const auto* named = std::ranges::find(kNamed, reference, &std::pair<std::string_view, char>::first);
        named != kNamed.end()) {
      into += named->second;
    } else {
      if (!reference.starts_with('#')) return wrong("a reference that is not known");
      reference.remove_prefix(1);
      const int base = reference.starts_with('x') ? 16 : 10;
      if (base == 16) reference.remove_prefix(1);
      std::uint32_t code = 0;
      const char* const stop = reference.data() + reference.size();
      const auto [parsed, trouble] = std::from_chars(reference.data(), stop, code, base);
      const bool surrogate = code >= 0xD800 && code < 0xE000;
      if (trouble != std::errc() || parsed != stop || code == 0 || surrogate || code > 0x10FFFF)
        return wrong("a number that is no character");
      append_utf8(into, code);
    }
    at_ += semicolon + 1;
    return {};
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t count_ = 0;
};

}  // namespace

const XmlElement* XmlElement::find(std::string_view child) const {
  const auto found = std::ranges::find(children, child, &XmlElement::name);
  return found == children.end() ? nullptr : &*found;
}

std::string XmlElement::text_of(std::string_view child) const {
  const XmlElement* const found = find(child);
  return found == nullptr ? std::string() : found->text;
}

std::optional<std::uint64_t> XmlElement::number_of(std::string_view child) const {
  const std::string digits = text_of(child);
  std::uint64_t number = 0;
  const auto [stop, trouble] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (trouble != std::errc() || stop != digits.data() + digits.size()) return std::nullopt;
  return number;
}

Result<XmlElement> parse_xml(std::string_view text) { return XmlParser(text).parse(); }

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&apos;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

}  // namespace slackwater::s3
