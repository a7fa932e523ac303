#include "formats/pickle_stack.hpp"

#include <utility>

#include "base/result.hpp"

namespace slackwater::formats {
namespace {

constexpr std::size_t kMaxPushes = 4 * kMaxPickleNodes;  // references count too
constexpr std::size_t kMaxMarks = 10'000;                // open containers

}  // namespace

Result<NodeId> PickleStack::make(PickleNode node) {
  if (nodes_.size() >= kMaxPickleNodes) return input_.corrupt("it has more than {} values", kMaxPickleNodes);
  nodes_.push_back(std::move(node));
  return static_cast<NodeId>(nodes_.size() - 1);
}

Status PickleStack::push_id(NodeId id) {
  if (++pushes_ > kMaxPushes) return input_.corrupt("it has more than {} values", kMaxPushes);
  stack_.push_back(id);
  return {};
}

Status PickleStack::push(PickleNode node) {
  SW_ASSIGN(const NodeId id, make(std::move(node)));
  return push_id(id);
}

Status PickleStack::push_global(std::string name) {
  auto [known, is_new] = globals_.try_emplace(name, kNoNode);
  if (is_new) {
    names_.push_back(std::move(name));
    SW_ASSIGN(known->second, make({.kind = PickleNode::Kind::kGlobal, .text = names_.back()}));
  }
  return push_id(known->second);
}

Result<NodeId> PickleStack::pop() {
  if (!has(1)) return input_.corrupt("a value is missing on the stack");
  const NodeId id = stack_.back();
  stack_.pop_back();
  return id;
}

Result<std::vector<NodeId>> PickleStack::pop_many(std::size_t count, std::size_t rest) {
  if (!has(count + rest)) return input_.corrupt("a value is missing on the stack");
  std::vector<NodeId> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
  stack_.resize(stack_.size() - count);
  return values;
}

Status PickleStack::mark() {
  if (marks_.size() >= kMaxMarks) return input_.corrupt("it is nested deeper than {} levels", kMaxMarks);
  marks_.push_back(stack_.size());
  return {};
}

Result<std::vector<NodeId>> PickleStack::pop_marked() {
  if (marks_.empty()) return input_.corrupt("a mark is missing on the stack");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<NodeId> values(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return values;
}

Result<NodeId> PickleStack::pop_root() {
  if (stack_.size() != 1 || !marks_.empty())
    return input_.corrupt("it ends with {} values instead of one", stack_.size());
  return pop();
}

Status PickleStack::recall(std::uint32_t slot) {
  const auto found = memo_.find(slot);
  if (found == memo_.end()) return input_.corrupt("it refers to value {}, which it did not keep", slot);
  return push_id(found->second);
}

Status PickleStack::remember(std::uint32_t slot) {
  if (!has(1)) return input_.corrupt("a value is missing on the stack");
  if (memo_.size() >= kMaxPickleNodes) return input_.corrupt("it keeps more than {} values", kMaxPickleNodes);
  memo_[slot] = stack_.back();
  return {};
}

}  // namespace slackwater::formats
