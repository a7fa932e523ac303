#include "formats/torch_values.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/tensor_names.hpp"

namespace slackwater::formats {
namespace {

using Kind = PickleNode::Kind;

constexpr std::array<std::string_view, 7> kFactories{"list", "dict", "set", "int", "float", "str", "tuple"};

// Digits of a whole number as Python's hex() writes them.
std::string hex_text(std::string_view little_endian) {
  const bool negative = (static_cast<unsigned char>(little_endian.back()) & 0x80) != 0;
  std::vector<unsigned char> digits(little_endian.begin(), little_endian.end());
  unsigned carry = 1;
  if (negative) {
    for (unsigned char& digit : digits) {
      const unsigned value = static_cast<unsigned char>(~digit) + carry;
      digit = static_cast<unsigned char>(value);
      carry = value >> 8;
    }
  }
  std::string out;
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) out += fmt::format("{:02x}", *digit);
  const std::size_t first = std::min(out.find_first_not_of('0'), out.size() - 1);
  return fmt::format("{}0x{}", negative ? "-" : "", out.substr(first));
}

// Text of which each character is one byte. false: a character is none.
bool latin1_bytes(std::string_view text, std::string& bytes) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
    } else if ((lead == 0xc2 || lead == 0xc3) && i + 1 < text.size()) {
      bytes += static_cast<char>((lead & 3) << 6 | (text[++i] & 0x3f));
    } else {
      return false;
    }
  }
  return true;
}

TreeNode bytes_node(std::string_view tag, std::string_view bytes) {
  return TreeNode::tagged(tag, TreeNode::string(to_base64(bytes)));
}

std::string float_hex(double value) {
  const TreeNode node = TreeNode::floating(value);
  if (node.kind != TreeNode::Kind::kFloat) return node.items[1].text;
  return fmt::format("{:a}", value);  // float.fromhex() reads it
}

// Whether a dict with these keys can be a JSON object.
bool fits_object(const std::vector<TreeNode>& keys) {
  return std::ranges::all_of(
      keys, [](const TreeNode& key) { return key.kind == TreeNode::Kind::kText && !key.text.starts_with('$'); });
}

}  // namespace

TorchValues::TorchValues(const PickleGraph& graph, FindStorage find_storage, const Selection& selected,
                         const std::string& path, std::vector<Tensor>& tensors)
    : graph_(graph), find_storage_(std::move(find_storage)), selected_(selected), path_(path), tensors_(tensors) {}

Result<std::optional<TreeNode>> TorchValues::read(const std::string& name) {
  return convert(graph_.root_id(), name, 0);
}

std::unexpected<Error> TorchValues::corrupt(const std::string& name, const char* what) const {
  return fail(ErrorKind::kCorrupt, fmt::format("the pickle is damaged: '{}' {}", name, what), path_);
}

std::unexpected<Error> TorchValues::unsupported(const std::string& name, const std::string& what) const {
  return fail(ErrorKind::kUnsupported,
              fmt::format("'{}' is {}, which cannot be read without running code from the file; save a state_dict() "
                          "without it, or choose what to import with --only",
                          name, what),
              path_);
}

Status TorchValues::count() {
  const std::size_t most = std::min(kMaxTreeNodes, graph_.most_values());
  if (++count_ <= most) return {};
  return fail(ErrorKind::kCorrupt, fmt::format("the file holds more than {} values", most), path_);
}

TorchValues::Pairs TorchValues::pairs_of(const std::vector<NodeId>& items) const {
  Pairs pairs;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) pairs.emplace_back(items[i], items[i + 1]);
  return pairs;
}

// Containers

Result<std::optional<TreeNode>> TorchValues::convert(NodeId id, const std::string& name, std::size_t depth) {
  const PickleNode& node = graph_.at(id);
  SW_TRY(count());
  if (depth > kMaxStateDepth) return corrupt(name, "is nested too deeply");
  switch (node.kind) {
    case Kind::kList: return sequence(node.items, name, depth);
    case Kind::kTuple: {
      SW_ASSIGN(auto items, sequence(node.items, name, depth));
      if (!items) return std::nullopt;
      return TreeNode::tagged("tuple", std::move(*items));
    }
    case Kind::kDict: return mapping(pairs_of(node.items), "", name, depth);
    case Kind::kCall: return call(id, name, depth);
    default: break;
  }
  if (!selected_(name)) return std::nullopt;
  return leaf(id, name, depth);
}

