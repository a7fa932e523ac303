#include <mutex>
#include <thread>
#include <utility>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

using SimStream = SimTest;

// The order in which kernels ended.
class Order {
 public:
  void launch(CUstream stream, int name, std::uint64_t duration_ns = 0) {
    notes_.push_back(std::make_unique<Note>(this, name));
    EXPECT_EQ(swsim_launch(stream, duration_ns, &Order::kernel, notes_.back().get(), 0), 0);
  }
  std::vector<int> ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  struct Note {
    Order* order;
    int name;
  };
  static void kernel(void* user, int) {
    const auto* const note = static_cast<Note*>(user);
    const std::lock_guard lock(note->order->mutex_);
    note->order->ended_.push_back(note->name);
  }

  std::mutex mutex_;
  std::vector<int> ended_;
  std::vector<std::unique_ptr<Note>> notes_;
};

TEST_F(SimStream, WorkOnOneStreamRunsInOrder) {
  Order order;
  CUstream work = stream();
  order.launch(work, 1, 3 * kMs);
  order.launch(work, 2);
  order.launch(work, 3, kMs);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(order.ended(), (std::vector{1, 2, 3}));
}

TEST_F(SimStream, StreamsDoNotWaitForEachOther) {
  Order order;
  CUstream held = stream();
  CUstream free = stream();
  Gate gate(*this, held);
  order.launch(held, 1);
  order.launch(free, 2);
  EXPECT_EQ(cuStreamSynchronize(free), kOk);
  EXPECT_EQ(cuStreamQuery(held), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(held), kOk);
  EXPECT_EQ(order.ended(), (std::vector{2, 1}));
  EXPECT_EQ(cuStreamQuery(held), kOk);
}

TEST_F(SimStream, KernelRunsAtBothEndsOfItsTimeIfAsked) {
  std::vector<int> phases;
  CUstream work = stream();
  const auto kernel = [](void* user, int phase) { static_cast<std::vector<int>*>(user)->push_back(phase); };
  EXPECT_EQ(swsim_launch(work, kMs, kernel, &phases, 1), 0);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  EXPECT_EQ(phases, (std::vector<int>{SWSIM_AT_START, SWSIM_AT_END}));
}

TEST_F(SimStream, KernelsTakeTheirTimeAndOverlap) {
  CUstream a = stream();
  CUstream b = stream();
  Gate gate(*this, a);
  gate.hold(b);
  CUevent begin = recorded(a);
  EXPECT_EQ(swsim_launch_delay(a, 20 * kMs), 0);
  EXPECT_EQ(swsim_launch_delay(b, 30 * kMs), 0);
  CUevent end_a = recorded(a);
  CUevent end_b = recorded(b);
  EXPECT_EQ(swsim_event_time_ns(end_a), -1);
  gate.open();
  EXPECT_EQ(cuCtxSynchronize(), kOk);
  EXPECT_EQ(swsim_event_time_ns(end_a) - swsim_event_time_ns(begin), static_cast<std::int64_t>(20 * kMs));
  EXPECT_EQ(swsim_event_time_ns(end_b) - swsim_event_time_ns(begin), static_cast<std::int64_t>(30 * kMs));
  EXPECT_GE(swsim_now_ns(), swsim_event_time_ns(end_b));
}

TEST_F(SimStream, FillAndAddRewriteMemory) {
  CUstream work = stream();
  const CUdeviceptr address = allocate(4096);
  EXPECT_EQ(swsim_launch_fill(work, address, 4096, 1, 0), 0);
  EXPECT_EQ(swsim_launch_add_u32(work, address, 1023, 2, 0), 0);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
  const auto bytes = device_bytes(address, 4096);
  EXPECT_EQ(bytes[0], 3);
  EXPECT_EQ(bytes[1], 1);
  EXPECT_EQ(bytes[4088], 3);
  EXPECT_EQ(bytes[4092], 1);
}

