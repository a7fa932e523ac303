// Graph: what a capture recorded, and GraphExec: what cuGraphInstantiate makes of it and cuGraphLaunch runs.
// Owner: Simulator, by handle; a capture in progress has one too. Thread rule: guarded by Simulator::mutex.
// Lifetime: an instantiated graph shares the nodes, so the graph itself may be destroyed. Nodes do not keep memory
// alive: a graph that is launched after its memory was freed fails with kIllegalAddress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "sim/work.hpp"

namespace slackwater::sim {

struct Task;
using GraphNodes = std::set<std::size_t>;  // indices

struct GraphNode {
  Device* device = nullptr;
  EngineKind engine = EngineKind::kNone;
  std::shared_ptr<Work> work;
  std::vector<std::weak_ptr<const void>> memory;  // what the work needs
  Duration duration{0};
  std::uint64_t copy_bytes = 0;
  GraphNodes after;

  [[nodiscard]] Task task() const;  // for one launch
};

class Graph {
 public:
  // Adds a node for each task, without order among them. Returns the new nodes.
  [[nodiscard]] GraphNodes add(Device& device, std::vector<Task>& tasks, const GraphNodes& after);
  // Each comes after those that it waits for.
  [[nodiscard]] const std::vector<GraphNode>& nodes() const { return nodes_; }

 private:
  std::vector<GraphNode> nodes_;
};

struct GraphExec {
  std::shared_ptr<const Graph> graph;
  OpPtr last;  // of the last launch; null before the first
};

}  // namespace slackwater::sim
