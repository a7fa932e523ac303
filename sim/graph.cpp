#include "sim/graph.hpp"

#include <utility>

#include "sim/simulator.hpp"

namespace slackwater::sim {
namespace {

// Work whose memory is gone.
class IllegalAddress final : public Work {
 public:
  [[nodiscard]] CUresult begin() override { return CUresult::kIllegalAddress; }
  [[nodiscard]] CUresult finish() override { return CUresult::kIllegalAddress; }
};

}  // namespace

Task GraphNode::task() const {
  Task task{.engine = engine, .work = work, .duration = duration, .copy_bytes = copy_bytes};
  for (const std::weak_ptr<const void>& needed : memory) {
    task.held.push_back(needed.lock());
    if (task.held.back() == nullptr) task.work = std::make_shared<IllegalAddress>();
  }
  return task;
}

GraphNodes Graph::add(Device& device, std::vector<Task>& tasks, const GraphNodes& after) {
  GraphNodes added;
  for (Task& task : tasks) {
    added.insert(nodes_.size());
    nodes_.push_back({.device = &device,
                      .engine = task.engine,
                      .work = std::move(task.work),
                      .memory = {task.held.begin(), task.held.end()},
                      .duration = task.duration,
                      .copy_bytes = task.copy_bytes,
                      .after = after});
  }
  return added;
}

}  // namespace slackwater::sim
