#include "formats/tree_node.hpp"

#include <array>
#include <bit>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/result.hpp"
#include "layout/json_text.hpp"

namespace slackwater::formats {
namespace {

constexpr std::int64_t kTreeFormat = 1;
constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Builds a TreeNode from parser events, with its own stack: no depth of the text can exhaust ours.
class TreeBuilder {
 public:
  bool null() { return add({}); }
  bool boolean(bool value) { return add(TreeNode::boolean(value)); }
  bool number_integer(std::int64_t value) { return add({.kind = TreeNode::Kind::kInt, .number = value}); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return refuse("holds a number beyond 2^63");
    return number_integer(static_cast<std::int64_t>(value));
  }
  bool number_float(double value, const std::string& /*text*/) {
    return add({.kind = TreeNode::Kind::kFloat, .real = value});
  }
  bool string(std::string& value) { return add({.kind = TreeNode::Kind::kText, .text = std::move(value)}); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return refuse("holds binary data"); }
  bool start_object(std::size_t /*size*/) { return open({.kind = TreeNode::Kind::kObject}); }
  bool start_array(std::size_t /*size*/) { return open({.kind = TreeNode::Kind::kList}); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    open_.back()->keys.push_back(std::move(name));
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/, const nlohmann::json::exception& /*error*/) {
    return refuse(fmt::format("is not valid JSON near byte {}", position));
  }

  [[nodiscard]] TreeNode take() { return std::move(root_); }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  TreeNode* place(TreeNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    return &open_.back()->items.emplace_back(std::move(node));
  }
  bool add(TreeNode node) { return below_limit() && place(std::move(node)) != nullptr; }
  bool open(TreeNode node) {
    if (open_.size() >= kMaxTreeDepth) return refuse(fmt::format("is nested deeper than {} levels", kMaxTreeDepth));
    if (!below_limit()) return false;
    open_.push_back(place(std::move(node)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  bool below_limit() {
    return ++nodes_ <= kMaxTreeNodes || refuse(fmt::format("holds more than {} values", kMaxTreeNodes));
  }
  bool refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  TreeNode root_;
  std::vector<TreeNode*> open_;  // outermost first; none moves while an inner one is open
  std::size_t nodes_ = 0;
  std::string problem_;
};

void append_float(std::string& out, double value) {
  const std::size_t begin = out.size();
  fmt::format_to(std::back_inserter(out), "{}", value);
  // Python reads 1 as an int and 1.0 as a float.
  if (out.find_first_of(".en", begin) == std::string::npos) out += ".0";
}

std::string float_text(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("nan:{:016x}", std::bit_cast<std::uint64_t>(value));
}

}  // namespace

TreeNode TreeNode::integer(std::int64_t value) {
  if (value >= -kMaxExactInt && value <= kMaxExactInt) return {.kind = Kind::kInt, .number = value};
  const auto magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  return tagged("int", string(fmt::format("{}0x{:x}", value < 0 ? "-" : "", magnitude)));
}

TreeNode TreeNode::floating(double value) {
  if (std::isfinite(value)) return {.kind = Kind::kFloat, .real = value};
  return tagged("float", string(float_text(value)));
}

TreeNode TreeNode::string(std::string value) {
  if (is_utf8(value)) return {.kind = Kind::kText, .text = std::move(value)};
  return tagged("str", {.kind = Kind::kText, .text = to_base64(value)});
}

TreeNode TreeNode::list(std::vector<TreeNode> items) { return {.kind = Kind::kList, .items = std::move(items)}; }

TreeNode TreeNode::tensor(std::string name) {
  TreeNode node = object();
  node.add("$t", {.kind = Kind::kText, .text = std::move(name)});
  return node;
}

TreeNode TreeNode::tagged(std::string_view tag, TreeNode value) {
  TreeNode node = object();
  node.add("$", {.kind = Kind::kText, .text = std::string(tag)});
  node.add("v", std::move(value));
  return node;
}

void TreeNode::add(std::string key, TreeNode value) {
  keys.push_back(std::move(key));
  items.push_back(std::move(value));
}

std::string_view TreeNode::tag() const {
  if (kind != Kind::kObject || keys.empty() || !keys[0].starts_with('$')) return {};
  if (keys[0] != "$") return items[0].kind == Kind::kText ? std::string_view(keys[0]) : "?";
  return items[0].kind == Kind::kText ? std::string_view(items[0].text) : "?";
}

const TreeNode* TreeNode::find(std::string_view key) const {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return &items[i];
  return nullptr;
}

Result<TreeNode> parse_tree(std::string_view text, const std::string& path) {
  TreeBuilder builder;
  if (!nlohmann::json::sax_parse(text, &builder) || !builder.problem().empty()) {
    return fail(ErrorKind::kCorrupt, fmt::format("the tree of the checkpoint {}", builder.problem()), path);
  }
  TreeNode document = builder.take();
  const TreeNode* format = document.find("slackwater_tree");
  const TreeNode* state = document.find("state");
  if (format == nullptr || state == nullptr || format->kind != TreeNode::Kind::kInt) {
    return fail(ErrorKind::kUnsupported,
                "the tree of the checkpoint was not saved from Python, so only its tensors can be exported; "
                "use --map '=' to export them by their names",
                path);
  }
  if (format->number != kTreeFormat) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("the tree of the checkpoint has format {}, but this build reads only {}; use a newer one",
                            format->number, kTreeFormat),
                path);
  }
  return std::move(document.items[static_cast<std::size_t>(state - document.items.data())]);
}

std::string tree_text(const TreeNode& state) {
  std::string out = fmt::format("{{\"slackwater_tree\":{},\"state\":", kTreeFormat);
  append_node(out, state);
  out += '}';
  return out;
}

void append_node(std::string& out, const TreeNode& node) {
  switch (node.kind) {
    case TreeNode::Kind::kNull: out += "null"; return;
    case TreeNode::Kind::kBool: out += node.truth ? "true" : "false"; return;
    case TreeNode::Kind::kInt: out += fmt::format("{}", node.number); return;
    case TreeNode::Kind::kFloat: append_float(out, node.real); return;
    case TreeNode::Kind::kText: append_json_string(out, node.text); return;
    case TreeNode::Kind::kList:
    case TreeNode::Kind::kObject: break;
  }
  const bool is_object = node.kind == TreeNode::Kind::kObject;
  out += is_object ? '{' : '[';
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    if (i > 0) out += ',';
    if (is_object) {
      append_json_string(out, node.keys[i]);
      out += ':';
    }
    append_node(out, node.items[i]);
  }
  out += is_object ? '}' : ']';
}

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += k <= count ? kBase64[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

bool from_base64(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (text.size() % 4 != 0) return false;
  while (text.ends_with('=') && text.size() % 4 != 1) text.remove_suffix(1);
  std::uint32_t group = 0;
  unsigned bits = 0;
  for (const char c : text) {
    const std::size_t digit = kBase64.find(c);
    if (digit == std::string_view::npos) return false;
    group = group << 6 | static_cast<std::uint32_t>(digit);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      bytes += static_cast<char>(group >> bits & 255);
    }
  }
  return true;
}

}  // namespace slackwater::formats
