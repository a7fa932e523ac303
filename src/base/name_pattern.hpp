// Name patterns: which names of a state somebody means. One dialect everywhere: here, and with the same meaning in
// Python (state/names.py), so that `slackwater show`, --only and restore(only=...) agree. docs/python.md has the rules.
// Pure function; any thread.
#pragma once

#include <string_view>

namespace slackwater {

// `*` any text, `?` one character, `[abc]`, `[a-z]` one of these, `[!abc]` one of the others. There are no escapes. The
// pattern means the whole name, or a part of the state and everything below it: "model" matches "model.0.weight" too.
// Several stars take no longer than one.
[[nodiscard]] bool matches_name(std::string_view pattern, std::string_view name);

}  // namespace slackwater