TEST_F(SimStream, EventIsReachedWhenTheWorkBeforeItIsDone) {
  CUstream held = stream();
  Gate gate(*this, held);
  CUevent reached = recorded(held);
  EXPECT_EQ(cuEventQuery(reached), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuEventSynchronize(reached), kOk);
  EXPECT_EQ(cuEventQuery(reached), kOk);
}

TEST_F(SimStream, EventNeverRecordedCountsAsReached) {
  CUevent never = event();
  CUstream work = stream();
  EXPECT_EQ(cuEventQuery(never), kOk);
  EXPECT_EQ(cuEventSynchronize(never), kOk);
  EXPECT_EQ(cuStreamWaitEvent(work, never, 0), kOk);
  EXPECT_EQ(cuStreamSynchronize(work), kOk);
}

TEST_F(SimStream, WaitMeansTheLastRecordBeforeTheCall) {
  CUstream held = stream();
  CUstream waiting = stream();
  CUstream idle = stream();
  Gate gate(*this, held);
  CUevent twice = recorded(held);
  EXPECT_EQ(cuStreamWaitEvent(waiting, twice, 0), kOk);
  EXPECT_EQ(cuEventRecord(twice, idle), kOk);
  EXPECT_EQ(cuEventSynchronize(twice), kOk);  // the second record is reached at once
  EXPECT_EQ(cuStreamQuery(waiting), CUresult::kNotReady);
  CUstream late = stream();
  EXPECT_EQ(cuStreamWaitEvent(late, twice, 0), kOk);
  EXPECT_EQ(cuStreamSynchronize(late), kOk);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(waiting), kOk);
}

TEST_F(SimStream, StreamsOfDifferentDevicesWaitForEachOther) {
  Order order;
  CUstream first = stream();
  order.launch(first, 1, 10 * kMs);
  CUevent done = recorded(first);
  use(1);
  CUstream second = stream();
  EXPECT_EQ(cuStreamWaitEvent(second, done, 0), kOk);
  order.launch(second, 2);
  EXPECT_EQ(cuStreamSynchronize(second), kOk);
  EXPECT_EQ(order.ended(), (std::vector{1, 2}));
}

TEST_F(SimStream, LegacyStreamIsInOrderWithBlockingStreams) {
  Order order;
  CUstream before = stream(kStreamDefault);
  CUstream after = stream(kStreamDefault);
  order.launch(before, 1, 10 * kMs);
  order.launch(nullptr, 2, kMs);
  order.launch(after, 3);
  EXPECT_EQ(cuStreamSynchronize(after), kOk);
  EXPECT_EQ(order.ended(), (std::vector{1, 2, 3}));
}

TEST_F(SimStream, LegacyStreamHasTwoHandles) {
  Order order;
  order.launch(nullptr, 1, 5 * kMs);
  order.launch(reinterpret_cast<CUstream>(kStreamLegacy), 2);
  EXPECT_EQ(cuStreamSynchronize(nullptr), kOk);
  EXPECT_EQ(order.ended(), (std::vector{1, 2}));
}

TEST_F(SimStream, NonBlockingStreamIgnoresTheLegacyStream) {
  Order order;
  CUstream free = stream(kStreamNonBlocking);
  CUstream held = stream(kStreamDefault);
  Gate gate(*this, held);
  order.launch(nullptr, 1);
  order.launch(free, 2);
  EXPECT_EQ(cuStreamSynchronize(free), kOk);
  EXPECT_EQ(cuStreamQuery(nullptr), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(nullptr), kOk);
  EXPECT_EQ(order.ended(), (std::vector{2, 1}));
}

TEST_F(SimStream, SynchronizingTheLegacyStreamWaitsForBlockingStreams) {
  Order order;
  CUstream blocking = stream(kStreamDefault);
  Gate gate(*this, blocking);
  order.launch(blocking, 1, 5 * kMs);
  EXPECT_EQ(cuStreamQuery(nullptr), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(nullptr), kOk);
  EXPECT_EQ(order.ended(), (std::vector{1}));
}

