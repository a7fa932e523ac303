// PickleStack: what the opcodes of a pickle work on. It has the values made so far, the stack of those in use with its
// marks, and the memo of those that are used again later. It keeps every limit: a hostile pickle gets an error, never
// memory without end, and never a value from below a mark.
// One use, one thread. Lifetime: what it is given outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/pickle_input.hpp"
#include "formats/pickle_reader.hpp"
#include "slackwater/error.hpp"

namespace slackwater::formats {

class PickleStack {
 public:
  // `input` is for errors. `nodes` gets the values, and `names` the texts of globals.
  PickleStack(const PickleInput& input, std::vector<PickleNode>& nodes, std::deque<std::string>& names)
      : input_(input), nodes_(nodes), names_(names) {}

  // Values.
  [[nodiscard]] Status push(PickleNode node);
  [[nodiscard]] Status push_global(std::string name);  // a global has one node, however often it is named
  [[nodiscard]] PickleNode& at(NodeId id) { return nodes_[id]; }
  [[nodiscard]] PickleNode& top() { return nodes_[stack_.back()]; }  // has(1) must be true

  // The stack. What was pushed after the last mark must stay: only an opcode that takes the mark may go below it.
  [[nodiscard]] bool has(std::size_t count) const {
    return stack_.size() - (marks_.empty() ? 0 : marks_.back()) >= count;
  }
  [[nodiscard]] Result<NodeId> pop();
  // Takes `count` values, oldest first, and leaves at least `rest` above the last mark.
  [[nodiscard]] Result<std::vector<NodeId>> pop_many(std::size_t count, std::size_t rest = 0);
  [[nodiscard]] Status mark();
  [[nodiscard]] Result<std::vector<NodeId>> pop_marked();  // all values above the last mark, and the mark
  [[nodiscard]] Result<NodeId> pop_root();                 // at the end: one value, and nothing else

  // The memo.
  [[nodiscard]] Status recall(std::uint32_t slot);
  [[nodiscard]] Status remember(std::uint32_t slot);
  [[nodiscard]] Status remember_next() { return remember(static_cast<std::uint32_t>(memo_.size())); }

 private:
  [[nodiscard]] Result<NodeId> make(PickleNode node);
  [[nodiscard]] Status push_id(NodeId id);

  const PickleInput& input_;
  std::vector<PickleNode>& nodes_;
  std::deque<std::string>& names_;
  std::size_t pushes_ = 0;
  std::vector<NodeId> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::unordered_map<std::uint32_t, NodeId> memo_;
  std::map<std::string, NodeId, std::less<>> globals_;
};

}  // namespace slackwater::formats
