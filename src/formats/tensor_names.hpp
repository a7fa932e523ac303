// Names of tensors from their place in a state, by the rules of python/slackwater/state/names.py: what is imported has
// the names that Checkpointer.save() of the same state gives. A test compares the two. Pure functions; any thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tree_node.hpp"

namespace slackwater::formats {

// "model" and "weight" give "model.weight".
[[nodiscard]] std::string join_name(std::string_view prefix, std::string_view part);

// One key of a dict as a part of a name. A dot or a percent sign in it is written as its code, so that two paths never
// have the same name.
[[nodiscard]] std::string name_segment(const TreeNode& key);

// The names of a dict's values. A dict of nothing but tensors under text keys, such as a state_dict(), keeps its keys
// as they are, dots and all, without what torch.compile and DDP add. `nested` tells whether a value holds tensors
// below itself; it is asked only where that matters.
[[nodiscard]] std::vector<std::string> child_names(std::string_view prefix, const std::vector<TreeNode>& keys,
                                                   const std::function<bool()>& nested);

// The name as other tools expect it: with the codes of name_segment() turned back into what they stand for.
[[nodiscard]] std::string plain_name(std::string_view name);

}  // namespace slackwater::formats
