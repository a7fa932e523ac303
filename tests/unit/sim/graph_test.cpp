// Graphs: what a capture recorded runs at each launch.
#include <functional>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

class SimGraph : public SimTest {
 protected:
  void TearDown() override {
    EXPECT_EQ(cuCtxSetCurrent(contexts_[0]), kOk);
    for (CUgraphExec exec : execs_) EXPECT_EQ(cuGraphExecDestroy(exec), kOk);
    SimTest::TearDown();
  }

  static CUgraph capture(CUstream on, const std::function<void()>& record) {
    EXPECT_EQ(cuStreamBeginCapture_v2(on, CUstreamCaptureMode::kGlobal), kOk);
    record();
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(on, &graph), kOk);
    return graph;
  }
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), kOk);
    execs_.push_back(exec);
    return exec;
  }
  // Captures and instantiates.
  CUgraphExec made(CUstream on, const std::function<void()>& record) {
    CUgraph graph = capture(on, record);
    CUgraphExec exec = instantiate(graph);
    EXPECT_EQ(cuGraphDestroy(graph), kOk);  // what was instantiated needs it no more
    return exec;
  }

  std::vector<CUgraphExec> execs_;
};

TEST_F(SimGraph, LaunchRunsCopiesAndKernelsInOrder) {
  const CUdeviceptr tensor = allocate(kMiB, 1);
  Pinned host(kMiB);
  CUstream work = stream();
  CUgraphExec exec = made(work, [&] {
    EXPECT_EQ(swsim_launch_fill(work, tensor, kMiB, 2, kMs), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, work), kOk);
    EXPECT_EQ(swsim_launch_fill(work, tensor, kMiB, 3, 0), 0);
  });
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(device_bytes(tensor, 1)[0], 1);  // nothing has run yet
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(host[0], 2);
  EXPECT_EQ(host[kMiB - 1], 2);
  EXPECT_EQ(device_bytes(tensor, kMiB)[kMiB - 1], 3);
}

TEST_F(SimGraph, RunsAtEachLaunch) {
  const CUdeviceptr tensor = allocate(4096);
  Pinned host(4096);
  CUstream work = stream();
  CUgraphExec exec = made(work, [&] {
    EXPECT_EQ(swsim_launch_add_u32(work, tensor, 1024, 0x0101'0101, 0), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, work), kOk);
  });
  for (int step = 0; step < 100; ++step) EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(host[4095], 100);
  EXPECT_EQ(engine(0, SWSIM_D2H).copies, 100u);
  EXPECT_EQ(counts().pending, 0u);
}

TEST_F(SimGraph, WaitInsideTheCaptureHolds) {
  const CUdeviceptr tensor = allocate(kMiB, 1);
  Pinned host(kMiB);
  CUstream work = stream();
  CUstream side = stream();
  CUgraphExec exec = made(work, [&] {
    EXPECT_EQ(cuStreamWaitEvent(side, recorded(work), 0), kOk);
    EXPECT_EQ(swsim_launch_fill(side, tensor, kMiB, 2, 20 * kMs), 0);
    EXPECT_EQ(cuStreamWaitEvent(work, recorded(side), 0), kOk);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, kMiB, work), kOk);
  });
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(host[0], 2);
  EXPECT_EQ(host[kMiB - 1], 2);
}

TEST_F(SimGraph, BranchesRunAtTheSameTimeAndAreJoined) {
  CUstream work = stream();
  CUstream side = stream();
  CUgraphExec exec = made(work, [&] {
    EXPECT_EQ(cuStreamWaitEvent(side, recorded(work), 0), kOk);
    EXPECT_EQ(swsim_launch_delay(work, 3 * kMs), 0);
    EXPECT_EQ(swsim_launch_delay(side, 5 * kMs), 0);
    EXPECT_EQ(cuStreamWaitEvent(work, recorded(side), 0), kOk);
    EXPECT_EQ(swsim_launch_delay(work, kMs), 0);
  });
  Gate gate(*this, work);
  CUevent before = recorded(work);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  CUevent after = recorded(work);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(swsim_event_time_ns(after) - swsim_event_time_ns(before), static_cast<std::int64_t>(12 * kMs));
}

TEST_F(SimGraph, BatchIsOneNodePerEngine) {
  const CUdeviceptr tensor = allocate(8192, 4);
  Pinned host(8192);
  CUstream work = stream();
  CUgraphExec exec = made(work, [&] {
    CUdeviceptr to[] = {reinterpret_cast<CUdeviceptr>(host.data()), reinterpret_cast<CUdeviceptr>(host.data()) + 4096};
    CUdeviceptr from[] = {tensor, tensor + 4096};
    std::size_t sizes[] = {4096, 4096};
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CUmemcpySrcAccessOrder::kStream;
    std::size_t first = 0;
    EXPECT_EQ(cuMemcpyBatchAsync_v2(to, from, sizes, 2, &attributes, &first, 1, work), kOk);
  });
  for (int step = 1; step <= 2; ++step) {
    EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
    EXPECT_EQ(cuStreamSynchronize(work), kOk);
    EXPECT_EQ(engine(0, SWSIM_D2H).copies, static_cast<std::uint64_t>(step));
  }
  EXPECT_EQ(host[0], 4);
  EXPECT_EQ(host[8191], 4);
}