Result<std::optional<TreeNode>> TorchValues::sequence(const std::vector<NodeId>& items, const std::string& name,
                                                      std::size_t depth) {
  TreeNode list = TreeNode::list();
  bool any = items.empty() && selected_(name);
  for (std::size_t i = 0; i < items.size(); ++i) {
    SW_ASSIGN(auto item, convert(items[i], join_name(name, fmt::format("{}", i)), depth + 1));
    any |= item.has_value();
    list.items.push_back(item ? std::move(*item) : TreeNode());  // None where something is left out
  }
  if (!any) return std::nullopt;
  return list;
}

// `tag`: empty for a dict, "OrderedDict" and the like otherwise.
Result<std::optional<TreeNode>> TorchValues::mapping(const Pairs& pairs, std::string_view tag, const std::string& name,
                                                     std::size_t depth) {
  std::vector<TreeNode> keys;
  for (const auto& [key, value] : pairs) {
    SW_ASSIGN(TreeNode made, leaf(key, name + " (a key)", depth + 1));
    keys.push_back(std::move(made));
  }
  const std::vector<std::string> names = child_names(name, keys, [&] {
    return std::ranges::any_of(pairs, [&](const auto& pair) { return holds_tensors_below(pair.second, depth); });
  });
  const bool as_object = tag.empty() && fits_object(keys);
  TreeNode object = TreeNode::object();
  TreeNode list = TreeNode::list();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    SW_ASSIGN(auto value, convert(pairs[i].second, names[i], depth + 1));
    if (!value) continue;
    if (as_object)
      object.add(std::move(keys[i].text), std::move(*value));
    else
      list.items.push_back(TreeNode::list({std::move(keys[i]), std::move(*value)}));
  }
  if (object.items.empty() && list.items.empty() && !(pairs.empty() && selected_(name))) return std::nullopt;
  if (as_object) return object;
  return TreeNode::tagged(tag.empty() ? "dict" : tag, std::move(list));
}

Result<std::optional<TreeNode>> TorchValues::call(NodeId id, const std::string& name, std::size_t depth) {
  const PickleNode& node = graph_.at(id);
  const std::string_view function = graph_.called(node);
  const std::vector<NodeId>& arguments = graph_.arguments(node);
  if (is_tensor(node)) {
    if (!selected_(name)) return std::nullopt;
    SW_ASSIGN(Tensor made, tensor(function, arguments, name));
    tensors_.push_back(std::move(made));
    return TreeNode::tensor(name);
  }
  if (function == "collections.OrderedDict") return mapping(pairs_of(node.items), "OrderedDict", name, depth);
  if (function == "collections.Counter" && arguments.size() == 1 && graph_.at(arguments[0]).kind == Kind::kDict)
    return mapping(pairs_of(graph_.at(arguments[0]).items), "Counter", name, depth);
  if (function == "collections.defaultdict" && arguments.size() <= 1) {
    std::string factory = "None";
    if (!arguments.empty() && graph_.at(arguments[0]).kind != Kind::kNone) {
      const std::string_view made = graph_.at(arguments[0]).text;
      const auto known = std::ranges::find_if(
          kFactories, [&](std::string_view one) { return made == fmt::format("builtins.{}", one); });
      if (known == kFactories.end()) return unsupported(name, fmt::format("a defaultdict of {}", made));
      factory = *known;
    }
    SW_ASSIGN(auto made, mapping(pairs_of(node.items), "defaultdict", name, depth));
    if (made) made->add("factory", TreeNode::string(factory));
    return made;
  }
  if (function == "argparse.Namespace" || function == "types.SimpleNamespace") {
    const bool known = node.state != kNoNode && graph_.at(node.state).kind == Kind::kDict;
    SW_ASSIGN(auto made, mapping(known ? pairs_of(graph_.at(node.state).items) : Pairs(), "", name, depth));
    if (!made) return std::nullopt;
    return TreeNode::tagged(function == "argparse.Namespace" ? "Namespace" : "SimpleNamespace", std::move(*made));
  }
  if (!selected_(name)) return std::nullopt;
  return leaf(id, name, depth);
}

