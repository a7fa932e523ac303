// Copies that a device makes by itself: who waits for whom, and when a slab may go to somebody else. The device is a
// stand-in whose copies and events do what the test says. The real devices are tested in tests/unit/device.
#include <atomic>
#include <condition_variable>
#include <future>
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

struct DeviceCopiesPlan {
  std::shared_ptr<TestEvent> event = std::make_shared<TestEvent>(true);  // of every record_event()
  std::function<std::shared_ptr<TestEvent>()> make_event;                // instead, an event for each
  bool refuses_copies = false;
  std::function<void()> on_copies = [] {};  // in each call that queues copies
  std::atomic<int> at_once = 0;             // calls
  bool unchanged = true;
  std::atomic<int> second_samples = 0;
  std::function<void()> on_end = [] {};  // when the device copies is destroyed: only then no copy of it can be running
};

class TestDeviceCopies final : public DeviceCopies {
 public:
  explicit TestDeviceCopies(DeviceCopiesPlan& plan) : plan_(plan) {}
  ~TestDeviceCopies() override { plan_.on_end(); }
  Status queue_copies(std::span<const CopyPiece> pieces) override {
    plan_.on_copies();
    if (plan_.refuses_copies) return fail(ErrorKind::kDevice, "the copy was refused");
    return host_->copy_to_host(pieces);
  }
  void at_once() override { ++plan_.at_once; }
  Status queue_second_sample(std::uint32_t /*guard*/) override {
    ++plan_.second_samples;
    return {};
  }
  Result<std::shared_ptr<Event>> record_event() override {
    if (plan_.make_event) return plan_.make_event();
    return plan_.event;
  }
  Result<bool> unchanged(std::uint32_t /*guard*/) override { return plan_.unchanged; }

 private:
  DeviceCopiesPlan& plan_;
  std::unique_ptr<Device> host_ = make_host_device();
};

