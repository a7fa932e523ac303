#include <functional>
#include <thread>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

class SimCapture : public SimTest {
 protected:
  void begin(CUstream on, CUstreamCaptureMode mode = CUstreamCaptureMode::kGlobal) {
    ASSERT_EQ(cuStreamBeginCapture_v2(on, mode), kOk);
  }
  static CUresult end(CUstream on) {
    CUgraph graph = nullptr;
    const CUresult result = cuStreamEndCapture(on, &graph);
    EXPECT_EQ(graph != nullptr, result == kOk);
    if (graph != nullptr) {
      EXPECT_EQ(cuGraphDestroy(graph), kOk);
    }
    return result;
  }
  static CUstreamCaptureStatus status(CUstream of) {
    CUstreamCaptureStatus now = CUstreamCaptureStatus::kNone;
    EXPECT_EQ(cuStreamIsCapturing(of, &now), kOk);
    return now;
  }
  // On a thread of its own, with this capture mode.
  CUresult elsewhere(CUstreamCaptureMode mode, const std::function<CUresult()>& call) {
    CUresult result = kOk;
    std::thread([&] {
      EXPECT_EQ(cuCtxSetCurrent(contexts_[0]), kOk);
      EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kOk);
      result = call();
    }).join();
    return result;
  }
};

TEST_F(SimCapture, CapturedWorkIsRecordedNotRun) {
  const CUdeviceptr tensor = allocate(4096, 1);
  CUstream captured = stream();
  EXPECT_EQ(status(captured), CUstreamCaptureStatus::kNone);
  begin(captured);
  EXPECT_EQ(status(captured), CUstreamCaptureStatus::kActive);
  EXPECT_EQ(swsim_launch_fill(captured, tensor, 4096, 2, 0), 0);
  EXPECT_EQ(end(captured), kOk);
  EXPECT_EQ(status(captured), CUstreamCaptureStatus::kNone);
  EXPECT_EQ(cuStreamSynchronize(captured), kOk);
  EXPECT_EQ(device_bytes(tensor, 1)[0], 1);
}

TEST_F(SimCapture, UnsafeCallsOfAnyThreadSpoilAGlobalCapture) {
  CUstream captured = stream();
  CUstream other = stream();
  CUevent marker = recorded(other);
  slackwater::test::AlignedBuffer memory(4096);
  ASSERT_EQ(cuMemHostRegister_v2(memory.data(), 4096, 0), kOk);
  CUdeviceptr address = 0;
  void* host = nullptr;
  const std::vector<std::pair<const char*, std::function<CUresult()>>> unsafe = {
      {"cuEventQuery", [&] { return cuEventQuery(marker); }},
      {"cuEventSynchronize", [&] { return cuEventSynchronize(marker); }},
      {"cuStreamQuery", [&] { return cuStreamQuery(other); }},
      {"cuStreamSynchronize", [&] { return cuStreamSynchronize(other); }},
      {"cuCtxSynchronize", [&] { return cuCtxSynchronize(); }},
      {"cuMemAlloc", [&] { return cuMemAlloc_v2(&address, 64); }},
      {"cuMemFree", [&] { return cuMemFree_v2(0); }},
      {"cuMemHostAlloc", [&] { return cuMemHostAlloc(&host, 64, 0); }},
      {"cuMemHostRegister", [&] { return cuMemHostRegister_v2(&address, 8, 0); }},
      {"cuMemHostUnregister", [&] { return cuMemHostUnregister(memory.data()); }},
  };
  for (const auto& [name, call] : unsafe) {
    begin(captured);
    EXPECT_EQ(elsewhere(CUstreamCaptureMode::kGlobal, call), CUresult::kStreamCaptureUnsupported) << name;
    EXPECT_EQ(status(captured), CUstreamCaptureStatus::kInvalidated) << name;
    EXPECT_EQ(swsim_launch_delay(captured, 0), code_of(CUresult::kStreamCaptureInvalidated)) << name;
    EXPECT_EQ(end(captured), CUresult::kStreamCaptureInvalidated) << name;
  }
  EXPECT_EQ(cuMemHostUnregister(memory.data()), kOk);
}

TEST_F(SimCapture, RelaxedThreadsDoNotSpoilACapture) {
  CUstream captured = stream();
  CUevent marker = recorded(stream());
  begin(captured);
  EXPECT_EQ(elsewhere(CUstreamCaptureMode::kRelaxed, [&] { return cuEventSynchronize(marker); }), kOk);
  EXPECT_EQ(elsewhere(CUstreamCaptureMode::kThreadLocal, [&] { return cuEventQuery(marker); }), kOk);
  EXPECT_EQ(end(captured), kOk);
}

