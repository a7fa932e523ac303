// Copies that a device makes by itself: who waits for whom, and when a slab may go to somebody else. The device is a stand-in
// whose copies and events do what the test says; the real code of devices is tested in tests/unit/device.
#include <condition_variable>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stage/stager.hpp"
#include "unit/stage/stage_fixture.hpp"

namespace slackwater {
namespace {

using test::kMiB;
using test::SlabSink;
using test::TestSnapshot;

// A point that is reached when the test says so.
class TestEvent final : public Event {
 public:
  explicit TestEvent(bool open) : open_(open) {}
  Status wait() override {
    std::unique_lock lock(mutex_);
    ++waits_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    if (failing_) return fail(ErrorKind::kDevice, "the copy failed");
    return {};
  }
  void open(bool well = true) {
    const std::lock_guard lock(mutex_);
    open_ = true;
    failing_ = !well;
    changed_.notify_all();
  }
  void until_waited_for() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waits_ > 0; });
  }
  [[nodiscard]] int waits() const {
    const std::lock_guard lock(mutex_);
    return waits_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_;             // guarded by mutex_
  bool failing_ = false;  // guarded by mutex_
  int waits_ = 0;         // guarded by mutex_
};

struct PassagePlan {
  std::shared_ptr<TestEvent> event = std::make_shared<TestEvent>(true);  // of every mark()
  bool refuses_copies = false;
  std::function<void()> on_copies = [] {};  // in each call that queues copies
  bool unchanged = true;
  std::atomic<int> second_looks = 0;
  std::function<void()> on_end = [] {};  // when the passage is destroyed: only then no copy of it can be running
};

class TestPassage final : public Passage {
 public:
  explicit TestPassage(PassagePlan& plan) : plan_(plan) {}
  ~TestPassage() override { plan_.on_end(); }
  Status queue_copies(std::span<const CopyPiece> pieces) override {
    plan_.on_copies();
    if (plan_.refuses_copies) return fail(ErrorKind::kDevice, "the copy was refused");
    return host_->copy_to_host(pieces);
  }
  Status queue_second_look(std::uint32_t /*guard*/) override {
    ++plan_.second_looks;
    return {};
  }
  Result<std::shared_ptr<Event>> mark() override { return plan_.event; }
  Result<bool> unchanged(std::uint32_t /*guard*/) override { return plan_.unchanged; }

 private:
  PassagePlan& plan_;
  std::unique_ptr<Device> host_ = make_host_device();
};

class StagerPassage : public ::testing::Test {
 protected:
  // A snapshot of a tensor of 1,000 bytes on each of so many devices: one slab holds them all.
  std::shared_ptr<StageJob> job_on(std::span<PassagePlan> plans, bool guarded = false) {
    for (std::uint32_t i = 0; i < plans.size(); ++i) {
      snapshot_.add(1000, guarded);
      Source& source = snapshot_.settings().sources.back();
      source.device = devices_.emplace_back(make_host_device()).get();
      source.passage = i;
      snapshot_.settings().passages.push_back({nullptr, std::make_unique<TestPassage>(plans[i])});
    }
    sink_.attach(snapshot_.settings());
    return snapshot_.job();
  }

  std::unique_ptr<Device> host_ = make_host_device();
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Pool> pool_ = test::make_pool(3);
  TestSnapshot snapshot_{*host_};
  SlabSink sink_;
};

TEST_F(StagerPassage, ASlabIsHandedOnWhenTheCopiesOfEveryDeviceAreOver) {
  std::array<PassagePlan, 2> plans;
  plans[1].event = std::make_shared<TestEvent>(false);
  const auto job = job_on(plans);
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(job);
  plans[1].event->until_waited_for();
  EXPECT_TRUE(sink_.order().empty()) << "handed on while the second device copies into it";
  EXPECT_EQ(sink_.done_calls(), 0);
  plans[1].event->open();
  ASSERT_TRUE(sink_.wait());
  EXPECT_EQ(sink_.stream(0), snapshot_.expected()[0]);
}

