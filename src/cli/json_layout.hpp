// Lays JSON out for reading: short containers on one line, long ones indented. It works on the text, so that numbers of
// any length and nesting of any depth come out unchanged, and memory does not grow with the document. The text must be
// valid JSON.
#pragma once

#include <functional>
#include <string_view>

namespace slackwater::cli {

void layout_json(std::string_view text, const std::function<void(std::string_view line)>& on_line);

}  // namespace slackwater::cli