TEST_F(SimStream, EventOnTheLegacyStreamStandsBehindBlockingStreams) {
  CUstream blocking = stream(kStreamDefault);
  Gate gate(*this, blocking);
  CUevent behind = recorded(nullptr);
  EXPECT_EQ(cuEventQuery(behind), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuEventSynchronize(behind), kOk);
}

TEST_F(SimStream, EveryThreadHasItsOwnPerThreadStream) {
  auto* const per_thread = reinterpret_cast<CUstream>(kStreamPerThread);
  Gate gate(*this, per_thread);
  EXPECT_EQ(swsim_launch_delay(per_thread, 0), 0);
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(contexts_[0]), kOk);
    EXPECT_EQ(swsim_launch_delay(per_thread, 0), 0);
    EXPECT_EQ(cuStreamSynchronize(per_thread), kOk);
  }).join();
  EXPECT_EQ(cuStreamQuery(per_thread), CUresult::kNotReady);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(per_thread), kOk);
}

TEST_F(SimStream, DestroyedStreamFinishesItsWork) {
  Order order;
  CUstream going = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&going, kStreamNonBlocking, 0), kOk);
  order.launch(going, 1, 5 * kMs);
  EXPECT_EQ(cuStreamDestroy_v2(going), kOk);
  EXPECT_EQ(cuCtxSynchronize(), kOk);
  EXPECT_EQ(order.ended(), (std::vector{1}));
}

TEST_F(SimStream, DestroyedHandlesAreRefusedAndCounted) {
  CUstream going = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&going, 0, 0), kOk);
  CUevent gone = nullptr;
  ASSERT_EQ(cuEventCreate(&gone, 0), kOk);
  ASSERT_EQ(cuStreamDestroy_v2(going), kOk);
  ASSERT_EQ(cuEventDestroy_v2(gone), kOk);
  EXPECT_EQ(cuStreamSynchronize(going), CUresult::kInvalidHandle);
  EXPECT_EQ(cuStreamDestroy_v2(going), CUresult::kInvalidHandle);
  EXPECT_EQ(cuEventQuery(gone), CUresult::kInvalidHandle);
  EXPECT_EQ(cuEventDestroy_v2(gone), CUresult::kInvalidHandle);
  EXPECT_EQ(counts().invalid_handles, 4u);
}

TEST_F(SimStream, ObjectsOfAnotherDeviceAreRefused) {
  CUstream here = stream();
  CUevent marker = event();
  use(1);
  CUstream there = stream();
  EXPECT_EQ(cuEventRecord(marker, there), CUresult::kInvalidHandle);
  EXPECT_EQ(swsim_launch_delay(here, 0), code_of(CUresult::kInvalidHandle));
  EXPECT_EQ(cuEventRecord(marker, here), kOk);  // the context that is current does not matter for this one
  EXPECT_EQ(cuStreamSynchronize(here), kOk);
}

TEST_F(SimStream, TheHostSeesTheEndLaterThanOtherStreamsDo) {
  configure(0, [](swsim_device_config& config) {
    config.copy_latency_ns = kMs;
    config.host_latency_ns = 3'600'000 * kMs;
  });
  const CUdeviceptr tensor = allocate(4096);
  Pinned host(2 * 4096);
  CUstream first = stream();
  CUstream second = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);  // until all is queued
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, first), kOk);
  CUevent end_first = recorded(first);
  EXPECT_EQ(cuStreamWaitEvent(second, end_first, 0), kOk);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data() + 4096, tensor, 4096, second), kOk);
  CUevent end_second = recorded(second);
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
  while (swsim_event_time_ns(end_second) < 0) std::this_thread::yield();
  EXPECT_EQ(swsim_event_time_ns(end_second) - swsim_event_time_ns(end_first), static_cast<std::int64_t>(kMs));
  EXPECT_EQ(cuEventQuery(end_first), CUresult::kNotReady);
  EXPECT_EQ(cuStreamQuery(first), CUresult::kNotReady);
  configure(0, [](swsim_device_config& config) { config.host_latency_ns = 5 * kMs; });
  EXPECT_EQ(cuEventSynchronize(end_second), kOk);
  EXPECT_GE(swsim_now_ns() - swsim_event_time_ns(end_second), static_cast<std::int64_t>(5 * kMs));
  EXPECT_EQ(cuEventQuery(end_second), kOk);
}

