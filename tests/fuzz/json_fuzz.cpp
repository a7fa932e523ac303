// JSON as the engine reads it, and the typed tree as `slackwater show` lays it out. Input: the text.
#include <string>

#include "cli/json_layout.hpp"
#include "fuzz.hpp"

namespace slackwater::fuzz {
namespace {

int depth_of(const Json& value) {
  int deepest = 0;
  if (value.is_structured())
    for (const Json& item : value) deepest = std::max(deepest, depth_of(item));
  return value.is_structured() ? deepest + 1 : 0;
}

void check_layout(std::string_view text, const Json& value) {
  std::string laid_out;
  cli::layout_json(text, [&](std::string_view line) { laid_out.append(line).append("\n"); });
  // DEL and the C1 controls are escaped, so compare what has none.
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x7F) return;
  const auto again = parse_json(laid_out, "layout");
  require(again.has_value() && *again == value, "the layout means the same");
}

}  // namespace
}  // namespace slackwater::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  const std::string_view text = fuzz::text_of(data, size);
  const auto value = parse_json(text, "tree");
  if (!value) {
    fuzz::require_refusal(value.error());
    return 0;
  }
  fuzz::require(fuzz::depth_of(*value) <= 32, "the depth is bounded");
  const auto again = parse_json(value->dump(), "again");
  fuzz::require(again.has_value() && *again == *value, "what was written means the same");
  fuzz::check_layout(text, *value);

  if (!value->is_object() || value->empty() || value->contains("digest")) return 0;
  const std::string sealed = seal_json(*value);
  const auto opened = open_sealed_json(sealed, "sealed");
  fuzz::require(opened.has_value() && *opened == *value, "a seal opens to what was sealed");
  return 0;
}
