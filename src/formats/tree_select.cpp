#include "formats/tree_select.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "formats/tensor_names.hpp"

namespace slackwater::formats {
namespace {

bool has_pairs(std::string_view tag) {
  return tag == "dict" || tag == "OrderedDict" || tag == "defaultdict" || tag == "Counter";
}

std::optional<TreeNode> with_value(const TreeNode& node, std::optional<TreeNode> value) {
  if (!value) return std::nullopt;
  TreeNode made = node;
  for (std::size_t i = 0; i < made.keys.size(); ++i)
    if (made.keys[i] == "v") made.items[i] = std::move(*value);
  return made;
}

std::optional<TreeNode> select_pairs(const TreeNode& list, const Selection& selected, const std::string& name) {
  TreeNode made = TreeNode::list();
  for (const TreeNode& pair : list.items) {
    if (pair.items.size() != 2) continue;  // malformed; write_value() says so if it is selected
    auto value = select_tree(pair.items[1], selected, join_name(name, name_segment(pair.items[0])));
    if (value) made.items.push_back(TreeNode::list({pair.items[0], std::move(*value)}));
  }
  if (made.items.empty() && !(list.items.empty() && selected(name))) return std::nullopt;
  return made;
}

std::optional<TreeNode> select_items(const TreeNode& list, const Selection& selected, const std::string& name) {
  TreeNode made = TreeNode::list();
  bool any = list.items.empty() && selected(name);
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    auto value = select_tree(list.items[i], selected, join_name(name, fmt::format("{}", i)));
    any |= value.has_value();
    made.items.push_back(value ? std::move(*value) : TreeNode());
  }
  if (!any) return std::nullopt;
  return made;
}

}  // namespace

std::optional<TreeNode> select_tree(const TreeNode& node, const Selection& selected, const std::string& name) {
  if (selected.everything()) return node;
  const auto leaf = [&](const std::string& own) { return selected(own) ? std::optional(node) : std::nullopt; };
  if (node.kind == TreeNode::Kind::kList) return select_items(node, selected, name);
  if (node.kind != TreeNode::Kind::kObject) return leaf(name);
  const std::string_view tag = node.tag();
  if (tag.empty()) {
    TreeNode made = TreeNode::object();
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string child = join_name(name, name_segment({.kind = TreeNode::Kind::kText, .text = node.keys[i]}));
      if (auto value = select_tree(node.items[i], selected, child)) made.add(node.keys[i], std::move(*value));
    }
    if (made.items.empty() && !(node.items.empty() && selected(name))) return std::nullopt;
    return made;
  }
  if (node.is_tensor()) return leaf(node.tensor_name());
  const TreeNode* value = node.find("v");
  if (value == nullptr) return leaf(name);
  if (tag == "object" || tag == "subclass" || tag == "Namespace" || tag == "SimpleNamespace")
    return with_value(node, select_tree(*value, selected, name));
  if (has_pairs(tag)) return with_value(node, select_pairs(*value, selected, name));
  if (tag == "tuple" || tag == "namedtuple" || tag == "deque")
    return with_value(node, select_items(*value, selected, name));
  return leaf(name);
}

}  // namespace slackwater::formats