TEST_F(SimGraph, LaunchIsOrderedWithItsStreamAndWithEarlierLaunches) {
  CUstream work = stream();
  CUgraph graph = capture(work, [&] { EXPECT_EQ(swsim_launch_delay(work, 0), 0); });
  CUgraphExec exec = instantiate(graph);
  CUgraphExec copy = instantiate(graph);
  EXPECT_EQ(cuGraphDestroy(graph), kOk);
  CUstream other = stream();
  CUstream free_stream = stream();
  Gate gate(*this, work);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuGraphLaunch(exec, other), kOk);  // waits for the launch before it
  EXPECT_EQ(cuGraphLaunch(copy, free_stream), kOk);
  EXPECT_EQ(cuStreamSynchronize(free_stream), kOk);
  EXPECT_EQ(cuStreamQuery(work), CUresult::kNotReady);
  EXPECT_EQ(cuStreamQuery(other), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(other), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
}

TEST_F(SimGraph, EmptyGraphIsAMarker) {
  CUstream work = stream();
  CUgraphExec exec = made(work, [] {});
  Gate gate(*this, work);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuStreamQuery(work), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
}

TEST_F(SimGraph, LaunchTakesOnePlaceInTheQueue) {
  CUstream work = stream();
  CUgraphExec exec = made(work, [&] {
    for (int node = 0; node < 20; ++node) EXPECT_EQ(swsim_launch_delay(work, 0), 0);
  });
  configure(0, [](swsim_device_config& config) { config.queue_limit = 3; });
  Gate gate(*this, work);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(counts().blocked_calls, 0u);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
}

TEST_F(SimGraph, DestroyedWhileItRunsItStillEnds) {
  const CUdeviceptr tensor = allocate(4096, 1);
  CUstream work = stream();
  CUgraph graph = capture(work, [&] { EXPECT_EQ(swsim_launch_fill(work, tensor, 4096, 2, 0), 0); });
  CUgraphExec exec = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  parameters.flags = kGraphUpload;
  parameters.hUploadStream = work;
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph, &parameters), kOk);
  EXPECT_EQ(parameters.result_out, CUgraphInstantiateResult::kSuccess);
  Gate gate(*this, work);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuGraphExecDestroy(exec), kOk);
  EXPECT_EQ(cuGraphDestroy(graph), kOk);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(device_bytes(tensor, 1)[0], 2);
}

TEST_F(SimGraph, DoesNotKeepDeviceMemoryAlive) {
  CUdeviceptr tensor = 0;
  ASSERT_EQ(cuMemAlloc_v2(&tensor, 4096), kOk);
  Pinned host(4096);
  CUstream work = stream();
  CUgraphExec exec = made(work, [&] { EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, work), kOk); });
  EXPECT_EQ(cuMemFree_v2(tensor), kOk);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), CUresult::kIllegalAddress);
}

TEST_F(SimGraph, DoesNotKeepHostMemoryPinned) {
  const CUdeviceptr tensor = allocate(4096);
  CUstream work = stream();
  CUgraphExec exec = nullptr;
  {
    Pinned host(4096);
    exec = made(work, [&] { EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, work), kOk); });
  }
  EXPECT_EQ(counts().unpinned_in_flight, 0u);
  EXPECT_EQ(cuGraphLaunch(exec, work), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), CUresult::kIllegalAddress);
}

TEST_F(SimGraph, RefusesWhatItCannotDo) {
  CUstream work = stream();
  CUgraph graph = capture(work, [] {});
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, kGraphUpload), CUresult::kInvalidValue);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, kGraphDeviceLaunch), CUresult::kNotSupported);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 16), CUresult::kInvalidValue);
  EXPECT_EQ(cuGraphInstantiateWithFlags(nullptr, graph, 0), CUresult::kInvalidValue);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, nullptr, 0), CUresult::kInvalidValue);
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  parameters.flags = kGraphDeviceLaunch;
  EXPECT_EQ(cuGraphInstantiateWithParams(&exec, graph, &parameters), CUresult::kNotSupported);
  EXPECT_EQ(parameters.result_out, CUgraphInstantiateResult::kError);
  EXPECT_EQ(exec, nullptr);
  EXPECT_EQ(cuGraphLaunch(exec, work), CUresult::kInvalidValue);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUresult::kInvalidValue);

  exec = instantiate(graph);
  EXPECT_EQ(cuGraphDestroy(graph), kOk);
  EXPECT_EQ(cuGraphDestroy(graph), CUresult::kInvalidValue);
  EXPECT_EQ(cuStreamBeginCapture_v2(work, CUstreamCaptureMode::kGlobal), kOk);
  EXPECT_EQ(cuGraphLaunch(exec, work), CUresult::kStreamCaptureUnsupported);  // no child graphs
  EXPECT_EQ(cuStreamEndCapture(work, &graph), CUresult::kStreamCaptureInvalidated);
}

}  // namespace
}  // namespace slackwater::cuda::test