// Leaves

Result<TreeNode> TorchValues::leaf(NodeId id, const std::string& name, std::size_t depth) {
  const PickleNode& node = graph_.at(id);
  SW_TRY(count());
  if (depth > kMaxStateDepth) return corrupt(name, "is nested too deeply");
  switch (node.kind) {
    case Kind::kNone: return TreeNode();
    case Kind::kBool: return TreeNode::boolean(node.number != 0);
    case Kind::kInt: return TreeNode::integer(node.number);
    case Kind::kBigInt: return TreeNode::tagged("int", TreeNode::string(hex_text(node.text)));
    case Kind::kFloat: return TreeNode::floating(node.real);
    case Kind::kText: return TreeNode::string(std::string(node.text));
    case Kind::kBytes: return bytes_node("bytes", node.text);
    case Kind::kByteArray: return bytes_node("bytearray", node.text);
    case Kind::kTuple:
    case Kind::kFrozenSet:
    case Kind::kSet: {
      SW_ASSIGN(auto items, leaves(node.items, name, depth));
      const char* tag = node.kind == Kind::kTuple ? "tuple" : node.kind == Kind::kSet ? "set" : "frozenset";
      return TreeNode::tagged(tag, TreeNode::list(std::move(items)));
    }
    case Kind::kGlobal:
      if (node.text.starts_with("torch.") && dtype_from_name(node.text.substr(6)))
        return TreeNode::tagged("torch", TreeNode::string(std::string(node.text.substr(6))));
      return unsupported(name, fmt::format("the object {}", node.text));
    case Kind::kCall: return called_leaf(node, name, depth);
    case Kind::kList:
    case Kind::kDict: return corrupt(name, "has a list or a dict where Python allows none");
    case Kind::kPersistent: return unsupported(name, "a bare storage");
  }
  return corrupt(name, "is of an unknown kind");
}

Result<std::vector<TreeNode>> TorchValues::leaves(const std::vector<NodeId>& items, const std::string& name,
                                                  std::size_t depth) {
  std::vector<TreeNode> nodes;
  for (const NodeId item : items) {
    SW_ASSIGN(TreeNode node, leaf(item, name, depth + 1));
    nodes.push_back(std::move(node));
  }
  return nodes;
}