class StagerDevice : public ::testing::Test {
 protected:
  // A snapshot of a tensor of 1,000 bytes on each of so many devices: one slab holds them all.
  std::shared_ptr<StageJob> job_on(std::span<DeviceCopiesPlan> plans, bool guarded = false) {
    for (std::uint32_t i = 0; i < plans.size(); ++i) {
      snapshot_.add(1000, guarded);
      Source& source = snapshot_.settings().sources.back();
      source.device = devices_.emplace_back(make_host_device()).get();
      source.device_index = i;
      snapshot_.settings().device_copies.push_back({nullptr, std::make_unique<TestDeviceCopies>(plans[i])});
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

TEST_F(StagerDevice, ASlabIsHandedOnWhenTheCopiesOfEveryDeviceAreOver) {
  std::array<DeviceCopiesPlan, 2> plans;
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

TEST_F(StagerDevice, AfterAFailedCopyTheOtherCopiesIntoTheSlabAreWaitedForToo) {
  std::array<DeviceCopiesPlan, 2> plans;
  plans[0].event->open(false);
  const auto job = job_on(plans);
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(job);
  const Status status = sink_.wait();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "the copy failed");
  EXPECT_EQ(plans[1].event->waits(), 1) << "its copy may still write to the slab";
}

TEST_F(StagerDevice, ASlabWhoseCopyFailedStaysOutOfThePoolUntilTheDeviceIsDone) {
  for (const bool refused : {true, false}) {
    SCOPED_TRACE(refused ? "refused when it was queued" : "failed while it ran");
    pool_->wait_touched();
    TestSnapshot snapshot(*host_);
    SlabSink sink;
    std::array<DeviceCopiesPlan, 1> plans;
    plans[0].refuses_copies = refused;
    plans[0].event->open(false);
    std::uint32_t free_at_end = 0;
    plans[0].on_end = [&] { free_at_end = pool_->free_count(); };
    snapshot.add(1000);
    snapshot.settings().sources.back().device_index = 0;
    snapshot.settings().device_copies.push_back({nullptr, std::make_unique<TestDeviceCopies>(plans[0])});
    sink.attach(snapshot.settings());
    Stager stager(*pool_, {.copy_threads = 1});
    stager.enqueue(snapshot.job());
    EXPECT_FALSE(sink.wait());
    EXPECT_EQ(free_at_end, 2u) << "somebody else could have got the slab";
    stager.stop();
    EXPECT_EQ(pool_->free_count(), 3u);
  }
}

TEST_F(StagerDevice, ATensorThatTheSecondSampleFindsChangedIsTorn) {
  std::array<DeviceCopiesPlan, 1> plans;
  plans[0].unchanged = false;
  const auto job = job_on(plans, true);
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(job);
  const Status status = sink_.wait();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(plans[0].second_samples, 1);
  EXPECT_TRUE(sink_.order().empty()) << "torn bytes went to the writer";
}

TEST_F(StagerDevice, ItsPointsAreGivenOnceAndBeforeTheEnd) {
  std::array<DeviceCopiesPlan, 2> plans;
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

// The last chunk may be queued while another thread still queues an earlier one. Points taken at that moment would let
// the update overtake the earlier copies.
TEST_F(StagerDevice, ItsPointsLieBehindTheCopiesOfEveryThread) {
  DeviceCopiesPlan plan;
  std::atomic<int> begun = 0;
  plan.on_copies = [&] {
    ++begun;
    while (begun < 2) std::this_thread::yield();  // the two threads are at the two chunks
  };
  snapshot_.add(kMiB + 1000);
  snapshot_.settings().sources.back().device_index = 0;
  snapshot_.settings().device_copies.push_back({nullptr, std::make_unique<TestDeviceCopies>(plan)});
  std::atomic<int> told = 0;
  snapshot_.settings().on_queued = [&](const std::vector<DevicePoint>&) { ++told; };
  sink_.attach(snapshot_.settings());
  Stager stager(*pool_, {.copy_threads = 2});
  stager.enqueue(snapshot_.job());
  ASSERT_TRUE(sink_.wait());
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(told, 1) << "each thread took itself for the last";
}

// Snapshots of 6 MiB on a device, staged with a limit on outstanding copies.
class StagerBacklog : public ::testing::Test {
 protected:
  static constexpr int kChunks = 7;  // of 1 MiB each, with the header

  struct Job {
    Job(Device& host, DeviceCopiesPlan& plan) : snapshot(host) {
      plan.on_copies = [this] {
        ++begun;
        begun.notify_all();
      };
      snapshot.add(6 * kMiB);
      snapshot.settings().sources.back().device_index = 0;
      snapshot.settings().device_copies.push_back({nullptr, std::make_unique<TestDeviceCopies>(plan)});
      snapshot.settings().on_queued = [this](const std::vector<DevicePoint>&) { queued.set_value(); };
      sink.attach(snapshot.settings());
      job = snapshot.job();
    }
    void until_begun(int chunks) {
      for (int now = begun; now < chunks; now = begun) begun.wait(now);
    }
    TestSnapshot snapshot;
    SlabSink sink;
    std::atomic<int> begun = 0;
    std::promise<void> queued;
    std::shared_ptr<StageJob> job;
  };

  std::unique_ptr<Device> host_ = make_host_device();
  std::unique_ptr<Pool> pool_ = test::make_pool(2 * kChunks);
};

TEST_F(StagerBacklog, BeforeTheFenceNoMoreThanTheLimitIsOutstanding) {
  for (const unsigned threads : {1u, 2u}) {
    DeviceCopiesPlan plan;
    std::mutex mutex;
    std::vector<std::shared_ptr<TestEvent>> events;
    std::atomic<int> made = 0;
    plan.make_event = [&] {
      const std::lock_guard lock(mutex);
      events.push_back(std::make_shared<TestEvent>(false));
      ++made;
      made.notify_all();
      return events.back();
    };
    Job job(*host_, plan);
    std::atomic<int> over = 0;
    std::atomic<int> most = 0;
    plan.on_copies = [&] {
      const int outstanding = ++job.begun - over;
      if (outstanding > most) most = outstanding;
    };
    Stager stager(*pool_, {.copy_threads = threads, .copies_ahead_bytes = 2 * kMiB});
    stager.enqueue(job.job);
    for (int i = 0; i < kChunks; ++i) {
      for (int now = made; now <= i; now = made) made.wait(now);
      std::shared_ptr<TestEvent> event;
      {
        const std::lock_guard lock(mutex);
        event = events[static_cast<std::size_t>(i)];
      }
      if (threads == 1) event->until_waited_for();  // two threads may hand their events over in another order
      ++over;
      event->open();
    }
    // The last one is the point behind all of them.
    for (int now = made; now <= kChunks; now = made) made.wait(now);
    ASSERT_TRUE(job.sink.wait());
    EXPECT_LE(most, 2);
    EXPECT_EQ(job.sink.stream(0), job.snapshot.expected()[0]);
  }
}

TEST_F(StagerBacklog, TheRestIsQueuedWhenTheFenceIsCalled) {
  DeviceCopiesPlan plan{.event = std::make_shared<TestEvent>(false)};
  Job job(*host_, plan);
  Stager stager(*pool_, {.copy_threads = 2, .copies_ahead_bytes = kMiB});
  stager.enqueue(job.job);
  job.until_begun(1);
  EXPECT_EQ(plan.at_once, 0) << "the trainer's copies must be able to pass before the fence";
  stager.queue_all(job.job);
  EXPECT_EQ(plan.at_once, 1);
  job.queued.get_future().get();  // while no copy is over
  EXPECT_EQ(job.begun, kChunks);
  EXPECT_EQ(job.sink.done_calls(), 0);
  plan.event->open();
  ASSERT_TRUE(job.sink.wait());
}

TEST_F(StagerBacklog, WithoutALimitEverythingIsQueuedAtOnce) {
  DeviceCopiesPlan plan;
  Job job(*host_, plan);
  Stager stager(*pool_, {.copy_threads = 2, .copies_ahead_bytes = 0});
  stager.enqueue(job.job);
  ASSERT_TRUE(job.sink.wait());
  EXPECT_EQ(plan.at_once, 1);
}

TEST_F(StagerBacklog, AFenceAlsoFreesTheSnapshotsBefore) {
  DeviceCopiesPlan first_plan{.event = std::make_shared<TestEvent>(false)};
  DeviceCopiesPlan second_plan{.event = first_plan.event};
  Job first(*host_, first_plan);
  Job second(*host_, second_plan);
  Stager stager(*pool_, {.copy_threads = 2, .copies_ahead_bytes = kMiB});
  stager.enqueue(first.job);
  stager.enqueue(second.job);
  stager.queue_all(second.job);
  first.queued.get_future().get();
  second.queued.get_future().get();
  first_plan.event->open();
  ASSERT_TRUE(first.sink.wait());
  ASSERT_TRUE(second.sink.wait());
}

TEST_F(StagerBacklog, ALimitBelowOneChunkHoldsNothingUpForEver) {
  DeviceCopiesPlan plan;
  Job job(*host_, plan);
  Stager stager(*pool_, {.copy_threads = 2, .copies_ahead_bytes = 1, .copies_ahead_operations = 1});
  stager.enqueue(job.job);
  ASSERT_TRUE(job.sink.wait());
  EXPECT_EQ(job.sink.stream(0), job.snapshot.expected()[0]);
}

TEST_F(StagerBacklog, ASnapshotThatIsGivenUpWhileCopiesAreHeldBackEnds) {
  for (const bool stop : {false, true}) {
    DeviceCopiesPlan plan{.event = std::make_shared<TestEvent>(false)};
    Job job(*host_, plan);
    Stager stager(*pool_, {.copy_threads = 1, .copies_ahead_bytes = kMiB});
    stager.enqueue(job.job);
    plan.event->until_waited_for();
    if (!stop) stager.cancel(job.job, {.kind = ErrorKind::kTimeout, .message = "too slow", .path = {}});
    plan.event->open();
    if (stop) stager.stop();
    const Status status = job.sink.wait();
    if (!stop) {
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().kind, ErrorKind::kTimeout);
      EXPECT_EQ(job.begun, 1) << "a copy was queued for a snapshot that was given up";
    }
    stager.stop();
    EXPECT_EQ(pool_->free_count(), pool_->slab_count());
  }
}

}  // namespace
}  // namespace slackwater
