// Bad handles that end the process, as they may with the real driver.
#include <csignal>

#include "unit/sim/sim_fixture.hpp"

namespace slackwater::cuda::test {
namespace {

class SimBadHandleDeathTest : public SimTest {
 protected:
  void SetUp() override {
    // A forked child has no driver, so the test runs again in a process of its own.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    SimTest::SetUp();
    swsim_crash_on_bad_handles(1);
    EXPECT_EQ(cuStreamCreateWithPriority(&gone_stream_, 0, 0), kOk);
    EXPECT_EQ(cuStreamDestroy_v2(gone_stream_), kOk);
    EXPECT_EQ(cuEventCreate(&gone_event_, 0), kOk);
    EXPECT_EQ(cuEventDestroy_v2(gone_event_), kOk);
  }
  CUstream gone_stream_ = nullptr;
  CUevent gone_event_ = nullptr;
};

TEST_F(SimBadHandleDeathTest, DestroyedStreamEndsTheProcess) {
  EXPECT_DEATH((void)cuStreamSynchronize(gone_stream_), "");
  EXPECT_DEATH((void)cuStreamDestroy_v2(gone_stream_), "");
  EXPECT_DEATH((void)cuEventRecord(event(), gone_stream_), "");
  EXPECT_DEATH((void)swsim_launch_delay(gone_stream_, 0), "");
}

TEST_F(SimBadHandleDeathTest, DestroyedEventEndsTheProcess) {
  EXPECT_DEATH((void)cuEventQuery(gone_event_), "");
  EXPECT_DEATH((void)cuEventDestroy_v2(gone_event_), "");
  EXPECT_DEATH((void)cuStreamWaitEvent(stream(), gone_event_, 0), "");
}

TEST_F(SimBadHandleDeathTest, UnknownHandleEndsTheProcess) {
  EXPECT_DEATH((void)cuStreamQuery(reinterpret_cast<CUstream>(0x1234)), "");
  EXPECT_DEATH((void)cuEventSynchronize(reinterpret_cast<CUevent>(0x1234)), "");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they catch the signal
TEST_F(SimBadHandleDeathTest, TheSignalIsThatOfABadAddress) {
  EXPECT_EXIT((void)cuStreamQuery(gone_stream_), ::testing::KilledBySignal(SIGSEGV), "");
}
#endif

TEST_F(SimBadHandleDeathTest, NullIsRefused) {
  EXPECT_EQ(cuEventDestroy_v2(nullptr), CUresult::kInvalidHandle);
  EXPECT_EQ(cuEventQuery(nullptr), CUresult::kInvalidHandle);
  EXPECT_EQ(counts().invalid_handles, 2u);
}

TEST_F(SimBadHandleDeathTest, OffTheCallReturnsAnError) {
  ASSERT_EQ(swsim_set("crash_on_bad_handles=0"), 0);
  EXPECT_EQ(cuStreamSynchronize(gone_stream_), CUresult::kInvalidHandle);
  EXPECT_EQ(cuEventQuery(gone_event_), CUresult::kInvalidHandle);
  EXPECT_EQ(counts().invalid_handles, 2u);
}

}  // namespace
}  // namespace slackwater::cuda::test
