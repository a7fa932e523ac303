// The part of a tree that is selected. Of dicts the other keys go; in lists and tuples None stands for the rest.
// Pure functions; any thread.
#pragma once

#include <optional>
#include <string>

#include "formats/selection.hpp"
#include "formats/tree_node.hpp"

namespace slackwater::formats {

// nullopt: nothing is selected. As nodes.part_of() in Python.
[[nodiscard]] std::optional<TreeNode> select_tree(const TreeNode& node, const Selection& selected,
                                                  const std::string& name = {});

}  // namespace slackwater::formats
