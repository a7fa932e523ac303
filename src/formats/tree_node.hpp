// TreeNode: one node of a checkpoint's tree, the typed JSON that python/slackwater/state/codec.py defines. JSON's own
// types stand for themselves. Everything else is an object whose first key starts with "$": {"$t": name} is a tensor,
// {"$": "tuple", "v": [...]} a tuple, and so on. Here the tree is read from untrusted text and written back exactly.
// Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater::formats {

inline constexpr std::size_t kMaxStateDepth = 100;       // of dicts, lists and tuples; deeper ones are refused
inline constexpr std::size_t kMaxTreeDepth = 400;        // of JSON containers: a typed dict takes three levels
inline constexpr std::size_t kMaxTreeNodes = 4'000'000;  // a node takes about 150 bytes of memory
inline constexpr std::int64_t kMaxExactInt = std::int64_t{1} << 53;  // larger numbers are {"$": "int", "v": "0x..."}

struct TreeNode {
  enum class Kind : std::uint8_t { kNull, kBool, kInt, kFloat, kText, kList, kObject };

  Kind kind = Kind::kNull;
  bool truth = false;
  std::int64_t number = 0;
  double real = 0;
  std::string text = {};
  std::vector<TreeNode> items = {};    // of a list, or the values of an object
  std::vector<std::string> keys = {};  // of an object, in its order

  [[nodiscard]] static TreeNode boolean(bool value) { return {.kind = Kind::kBool, .truth = value}; }
  [[nodiscard]] static TreeNode integer(std::int64_t value);  // any size
  [[nodiscard]] static TreeNode floating(double value);       // any bit pattern
  [[nodiscard]] static TreeNode string(std::string value);    // UTF-8, or UTF-8 with lone surrogates as Python has them
  [[nodiscard]] static TreeNode list(std::vector<TreeNode> items = {});
  [[nodiscard]] static TreeNode object() { return {.kind = Kind::kObject}; }
  [[nodiscard]] static TreeNode tensor(std::string name);
  [[nodiscard]] static TreeNode tagged(std::string_view tag, TreeNode value);  // {"$": tag, "v": value}
  void add(std::string key, TreeNode value);                                   // to an object

  // "$t" or "$a" for a tensor, "tuple", "OrderedDict", ... for other typed nodes. Empty for JSON's own types.
  [[nodiscard]] std::string_view tag() const;
  [[nodiscard]] bool is_tensor() const { return tag() == "$t" || tag() == "$a"; }
  [[nodiscard]] const TreeNode* find(std::string_view key) const;  // of an object; null if it has no such key
  [[nodiscard]] const std::string& tensor_name() const { return items[0].text; }  // only if is_tensor()
};

// The state of a tree: what is below "state". kCorrupt for text that codec.py never writes.
[[nodiscard]] Result<TreeNode> parse_tree(std::string_view text, const std::string& path);
// The whole text, with its format number.
[[nodiscard]] std::string tree_text(const TreeNode& state);
// The JSON text of one node.
void append_node(std::string& out, const TreeNode& node);

// Bytes as codec.py stores them, and back. nullopt-like: false if it is not base64.
[[nodiscard]] std::string to_base64(std::string_view bytes);
[[nodiscard]] bool from_base64(std::string_view text, std::string& bytes);

}  // namespace slackwater::formats
