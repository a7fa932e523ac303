// What calls cost on the host, and the lock of the driver that they hold meanwhile.
#include <functional>
#include <thread>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

constexpr std::uint64_t kHour = 3'600'000 * kMs;

class SimCost : public SimTest {
 protected:
  static swsim_lock_stats lock() {
    swsim_lock_stats now{};
    swsim_driver_lock(&now);
    return now;
  }
  // A call on a thread of its own, in the context of device 0.
  [[nodiscard]] std::jthread elsewhere(const std::function<void()>& call) {
    return std::jthread([this, call] {
      EXPECT_EQ(cuCtxSetCurrent(contexts_[0]), kOk);
      call();
    });
  }
  template <class Condition>
  static void until(Condition condition) {
    while (!condition()) std::this_thread::yield();
  }
};

TEST_F(SimCost, CallsTakeAsLongAsTheyCost) {
  slackwater::test::AlignedBuffer memory(4 * kMiB);
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_REGISTER, 2 * kMs, kMs), 0);
  const std::int64_t before = swsim_now_ns();
  EXPECT_EQ(cuMemHostRegister_v2(memory.data(), 4 * kMiB, 0), kOk);
  EXPECT_GE(swsim_now_ns() - before, static_cast<std::int64_t>(6 * kMs));
  EXPECT_EQ(lock().held_ns, 6 * kMs);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), kOk);
}

TEST_F(SimCost, EachKindHasItsOwnCost) {
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_HOST_ALLOC, 1, 0), 0);
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_DEVICE_ALLOC, 20, 1000), 0);
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_STREAM, 300, 0), 0);
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_EVENT, 4000, 0), 0);
  EXPECT_EQ(swsim_set_cost(SWSIM_COSTS, 1, 1), code_of(CUresult::kInvalidValue));
  { Pinned host(kMiB); }
  EXPECT_EQ(lock().held_ns, 1u);
  allocate(kMiB / 2);
  EXPECT_EQ(lock().held_ns, 521u);
  stream();
  EXPECT_EQ(lock().held_ns, 821u);
  event();
  EXPECT_EQ(lock().held_ns, 4821u);
  EXPECT_EQ(lock().longest_hold_ns, 4000u);
}

TEST_F(SimCost, OtherCallsWaitForTheLock) {
  slackwater::test::AlignedBuffer memory(4096);
  CUstream idle = stream();
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_REGISTER, kHour, 0), 0);
  {
    const std::jthread registers =
        elsewhere([&] { EXPECT_EQ(cuMemHostRegister_v2(memory.data(), 4096, 0), kOk); });
    until([] { return swsim_calls("cuMemHostRegister_v2") == 1; });
    const std::jthread waits = std::jthread([&] {
      int version = 0;
      EXPECT_EQ(cuDriverGetVersion(&version), kOk);  // needs no lock
      EXPECT_EQ(cuCtxSetCurrent(contexts_[0]), kOk);
      EXPECT_EQ(cuStreamQuery(idle), kOk);
    });
    until([] { return lock().waiting == 1; });
    ASSERT_EQ(swsim_set_cost(SWSIM_COST_REGISTER, 0, 0), 0);
  }
  EXPECT_EQ(lock().waits, 1u);
  EXPECT_GT(lock().longest_wait_ns, 0u);
  EXPECT_GE(lock().longest_hold_ns, lock().longest_wait_ns);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), kOk);
}

TEST_F(SimCost, OtherCallsGoOnWithoutTheLock) {
  slackwater::test::AlignedBuffer memory(4096);
  swsim_set_driver_lock(0);
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_REGISTER, kHour, 0), 0);
  {
    const std::jthread registers =
        elsewhere([&] { EXPECT_EQ(cuMemHostRegister_v2(memory.data(), 4096, 0), kOk); });
    until([] { return swsim_calls("cuMemHostRegister_v2") == 1; });
    EXPECT_EQ(cuStreamSynchronize(stream()), kOk);
    EXPECT_EQ(counts().registrations, 0u);
    ASSERT_EQ(swsim_set_cost(SWSIM_COST_REGISTER, 0, 0), 0);
  }
  EXPECT_EQ(lock().waits, 0u);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), kOk);
}

TEST_F(SimCost, DevicesGoOnWhileTheLockIsHeld) {
  slackwater::test::AlignedBuffer memory(4096);
  const CUdeviceptr tensor = allocate(4096, 7);
  Pinned host(4096);
  CUstream copies = stream();
  ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_ON), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.data(), tensor, 4096, copies), kOk);
  ASSERT_EQ(swsim_set_cost(SWSIM_COST_REGISTER, kHour, 0), 0);
  {
    const std::jthread registers =
        elsewhere([&] { EXPECT_EQ(cuMemHostRegister_v2(memory.data(), 4096, 0), kOk); });
    until([] { return swsim_calls("cuMemHostRegister_v2") == 1; });
    ASSERT_EQ(swsim_stall_copies(0, SWSIM_STALL_OFF), 0);
    until([] { return engine(0, SWSIM_D2H).copies == 1; });
    ASSERT_EQ(swsim_set_cost(SWSIM_COST_REGISTER, 0, 0), 0);
  }
  EXPECT_EQ(host[4095], 7);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), kOk);
}

TEST_F(SimCost, CallThatIsRefusedCostsNothing) {
  ASSERT_EQ(swsim_set("register_cost=1000:1000,driver_lock=1"), 0);
  EXPECT_EQ(cuMemHostRegister_v2(nullptr, 4096, 0), CUresult::kInvalidValue);
  EXPECT_EQ(lock().held_ns, 0u);
}

}  // namespace
}  // namespace slackwater::cuda::test
