#include "formats/pickle_reader.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::formats {
namespace {

constexpr std::size_t kMaxPushes = 4 * kMaxPickleNodes;  // references count too
constexpr std::size_t kMaxMarks = 10'000;                // open containers
constexpr std::size_t kMaxGlobalName = 1'000;

// Python 2 called these modules otherwise, and protocol 2 still does.
std::string_view modern_module(std::string_view module) {
  if (module == "__builtin__") return "builtins";
  if (module == "copy_reg") return "copyreg";
  return module;
}

}  // namespace

// Runs the opcodes on a stack of node numbers. One use.
class PickleGraph::Machine {
 public:
  Machine(std::string_view bytes, const std::string& path, PickleGraph& graph)
      : bytes_(bytes), path_(path), graph_(graph) {}

  Status run() {
    for (;;) {
      SW_ASSIGN(const std::uint8_t opcode, take_number<std::uint8_t>());
      if (opcode == '.') break;
      SW_TRY(step(opcode));
    }
    if (stack_.size() != 1 || !marks_.empty()) return corrupt("it ends with {} values instead of one", stack_.size());
    graph_.root_ = stack_.back();
    return {};
  }

 private:
  using Kind = PickleNode::Kind;

  Status step(std::uint8_t opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        SW_ASSIGN(const auto protocol, take_number<std::uint8_t>());
        if (protocol < 2 || protocol > 5) return corrupt("it has protocol {}", protocol);
        return {};
      }
      case 0x95: return skip(8);  // FRAME
      case 'N': return push({.kind = Kind::kNone});
      case 0x88: return push({.kind = Kind::kBool, .number = 1});
      case 0x89: return push({.kind = Kind::kBool});
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
      case ']': return push({.kind = Kind::kList});
      case ')': return push({.kind = Kind::kTuple});
      case '}': return push({.kind = Kind::kDict});
      case 0x8f: return push({.kind = Kind::kSet});
      case '(': return mark();
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
      case 0x94: return remember_as(static_cast<std::uint32_t>(memo_.size()));
      default:
        return fail(
            ErrorKind::kUnsupported,
            fmt::format("the pickle has the opcode {:#04x} at byte {}, which no weights file needs", opcode, at_ - 1),
            path_);
    }
  }

  template <class... Args>
  std::unexpected<Error> corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(
        ErrorKind::kCorrupt,
        fmt::format("the pickle is damaged near byte {}: {}", at_, fmt::format(format, std::forward<Args>(args)...)),
        path_);
  }

  // Reading

  template <class Number>
  Result<Number> take_number() {
    if (bytes_.size() - at_ < sizeof(Number)) return corrupt("it ends in the middle of an opcode");
    Number number;
    std::memcpy(&number, bytes_.data() + at_, sizeof number);
    at_ += sizeof number;
    return number;
  }
  Result<std::string_view> take_bytes(std::uint64_t count) {
    if (count > bytes_.size() - at_) return corrupt("a value of {} bytes reaches beyond its end", count);
    const std::string_view found = bytes_.substr(at_, count);
    at_ += count;
    return found;
  }
  Result<std::string_view> take_line() {
    const std::size_t end = bytes_.substr(at_, kMaxGlobalName + 1).find('\n');
    if (end == std::string_view::npos) return corrupt("a name has no end");
    const std::string_view found = bytes_.substr(at_, end);
    at_ += end + 1;
    return found;
  }
  Status skip(std::uint64_t count) {
    SW_TRY(take_bytes(count));
    return {};
  }

  // The stack

  Status push_id(NodeId id) {
    if (++pushes_ > kMaxPushes) return corrupt("it has more than {} values", kMaxPushes);
    stack_.push_back(id);
    return {};
  }
  Result<NodeId> make(PickleNode node) {
    if (graph_.nodes_.size() >= kMaxPickleNodes) return corrupt("it has more than {} values", kMaxPickleNodes);
    graph_.nodes_.push_back(std::move(node));
    return static_cast<NodeId>(graph_.nodes_.size() - 1);
  }
  Status push(PickleNode node) {
    SW_ASSIGN(const NodeId id, make(std::move(node)));
    return push_id(id);
  }
  // What was pushed after the last mark must stay: only an opcode that takes the mark may go below it.
  [[nodiscard]] bool has(std::size_t count) const {
    return stack_.size() - (marks_.empty() ? 0 : marks_.back()) >= count;
  }
  Result<NodeId> pop() {
    if (!has(1)) return corrupt("a value is missing on the stack");
    const NodeId id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Result<std::vector<NodeId>> pop_marked() {
    if (marks_.empty()) return corrupt("a mark is missing on the stack");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<NodeId> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  // Opcodes

  Status mark() {
    if (marks_.size() >= kMaxMarks) return corrupt("it is nested deeper than {} levels", kMaxMarks);
    marks_.push_back(stack_.size());
    return {};
  }
  template <class Number>
  Status push_number() {
    SW_ASSIGN(const Number number, take_number<Number>());
    return push({.kind = Kind::kInt, .number = number});
  }
  template <class Length>
  Status push_long() {
    SW_ASSIGN(const Length length, take_number<Length>());
    SW_ASSIGN(const std::string_view digits, take_bytes(length));
    if (digits.size() > sizeof(std::int64_t)) return push({.kind = Kind::kBigInt, .text = digits});
    const bool negative = !digits.empty() && (static_cast<unsigned char>(digits.back()) & 0x80) != 0;
    std::int64_t number = negative ? -1 : 0;
    std::memcpy(&number, digits.data(), digits.size());  // little-endian, as the digits are
    return push({.kind = Kind::kInt, .number = number});
  }
  Status push_float() {
    SW_ASSIGN(const std::uint64_t bits, take_number<std::uint64_t>());
    return push({.kind = Kind::kFloat, .real = std::bit_cast<double>(__builtin_bswap64(bits))});
  }
  template <class Length>
  Status push_text(Kind kind) {
    SW_ASSIGN(const Length length, take_number<Length>());
    SW_ASSIGN(const std::string_view text, take_bytes(length));
    return push({.kind = kind, .text = text});
  }
  Status collect(Kind kind) {
    SW_ASSIGN(std::vector<NodeId> items, pop_marked());
    return push({.kind = kind, .items = std::move(items)});
  }
  Status tuple_of(std::size_t count) {
    if (!has(count)) return corrupt("a value is missing on the stack");
    std::vector<NodeId> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return push({.kind = Kind::kTuple, .items = std::move(items)});
  }
  Status append(std::size_t count) {
    if (!has(count + 1)) return corrupt("a value is missing on the stack");
    std::vector<NodeId> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return append_items(items);
  }
  Status append_marked() {
    SW_ASSIGN(const std::vector<NodeId> items, pop_marked());
    return append_items(items);
  }
  Status append_items(const std::vector<NodeId>& items) {
    if (!has(1)) return corrupt("a list is missing on the stack");
    PickleNode& target = graph_.nodes_[stack_.back()];
    const bool takes = target.kind == Kind::kList || target.kind == Kind::kSet ||
                       (target.kind == Kind::kCall && (!target.pairs || target.items.empty()));
    if (!takes) return corrupt("values are appended to something that is not a list");
    target.pairs = false;
    target.items.insert(target.items.end(), items.begin(), items.end());
    return {};
  }
  Status set_items(std::size_t count) {
    if (!has(count + 1)) return corrupt("a value is missing on the stack");
    std::vector<NodeId> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return set_pairs(items);
  }
  Status set_marked() {
    SW_ASSIGN(const std::vector<NodeId> items, pop_marked());
    return set_pairs(items);
  }
  Status set_pairs(const std::vector<NodeId>& items) {
    if (!has(1) || items.size() % 2 != 0) return corrupt("a dict or a value of it is missing on the stack");
    PickleNode& target = graph_.nodes_[stack_.back()];
    const bool takes =
        target.kind == Kind::kDict || (target.kind == Kind::kCall && (target.pairs || target.items.empty()));
    if (!takes) return corrupt("keys are set on something that is not a dict");
    target.pairs = true;
    target.items.insert(target.items.end(), items.begin(), items.end());
    return {};
  }
  Status push_global() {
    SW_ASSIGN(const std::string_view module, take_line());
    SW_ASSIGN(const std::string_view name, take_line());
    return push_named(module, name);
  }
  Status push_stacked_global() {
    SW_ASSIGN(const NodeId name, pop());
    SW_ASSIGN(const NodeId module, pop());
    const PickleNode& a = graph_.nodes_[module];
    const PickleNode& b = graph_.nodes_[name];
    if (a.kind != Kind::kText || b.kind != Kind::kText || a.text.size() + b.text.size() > kMaxGlobalName)
      return corrupt("the name of a global is not text, or is too long");
    return push_named(a.text, b.text);
  }
  Status push_named(std::string_view module, std::string_view name) {
    std::string full = fmt::format("{}.{}", modern_module(module), name);
    if (full == "builtins.xrange") full = "builtins.range";
    auto [known, is_new] = globals_.try_emplace(full, kNoNode);
    if (is_new) {
      graph_.names_.push_back(std::move(full));
      SW_ASSIGN(known->second, make({.kind = Kind::kGlobal, .text = graph_.names_.back()}));
    }
    return push_id(known->second);
  }
  Status call() {
    SW_ASSIGN(const NodeId arguments, pop());
    SW_ASSIGN(const NodeId callable, pop());
    return push({.kind = Kind::kCall, .callable = callable, .arguments = arguments});
  }
  Status set_state() {
    SW_ASSIGN(const NodeId state, pop());
    if (!has(1)) return corrupt("an object is missing on the stack");
    PickleNode& target = graph_.nodes_[stack_.back()];
    if (target.kind != Kind::kCall) return corrupt("a state is set on something that is not an object");
    target.state = state;
    return {};
  }
  Status push_persistent() {
    SW_ASSIGN(const NodeId id, pop());
    return push({.kind = Kind::kPersistent, .items = {id}});
  }
  template <class Number>
  Status recall() {
    SW_ASSIGN(const Number slot, take_number<Number>());
    const auto found = memo_.find(slot);
    if (found == memo_.end()) return corrupt("it refers to value {}, which it did not keep", slot);
    return push_id(found->second);
  }
  template <class Number>
  Status remember() {
    SW_ASSIGN(const Number slot, take_number<Number>());
    return remember_as(slot);
  }
  Status remember_as(std::uint32_t slot) {
    if (!has(1)) return corrupt("a value is missing on the stack");
    if (memo_.size() >= kMaxPickleNodes) return corrupt("it keeps more than {} values", kMaxPickleNodes);
    memo_[slot] = stack_.back();
    return {};
  }

  const std::string_view bytes_;
  const std::string& path_;
  PickleGraph& graph_;
  std::size_t at_ = 0;
  std::size_t pushes_ = 0;
  std::vector<NodeId> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::unordered_map<std::uint32_t, NodeId> memo_;
  std::map<std::string, NodeId, std::less<>> globals_;
};

Result<PickleGraph> PickleGraph::read(std::string_view bytes, const std::string& path) {
  if (bytes.size() > kMaxPickleBytes)
    return fail(ErrorKind::kCorrupt, "the pickle is larger than 512 MiB, which no list of tensors needs", path);
  PickleGraph graph;
  graph.size_bytes_ = bytes.size();
  SW_TRY(Machine(bytes, path, graph).run());
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