TEST_F(SimCapture, ThreadLocalCaptureIsSpoiltByItsOwnThreadOnly) {
  CUstream captured = stream();
  CUevent marker = recorded(stream());
  begin(captured, CUstreamCaptureMode::kThreadLocal);
  EXPECT_EQ(elsewhere(CUstreamCaptureMode::kGlobal, [&] { return cuEventQuery(marker); }), kOk);
  EXPECT_EQ(status(captured), CUstreamCaptureStatus::kActive);
  EXPECT_EQ(cuEventQuery(marker), CUresult::kStreamCaptureUnsupported);
  EXPECT_EQ(end(captured), CUresult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, RelaxedCaptureAllowsUnsafeCalls) {
  CUstream captured = stream();
  CUevent marker = recorded(stream());
  begin(captured, CUstreamCaptureMode::kRelaxed);
  EXPECT_EQ(cuEventQuery(marker), kOk);
  EXPECT_EQ(elsewhere(CUstreamCaptureMode::kGlobal, [&] { return cuEventQuery(marker); }), kOk);
  EXPECT_EQ(end(captured), kOk);
}

TEST_F(SimCapture, ModeIsExchangedPerThread) {
  CUstreamCaptureMode mode = CUstreamCaptureMode::kRelaxed;
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kOk);
  EXPECT_EQ(mode, CUstreamCaptureMode::kGlobal);
  std::thread([] {
    CUstreamCaptureMode fresh = CUstreamCaptureMode::kThreadLocal;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&fresh), kOk);
    EXPECT_EQ(fresh, CUstreamCaptureMode::kGlobal);
  }).join();
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kOk);
  EXPECT_EQ(mode, CUstreamCaptureMode::kRelaxed);
}

TEST_F(SimCapture, WaitForWorkOutsideSpoilsACapture) {
  CUstream captured = stream();
  CUevent outside = recorded(stream());
  begin(captured);
  EXPECT_EQ(cuStreamWaitEvent(captured, outside, 0), CUresult::kStreamCaptureIsolation);
  EXPECT_EQ(end(captured), CUresult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, StreamThatWaitsForACapturedEventIsDrawnIn) {
  CUstream captured = stream();
  CUstream copies = stream();
  begin(captured);
  CUevent inside = recorded(captured);
  EXPECT_EQ(cuStreamWaitEvent(copies, inside, 0), kOk);
  EXPECT_EQ(status(copies), CUstreamCaptureStatus::kActive);
  EXPECT_EQ(cuEventRecord(inside, copies), kOk);
  EXPECT_EQ(end(captured), CUresult::kStreamCaptureUnjoined);
  EXPECT_EQ(status(copies), CUstreamCaptureStatus::kNone);
}

TEST_F(SimCapture, StreamThatIsJoinedBackIsPartOfTheGraph) {
  CUstream captured = stream();
  CUstream side = stream();
  begin(captured);
  EXPECT_EQ(cuStreamWaitEvent(side, recorded(captured), 0), kOk);
  EXPECT_EQ(swsim_launch_delay(side, 0), 0);
  EXPECT_EQ(cuStreamWaitEvent(captured, recorded(side), 0), kOk);
  EXPECT_EQ(end(captured), kOk);
}

TEST_F(SimCapture, CapturedEventsCannotBeQueried) {
  CUstream captured = stream();
  begin(captured);
  CUevent inside = recorded(captured);
  EXPECT_EQ(elsewhere(CUstreamCaptureMode::kRelaxed, [&] { return cuEventQuery(inside); }), CUresult::kCapturedEvent);
  EXPECT_EQ(end(captured), CUresult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, LegacyStreamSpoilsCapturesOfBlockingStreams) {
  CUstream captured = stream(kStreamDefault);
  begin(captured, CUstreamCaptureMode::kRelaxed);
  CUstreamCaptureStatus ignored{};
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &ignored), CUresult::kStreamCaptureImplicit);
  EXPECT_EQ(status(captured), CUstreamCaptureStatus::kActive);
  EXPECT_EQ(swsim_launch_delay(nullptr, 0), code_of(CUresult::kStreamCaptureImplicit));
  EXPECT_EQ(end(captured), CUresult::kStreamCaptureInvalidated);

  CUstream aside = stream(kStreamNonBlocking);
  begin(aside, CUstreamCaptureMode::kRelaxed);
  EXPECT_EQ(swsim_launch_delay(nullptr, 0), 0);
  EXPECT_EQ(end(aside), kOk);
}

TEST_F(SimCapture, EndsOnItsOwnStreamAndThread) {
  CUstream captured = stream();
  CUstream other = stream();
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(captured, &graph), CUresult::kIllegalState);
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, CUstreamCaptureMode::kGlobal), CUresult::kStreamCaptureUnsupported);
  begin(captured);
  EXPECT_EQ(cuStreamBeginCapture_v2(captured, CUstreamCaptureMode::kGlobal), CUresult::kIllegalState);
  EXPECT_EQ(cuStreamWaitEvent(other, recorded(captured), 0), kOk);
  EXPECT_EQ(cuStreamEndCapture(other, &graph), CUresult::kStreamCaptureUnmatched);
  EXPECT_EQ(elsewhere(CUstreamCaptureMode::kRelaxed, [&] { return cuStreamEndCapture(captured, &graph); }),
            CUresult::kStreamCaptureWrongThread);
  EXPECT_EQ(cuStreamWaitEvent(captured, recorded(other), 0), kOk);
  EXPECT_EQ(end(captured), kOk);
}

TEST_F(SimCapture, PageableCopySpoilsACapture) {
  std::vector<std::uint8_t> host(4096);
  const CUdeviceptr tensor = allocate(4096);
  CUstream captured = stream();
  begin(captured);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, captured), CUresult::kStreamCaptureUnsupported);
  EXPECT_EQ(end(captured), CUresult::kStreamCaptureInvalidated);
}

}  // namespace
}  // namespace slackwater::cuda::test