TEST_F(SimStream, WaitsThatWouldSpinAreCounted) {
  CUstream work = stream();
  const auto wait_held_up = [&](unsigned flags) {
    Gate gate(*this, work);
    CUevent reached = event(flags);
    EXPECT_EQ(cuEventRecord(reached, work), kOk);
    const std::uint64_t before = counts().host_waits;
    const auto opener = once([=] { return counts().host_waits > before; }, [&gate] { gate.open(); });
    EXPECT_EQ(cuEventSynchronize(reached), kOk);
    EXPECT_EQ(counts().host_waits, before + 1);
  };
  wait_held_up(kEventBlockingSync | kEventDisableTiming);
  EXPECT_EQ(counts().spinning_waits, 0u);
  wait_held_up(kEventDisableTiming);
  EXPECT_EQ(counts().spinning_waits, 1u);
}

TEST_F(SimStream, CallBlocksWhileTheQueueOfItsStreamIsFull) {
  configure(0, [](swsim_device_config& config) { config.queue_limit = 8; });
  CUstream held = stream();
  Gate gate(*this, held);  // the wait is the first op
  for (int op = 1; op < 8; ++op) EXPECT_EQ(swsim_launch_delay(held, 0), 0);
  EXPECT_EQ(swsim_launch_delay(stream(), 0), 0);  // other streams have room
  EXPECT_EQ(counts().blocked_calls, 0u);
  {
    const auto opener = once([] { return counts().blocked_calls > 0; }, [&gate] { gate.open(); });
    EXPECT_EQ(swsim_launch_delay(held, 0), 0);
  }
  EXPECT_EQ(counts().blocked_calls, 1u);
  EXPECT_EQ(cuStreamSynchronize(held), kOk);
}

TEST_F(SimStream, LostDeviceEndsACallThatIsBlocked) {
  configure(0, [](swsim_device_config& config) { config.queue_limit = 1; });
  CUstream held = stream();
  Gate gate(*this, held);
  const auto loser = once([] { return counts().blocked_calls > 0; }, [] { EXPECT_EQ(swsim_lose_device(0), 0); });
  EXPECT_EQ(cuEventRecord(event(), held), CUresult::kUnknown);
  gate.open();
}

TEST_F(SimStream, QueueHolds1024OpsUnlessConfigured) {
  CUstream held = stream();
  Gate gate(*this, held);
  for (int op = 1; op < 1024; ++op) ASSERT_EQ(swsim_launch_delay(held, 0), 0);
  EXPECT_EQ(counts().blocked_calls, 0u);
  configure(0, [](swsim_device_config& config) { EXPECT_EQ(std::exchange(config.queue_limit, 0), 1024u); });
  EXPECT_EQ(swsim_launch_delay(held, 0), 0);
  EXPECT_EQ(counts().blocked_calls, 0u);
  gate.open();
  EXPECT_EQ(cuStreamSynchronize(held), kOk);
}

TEST_F(SimStream, PrioritiesAreClampedToTheRange) {
  int least = -1;
  int greatest = 0;
  ASSERT_EQ(cuCtxGetStreamPriorityRange(&least, &greatest), kOk);
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, least);
  int priority = 99;
  EXPECT_EQ(cuStreamGetPriority(stream(0, greatest - 10), &priority), kOk);
  EXPECT_EQ(priority, greatest);
  EXPECT_EQ(cuStreamGetPriority(stream(0, 10), &priority), kOk);
  EXPECT_EQ(priority, least);
}

}  // namespace
}  // namespace slackwater::cuda::test
