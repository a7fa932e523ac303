#include "formats/pickle_reader.hpp"

#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/pickle_input.hpp"
#include "formats/pickle_stack.hpp"

namespace slackwater::formats {
namespace {

constexpr std::size_t kMaxGlobalName = 1'000;

// Python 2 called these modules otherwise, and protocol 2 still does.
std::string_view modern_module(std::string_view module) {
  if (module == "__builtin__") return "builtins";
  if (module == "copy_reg") return "copyreg";
  return module;
}

}  // namespace

// Carries out the opcodes, one after the other. One use.
class PickleGraph::Machine {
 public:
  Machine(std::string_view bytes, const std::string& path, PickleGraph& graph)
      : input_(bytes, path), stack_(input_, graph.nodes_, graph.names_) {}

  // Returns the value that the pickle stands for.
  Result<NodeId> run() {
    for (;;) {
      SW_ASSIGN(const std::uint8_t opcode, input_.take_number<std::uint8_t>());
      if (opcode == '.') break;
      SW_TRY(step(opcode));
    }
    return stack_.pop_root();
  }

 private:
  using Kind = PickleNode::Kind;

  Status step(std::uint8_t opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        SW_ASSIGN(const auto protocol, input_.take_number<std::uint8_t>());
        if (protocol < 2 || protocol > 5) return input_.corrupt("it has protocol {}", protocol);
        return {};
      }
      case 0x95: return skip_frame();
      case 'N': return stack_.push({.kind = Kind::kNone});
      case 0x88: return stack_.push({.kind = Kind::kBool, .number = 1});
      case 0x89: return stack_.push({.kind = Kind::kBool});
      case 'J': return push_number<std::int32_t>();
      case 'K': return push_number<std::uint8_t>();
      case 'M': return push_number<std::uint16_t>();
      case 0x8a: return push_long<std::uint8_t>();
      case 0x8b: return push_long<std::uint32_t>();
      case 'G': return push_float();
      case 'X': return push_text<std::uint32_t>(Kind::kText);
      case 0x8c: return push_text<std::uint8_t>(Kind::kText);
      case 0x8d: return push_text<std::uint64_t>(Kind::kText);
      case 'B': return push_text<std::uint32_t>(Kind::kBytes);
      case 'C': return push_text<std::uint8_t>(Kind::kBytes);
      case 0x8e: return push_text<std::uint64_t>(Kind::kBytes);
      case 0x96: return push_text<std::uint64_t>(Kind::kByteArray);
      case 'T': return push_text<std::uint32_t>(Kind::kText);  // a str of Python 2
      case 'U': return push_text<std::uint8_t>(Kind::kText);
      case ']': return stack_.push({.kind = Kind::kList});
      case ')': return stack_.push({.kind = Kind::kTuple});
      case '}': return stack_.push({.kind = Kind::kDict});
      case 0x8f: return stack_.push({.kind = Kind::kSet});
      case '(': return stack_.mark();
      case 't': return collect(Kind::kTuple);
      case 0x91: return collect(Kind::kFrozenSet);
      case 0x85: return tuple_of(1);
      case 0x86: return tuple_of(2);
      case 0x87: return tuple_of(3);
      case 'a': return append(1);
      case 'e': return append_marked();
      case 0x90: return append_marked();  // ADDITEMS
      case 's': return set_items(2);
      case 'u': return set_marked();
      case 'c': return push_global();
      case 0x93: return push_stacked_global();
      case 'R': return call();
      case 0x81: return call();  // NEWOBJ: cls.__new__(cls, *args)
      case 'b': return set_state();
      case 'Q': return push_persistent();
      case 'h': return recall<std::uint8_t>();
      case 'j': return recall<std::uint32_t>();
      case 'q': return remember<std::uint8_t>();
      case 'r': return remember<std::uint32_t>();
      case 0x94: return stack_.remember_next();
      default: return input_.unsupported(opcode);
    }
  }

  // FRAME: a hint how much to read at once.
  Status skip_frame() {
    SW_TRY(input_.take_bytes(sizeof(std::uint64_t)));
    return {};
  }
  template <class Number>
  Status push_number() {
    SW_ASSIGN(const Number number, input_.take_number<Number>());
    return stack_.push({.kind = Kind::kInt, .number = number});
  }
  template <class Length>
  Status push_long() {
    SW_ASSIGN(const Length length, input_.take_number<Length>());
    SW_ASSIGN(const std::string_view digits, input_.take_bytes(length));
    if (digits.size() > sizeof(std::int64_t)) return stack_.push({.kind = Kind::kBigInt, .text = digits});
    const bool negative = !digits.empty() && (static_cast<unsigned char>(digits.back()) & 0x80) != 0;
    std::int64_t number = negative ? -1 : 0;
    std::memcpy(&number, digits.data(), digits.size());  // little-endian, as the digits are
    return stack_.push({.kind = Kind::kInt, .number = number});
  }
  Status push_float() {
    SW_ASSIGN(const std::uint64_t bits, input_.take_number<std::uint64_t>());
    return stack_.push({.kind = Kind::kFloat, .real = std::bit_cast<double>(__builtin_bswap64(bits))});
  }
  template <class Length>
  Status push_text(Kind kind) {
    SW_ASSIGN(const Length length, input_.take_number<Length>());
    SW_ASSIGN(const std::string_view text, input_.take_bytes(length));
    return stack_.push({.kind = kind, .text = text});
  }
  Status collect(Kind kind) {
    SW_ASSIGN(std::vector<NodeId> items, stack_.pop_marked());
    return stack_.push({.kind = kind, .items = std::move(items)});
  }
  Status tuple_of(std::size_t count) {
    SW_ASSIGN(std::vector<NodeId> items, stack_.pop_many(count));
    return stack_.push({.kind = Kind::kTuple, .items = std::move(items)});
  }
  Status append(std::size_t count) {
    SW_ASSIGN(const std::vector<NodeId> items, stack_.pop_many(count, 1));
    return append_items(items);
  }
  Status append_marked() {
    SW_ASSIGN(const std::vector<NodeId> items, stack_.pop_marked());
    return append_items(items);
  }
  Status append_items(const std::vector<NodeId>& items) {
    if (!stack_.has(1)) return input_.corrupt("a list is missing on the stack");
    PickleNode& target = stack_.top();
    const bool takes = target.kind == Kind::kList || target.kind == Kind::kSet ||
                       (target.kind == Kind::kCall && (!target.pairs || target.items.empty()));
    if (!takes) return input_.corrupt("values are appended to something that is not a list");
    target.pairs = false;
    target.items.insert(target.items.end(), items.begin(), items.end());
    return {};
  }
  Status set_items(std::size_t count) {
    SW_ASSIGN(const std::vector<NodeId> items, stack_.pop_many(count, 1));
    return set_pairs(items);
  }
  Status set_marked() {
    SW_ASSIGN(const std::vector<NodeId> items, stack_.pop_marked());
    return set_pairs(items);
  }
  Status set_pairs(const std::vector<NodeId>& items) {
    if (!stack_.has(1) || items.size() % 2 != 0)
      return input_.corrupt("a dict or a value of it is missing on the stack");
    PickleNode& target = stack_.top();
    const bool takes =
        target.kind == Kind::kDict || (target.kind == Kind::kCall && (target.pairs || target.items.empty()));
    if (!takes) return input_.corrupt("keys are set on something that is not a dict");
    target.pairs = true;
    target.items.insert(target.items.end(), items.begin(), items.end());
    return {};
  }
  Status push_global() {
    SW_ASSIGN(const std::string_view module, input_.take_line(kMaxGlobalName));
    SW_ASSIGN(const std::string_view name, input_.take_line(kMaxGlobalName));
    return push_named(module, name);
  }
  Status push_stacked_global() {
    SW_ASSIGN(const NodeId name, stack_.pop());
    SW_ASSIGN(const NodeId module, stack_.pop());
    const PickleNode& a = stack_.at(module);
    const PickleNode& b = stack_.at(name);
    if (a.kind != Kind::kText || b.kind != Kind::kText || a.text.size() + b.text.size() > kMaxGlobalName)
      return input_.corrupt("the name of a global is not text, or is too long");
    return push_named(a.text, b.text);
  }
  Status push_named(std::string_view module, std::string_view name) {
    std::string full = fmt::format("{}.{}", modern_module(module), name);
    if (full == "builtins.xrange") full = "builtins.range";
    return stack_.push_global(std::move(full));
  }
  Status call() {
    SW_ASSIGN(const NodeId arguments, stack_.pop());
    SW_ASSIGN(const NodeId callable, stack_.pop());
    return stack_.push({.kind = Kind::kCall, .callable = callable, .arguments = arguments});
  }
  Status set_state() {
    SW_ASSIGN(const NodeId state, stack_.pop());
    if (!stack_.has(1)) return input_.corrupt("an object is missing on the stack");
    PickleNode& target = stack_.top();
    if (target.kind != Kind::kCall) return input_.corrupt("a state is set on something that is not an object");
    target.state = state;
    return {};
  }
  Status push_persistent() {
    SW_ASSIGN(const NodeId id, stack_.pop());
    return stack_.push({.kind = Kind::kPersistent, .items = {id}});
  }
  template <class Number>
  Status recall() {
    SW_ASSIGN(const Number slot, input_.take_number<Number>());
    return stack_.recall(slot);
  }
  template <class Number>
  Status remember() {
    SW_ASSIGN(const Number slot, input_.take_number<Number>());
    return stack_.remember(slot);
  }

  PickleInput input_;
  PickleStack stack_;
};

Result<PickleGraph> PickleGraph::read(std::string_view bytes, const std::string& path) {
  if (bytes.size() > kMaxPickleBytes)
    return fail(ErrorKind::kCorrupt, "the pickle is larger than 512 MiB, which no list of tensors needs", path);
  PickleGraph graph;
  graph.size_bytes_ = bytes.size();
  SW_ASSIGN(graph.root_, Machine(bytes, path, graph).run());
  return graph;
}

std::string_view PickleGraph::called(const PickleNode& node) const {
  if (node.kind != PickleNode::Kind::kCall) return {};
  const PickleNode& callable = at(node.callable);
  return callable.kind == PickleNode::Kind::kGlobal ? callable.text : std::string_view();
}

const std::vector<NodeId>& PickleGraph::arguments(const PickleNode& node) const {
  static const std::vector<NodeId> kNone;
  if (node.kind != PickleNode::Kind::kCall) return kNone;
  const PickleNode& given = at(node.arguments);
  return given.kind == PickleNode::Kind::kTuple ? given.items : kNone;
}

}  // namespace slackwater::formats
