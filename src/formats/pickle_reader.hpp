// Reads a pickle without running it. The opcodes build a graph of nodes: a call such as torch.Size((2, 3)) becomes a
// node that names the function and its arguments. Nothing is imported and nothing is called. Whoever reads the graph
// decides by name what it understands, and refuses the rest.
// The bytes are untrusted: every length and every reference is checked. Pure functions; any thread.
// Lifetime: texts are views into the pickle, which must outlive the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater::formats {

inline constexpr std::uint64_t kMaxPickleBytes = 512u << 20;
inline constexpr std::size_t kMaxPickleNodes = 8'000'000;  // about 80 bytes of memory each

using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = 0xffffffff;

struct PickleNode {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInt,
    kBigInt,
    kFloat,
    kText,
    kBytes,
    kByteArray,
    kList,
    kTuple,
    kDict,
    kSet,
    kFrozenSet,
    kGlobal,      // text: "module.name"
    kCall,        // the result of calling `callable` with `arguments`
    kPersistent,  // something outside the pickle, which items[0] describes
  };

  Kind kind = Kind::kNone;
  bool pairs = false;          // of a call: items are keys and values that were set on the result, else appended to it
  std::int64_t number = 0;     // kBool, kInt
  double real = 0;             // kFloat
  std::string_view text = {};  // kText (UTF-8, or with surrogates), kBytes, kBigInt (little-endian two's complement)
  std::vector<NodeId> items = {};  // of a container; keys and values take turns in a dict
  NodeId callable = kNoNode;
  NodeId arguments = kNoNode;
  NodeId state = kNoNode;  // of a call: what __setstate__ would get
};

class PickleGraph {
 public:
  // kCorrupt if it is no pickle of protocol 2 to 5; kUnsupported names an opcode that no torch file has.
  [[nodiscard]] static Result<PickleGraph> read(std::string_view bytes, const std::string& path);

  [[nodiscard]] const PickleNode& root() const { return nodes_[root_]; }
  [[nodiscard]] NodeId root_id() const { return root_; }
  [[nodiscard]] const PickleNode& at(NodeId id) const { return nodes_[id]; }
  // How many values the whole graph may have, with shared ones counted at each place. A small file that unfolds into
  // millions of values is an attack, not a checkpoint.
  [[nodiscard]] std::size_t most_values() const { return 100'000 + 16 * size_bytes_; }

  // "torch._utils._rebuild_tensor_v2" if it is a call of a global; empty otherwise.
  [[nodiscard]] std::string_view called(const PickleNode& node) const;
  // The positional arguments of a call, if they are a tuple; none otherwise.
  [[nodiscard]] const std::vector<NodeId>& arguments(const PickleNode& node) const;

 private:
  class Machine;
  std::vector<PickleNode> nodes_;
  std::deque<std::string> names_;  // of globals; nodes have views of them
  NodeId root_ = kNoNode;
  std::size_t size_bytes_ = 0;  // of the pickle
};

}  // namespace slackwater::formats