TEST_F(StagerPassage, AfterAFailedCopyTheOtherCopiesIntoTheSlabAreWaitedForToo) {
  std::array<PassagePlan, 2> plans;
  plans[0].event->open(false);
  const auto job = job_on(plans);
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(job);
  const Status status = sink_.wait();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "the copy failed");
  EXPECT_EQ(plans[1].event->waits(), 1) << "its copy may still write to the slab";
}

TEST_F(StagerPassage, ASlabWhoseCopyFailedStaysOutOfThePoolUntilTheDeviceIsDone) {
  for (const bool refused : {true, false}) {
    SCOPED_TRACE(refused ? "refused when it was queued" : "failed while it ran");
    pool_->wait_touched();
    TestSnapshot snapshot(*host_);
    SlabSink sink;
    std::array<PassagePlan, 1> plans;
    plans[0].refuses_copies = refused;
    plans[0].event->open(false);
    std::uint32_t free_at_end = 0;
    plans[0].on_end = [&] { free_at_end = pool_->free_count(); };
    snapshot.add(1000);
    snapshot.settings().sources.back().passage = 0;
    snapshot.settings().passages.push_back({nullptr, std::make_unique<TestPassage>(plans[0])});
    sink.attach(snapshot.settings());
    Stager stager(*pool_, {.copy_threads = 1});
    stager.enqueue(snapshot.job());
    EXPECT_FALSE(sink.wait());
    EXPECT_EQ(free_at_end, 2u) << "somebody else could have got the slab";
    stager.stop();
    EXPECT_EQ(pool_->free_count(), 3u);
  }
}

TEST_F(StagerPassage, ATensorThatTheSecondLookFindsChangedIsTorn) {
  std::array<PassagePlan, 1> plans;
  plans[0].unchanged = false;
  const auto job = job_on(plans, true);
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(job);
  const Status status = sink_.wait();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(plans[0].second_looks, 1);
  EXPECT_TRUE(sink_.order().empty()) << "torn bytes went to the writer";
}

TEST_F(StagerPassage, ItsPointsAreGivenOnceAndBeforeTheEnd) {
  std::array<PassagePlan, 2> plans;
  plans[0].event = std::make_shared<TestEvent>(false);
  const auto job = job_on(plans);
  std::atomic<int> queued = 0;
  std::promise<std::size_t> points;
  job->on_queued = [&](std::vector<DevicePoint> given) {
    if (++queued == 1) points.set_value(given.size());
  };
  Stager stager(*pool_, {.copy_threads = 2});
  stager.enqueue(job);
  EXPECT_EQ(points.get_future().get(), 2u) << "a point for each device, while copies are under way";
  EXPECT_EQ(sink_.done_calls(), 0);
  plans[0].event->open();
  ASSERT_TRUE(sink_.wait());
  EXPECT_EQ(queued, 1);
}

// The last window may be queued while another thread is still at an earlier one: an update that is ordered behind the points then
// would come before copies.
TEST_F(StagerPassage, ItsPointsLieBehindTheCopiesOfEveryThread) {
  PassagePlan plan;
  std::atomic<int> begun = 0;
  plan.on_copies = [&] {
    ++begun;
    while (begun < 2) std::this_thread::yield();  // the two threads are at the two windows
  };
  snapshot_.add(kMiB + 1000);
  snapshot_.settings().sources.back().passage = 0;
  snapshot_.settings().passages.push_back({nullptr, std::make_unique<TestPassage>(plan)});
  std::atomic<int> told = 0;
  snapshot_.settings().on_queued = [&](const std::vector<DevicePoint>&) { ++told; };
  sink_.attach(snapshot_.settings());
  Stager stager(*pool_, {.copy_threads = 2});
  stager.enqueue(snapshot_.job());
  ASSERT_TRUE(sink_.wait());
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(told, 1) << "each thread took itself for the last";
}

}  // namespace
}  // namespace slackwater
