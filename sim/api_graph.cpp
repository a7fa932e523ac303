// Exported functions: graphs that captures return.
#include <memory>
#include <utility>

#include "sim/driver_api.hpp"
#include "sim/simulator.hpp"

namespace slackwater::cuda {

using namespace slackwater::sim;

namespace {

CUresult instantiate(Simulator& sim, CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  const auto found = sim.graphs.find(reinterpret_cast<std::uintptr_t>(graph));
  if (exec == nullptr || found == sim.graphs.end()) return CUresult::kInvalidValue;
  constexpr unsigned long long kKnown = kGraphAutoFreeOnLaunch | kGraphUpload | kGraphUseNodePriority;
  if ((flags & kGraphDeviceLaunch) != 0) return CUresult::kNotSupported;
  if ((flags & ~kKnown) != 0) return CUresult::kInvalidValue;
  const std::uintptr_t handle = sim.new_handle();
  sim.graph_execs.emplace(handle, std::make_shared<GraphExec>(GraphExec{.graph = found->second, .last = nullptr}));
  *exec = reinterpret_cast<CUgraphExec>(handle);
  return CUresult::kSuccess;
}

}  // namespace

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return enter("cuStreamEndCapture", kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr found = sim.stream_of(call, stream);
    if (found == nullptr) return CUresult::kInvalidHandle;
    if (graph == nullptr) return CUresult::kInvalidValue;
    *graph = nullptr;
    Graph captured;
    if (const CUresult result = sim.captures.end(found, captured); result != CUresult::kSuccess) return result;
    const std::uintptr_t handle = sim.new_handle();
    sim.graphs.emplace(handle, std::make_shared<const Graph>(std::move(captured)));
    *graph = reinterpret_cast<CUgraph>(handle);
    return CUresult::kSuccess;
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return enter("cuGraphInstantiateWithFlags", kContext, [&](Simulator& sim, Call&) {
    if ((flags & kGraphUpload) != 0) return CUresult::kInvalidValue;  // only with parameters
    return instantiate(sim, exec, graph, flags);
  });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return enter("cuGraphInstantiateWithParams", kContext, [&](Simulator& sim, Call&) {
    if (parameters == nullptr) return CUresult::kInvalidValue;
    const CUresult result = instantiate(sim, exec, graph, parameters->flags);
    const bool made = result == CUresult::kSuccess;
    parameters->hErrNode_out = nullptr;
    parameters->result_out = made ? CUgraphInstantiateResult::kSuccess : CUgraphInstantiateResult::kError;
    return result;
  });
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return enter("cuGraphLaunch", kContext, [&](Simulator& sim, Call& call) {
    const StreamPtr on = sim.stream_of(call, stream);
    if (on == nullptr) return CUresult::kInvalidHandle;
    const auto found = sim.graph_execs.find(reinterpret_cast<std::uintptr_t>(exec));
    if (found == sim.graph_execs.end()) return CUresult::kInvalidValue;
    const std::shared_ptr<GraphExec> launched = found->second;  // the call may wait for room
    return sim.schedule.enqueue_graph(call, on, *launched);
  });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return enter("cuGraphExecDestroy", kInit, [&](Simulator& sim, Call&) {
    // Launches that are under way keep what they need.
    return sim.graph_execs.erase(reinterpret_cast<std::uintptr_t>(exec)) == 1 ? CUresult::kSuccess
                                                                              : CUresult::kInvalidValue;
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return enter("cuGraphDestroy", kInit, [&](Simulator& sim, Call&) {
    return sim.graphs.erase(reinterpret_cast<std::uintptr_t>(graph)) == 1 ? CUresult::kSuccess
                                                                          : CUresult::kInvalidValue;
  });
}

}  // namespace slackwater::cuda