Result<TreeNode> TorchValues::called_leaf(const PickleNode& node, const std::string& name, std::size_t depth) {
  const std::string_view function = graph_.called(node);
  const std::vector<NodeId>& arguments = graph_.arguments(node);
  const auto argument = [&](std::size_t index) -> const PickleNode& { return graph_.at(arguments[index]); };
  if (function == "builtins.set" || function == "builtins.frozenset") {
    if (arguments.size() > 1 ||
        (arguments.size() == 1 && argument(0).kind != Kind::kList && argument(0).kind != Kind::kTuple))
      return corrupt(name, "is a malformed set");
    SW_ASSIGN(auto items, leaves(arguments.empty() ? std::vector<NodeId>() : argument(0).items, name, depth));
    return TreeNode::tagged(function.substr(9), TreeNode::list(std::move(items)));
  }
  if (function == "collections.deque") {
    TreeNode made = TreeNode::object();
    made.add("$", TreeNode::string("deque"));
    made.add("maxlen", arguments.size() == 2 && argument(1).kind == Kind::kInt ? TreeNode::integer(argument(1).number)
                                                                               : TreeNode());
    std::vector<NodeId> held;
    if (!arguments.empty() && argument(0).kind == Kind::kList) held = argument(0).items;
    held.insert(held.end(), node.items.begin(), node.items.end());
    SW_ASSIGN(auto items, leaves(held, name, depth));
    made.add("v", TreeNode::list(std::move(items)));
    return made;
  }
  if (function == "builtins.complex" && arguments.size() == 2 && argument(0).kind == Kind::kFloat &&
      argument(1).kind == Kind::kFloat) {
    return TreeNode::tagged("complex", TreeNode::list({TreeNode::string(float_hex(argument(0).real)),
                                                       TreeNode::string(float_hex(argument(1).real))}));
  }
  if ((function == "builtins.slice" || function == "builtins.range") && arguments.size() == 3) {
    SW_ASSIGN(auto items, leaves(arguments, name, depth));
    return TreeNode::tagged(function.substr(9), TreeNode::list(std::move(items)));
  }
  if (function == "_codecs.encode" || (function == "builtins.bytes" && arguments.empty())) {
    std::string bytes;
    if (!arguments.empty() && (argument(0).kind != Kind::kText || !latin1_bytes(argument(0).text, bytes)))
      return corrupt(name, "has malformed bytes");
    return bytes_node("bytes", bytes);
  }
  if (function == "builtins.bytearray") {
    std::string bytes;
    if (!arguments.empty() && argument(0).kind == Kind::kText) {
      if (!latin1_bytes(argument(0).text, bytes)) return corrupt(name, "has malformed bytes");
    } else if (!arguments.empty()) {
      SW_ASSIGN(bytes, bytes_of(arguments[0], name));
    }
    return bytes_node("bytearray", bytes);
  }
  if (function == "torch.Size" && arguments.size() == 1) {
    SW_ASSIGN(const auto sizes, numbers(arguments[0], name));
    TreeNode list = TreeNode::list();
    for (const std::int64_t size : sizes) list.items.push_back(TreeNode::integer(size));
    return TreeNode::tagged("torch.Size", std::move(list));
  }
  if (function == "torch.device" && !arguments.empty() && argument(0).kind == Kind::kText) {
    std::string device(argument(0).text);
    if (arguments.size() == 2 && argument(1).kind == Kind::kInt) device += fmt::format(":{}", argument(1).number);
    return TreeNode::tagged("torch.device", TreeNode::string(std::move(device)));
  }
  if (function.starts_with("numpy.") && function.ends_with(".multiarray.scalar")) return numpy_scalar(node, name);
  const PickleNode& callable = graph_.at(node.callable);
  return unsupported(name, callable.kind == Kind::kGlobal ? fmt::format("a {}", callable.text) : "a computed object");
}

// numpy.float64(0.5) and the like: a dtype and the bytes.
Result<TreeNode> TorchValues::numpy_scalar(const PickleNode& node, const std::string& name) const {
  const std::vector<NodeId>& arguments = graph_.arguments(node);
  if (arguments.size() != 2) return corrupt(name, "is a NumPy scalar without its bytes");
  const PickleNode& dtype = graph_.at(arguments[0]);
  const std::vector<NodeId>& described = graph_.arguments(dtype);
  if (graph_.called(dtype) != "numpy.dtype" || described.empty() || graph_.at(described[0]).kind != Kind::kText)
    return unsupported(name, "a NumPy scalar of an unknown dtype");
  std::string order = "|";  // of its bytes
  if (dtype.state != kNoNode && graph_.at(dtype.state).items.size() > 1) {
    const PickleNode& given = graph_.at(graph_.at(dtype.state).items[1]);
    if (given.kind == Kind::kText && given.text.size() == 1) order = given.text;
  }
  const std::string_view kind = graph_.at(described[0]).text;
  if (kind.empty() || std::string_view("biufcSUmM").find(kind[0]) == std::string_view::npos || order == ">")
    return unsupported(name, fmt::format("a NumPy scalar of dtype {}{}", order, kind));
  SW_ASSIGN(const std::string bytes, bytes_of(arguments[1], name));
  TreeNode made = TreeNode::object();
  made.add("$", TreeNode::string("np"));
  made.add("dtype", TreeNode::string(fmt::format("{}{}", order, kind)));
  made.add("v", TreeNode::string(to_base64(bytes)));
  return made;
}

Result<std::string> TorchValues::bytes_of(NodeId id, const std::string& name) const {
  const PickleNode& node = graph_.at(id);
  if (node.kind == Kind::kBytes) return std::string(node.text);
  const std::vector<NodeId>& arguments = graph_.arguments(node);
  std::string bytes;
  if (graph_.called(node) == "_codecs.encode" && !arguments.empty() && graph_.at(arguments[0]).kind == Kind::kText &&
      latin1_bytes(graph_.at(arguments[0]).text, bytes))
    return bytes;
  return corrupt(name, "has malformed bytes");
}

}  // namespace slackwater::formats
