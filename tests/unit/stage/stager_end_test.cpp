// How a job ends when it does not end well: torn tensors, stalls, cancels, device errors, the end of the stager.
#include <condition_variable>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stage/stager.hpp"
#include "unit/stage/stage_fixture.hpp"

namespace slackwater {
namespace {

using namespace std::chrono_literals;
using test::kMiB;
using test::SlabSink;
using test::TestSnapshot;
using ::testing::HasSubstr;

// Host memory whose copies can be held up or made to fail, and which counts fingerprints.
class TestDevice final : public Device {
 public:
  Status copy_to_host(std::span<const CopyPiece> pieces) override {
    std::unique_lock lock(mutex_);
    ++copies_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_ || copies_ <= free_copies_; });
    if (failing_) return fail(ErrorKind::kIo, "the device fell off the bus");
    lock.unlock();
    return host_->copy_to_host(pieces);
  }
  Status copy_from_host(std::span<const CopyPiece> pieces) override { return host_->copy_from_host(pieces); }
  Result<std::uint64_t> fingerprint(const StridedMemory& tensor, std::uint64_t seed, bool whole) override {
    ++fingerprints_;
    return host_->fingerprint(tensor, seed, whole);
  }

  // All copies but the first so many.
  void hold(int free_copies = 0) {
    const std::lock_guard lock(mutex_);
    held_ = true;
    free_copies_ = free_copies;
  }
  void go_on() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  void make_fail() {
    const std::lock_guard lock(mutex_);
    failing_ = true;
  }
  void until_copying(int copies = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return copies_ >= copies; });
  }
  [[nodiscard]] int fingerprints() const { return fingerprints_; }

 private:
  std::unique_ptr<Device> host_ = make_host_device();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;     // guarded by mutex_
  bool failing_ = false;  // guarded by mutex_
  int free_copies_ = 0;   // guarded by mutex_
  int copies_ = 0;        // guarded by mutex_
  std::atomic<int> fingerprints_ = 0;
};

class StagerEnd : public ::testing::Test {
 protected:
  std::vector<Lease> take_all_slabs() {
    pool_->wait_touched();
    std::vector<Lease> all;
    while (auto lease = pool_->try_acquire()) all.push_back(std::move(*lease));
    return all;
  }
  void until_waiting() {
    while (pool_->waiting_count() == 0) std::this_thread::yield();
  }

  TestDevice device_;
  std::unique_ptr<Pool> pool_ = test::make_pool(3);
  TestSnapshot snapshot_{device_};
  SlabSink sink_;
};

TEST_F(StagerEnd, ATensorWrittenToAfterSaveIsTornAndNamed) {
  snapshot_.add(5000, true);
  const auto torn = snapshot_.add(4 * kMiB, true);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  for (std::byte& byte : snapshot_.memory(torn)) byte ^= std::byte{1};
  Stager stager(*pool_, {.copy_threads = 2});
  stager.enqueue(job);
  const Status status = sink_.wait();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(status.error().tensor, "tensor-1");
  EXPECT_EQ(status.error().path, "");
  EXPECT_THAT(status.error().message,
              HasSubstr("tensor 'tensor-1' was written to between save() and the fence; call fence()"));
}

TEST_F(StagerEnd, ATensorIsCheckedAfterItsLastCopyAndNotBefore) {
  const auto torn = snapshot_.add(4 * kMiB, true);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  device_.hold(1);
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(job);
  device_.until_copying(2);  // the first piece has been copied
  for (std::byte& byte : snapshot_.memory(torn)) byte ^= std::byte{1};
  device_.go_on();
  EXPECT_EQ(sink_.wait().error().kind, ErrorKind::kTorn);
}

TEST_F(StagerEnd, TheFirstErrorIsReported) {
  snapshot_.add(5000, true);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  device_.hold();
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(job);
  device_.until_copying();
  stager.cancel(job, {ErrorKind::kNoSpace, "the disk is full", {}, 0, false});
  device_.make_fail();
  device_.go_on();
  EXPECT_EQ(sink_.wait().error().message, "the disk is full");
}

TEST_F(StagerEnd, ParanoidFindsASingleBit) {
  snapshot_.settings().whole_fingerprint = true;
  const auto torn = snapshot_.add(2 * kMiB, true);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  snapshot_.memory(torn)[kMiB + 77] ^= std::byte{4};
  Stager stager(*pool_, {.copy_threads = 2});
  stager.enqueue(job);
  EXPECT_EQ(sink_.wait().error().kind, ErrorKind::kTorn);
}

TEST_F(StagerEnd, ATensorThatIsNotGuardedMayChange) {
  const auto changed = snapshot_.add(5000, false);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  for (std::byte& byte : snapshot_.memory(changed)) byte = std::byte{9};
  Stager stager(*pool_, {.copy_threads = 2});
  stager.enqueue(job);
  EXPECT_TRUE(sink_.wait().has_value());
}

TEST_F(StagerEnd, EachGuardedTensorIsCheckedOnceHoweverManyPiecesItHas) {
  snapshot_.add(6 * kMiB, true);
  snapshot_.add(10, true);
  snapshot_.add(0, true);
  snapshot_.add(10, false);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  const int at_save = device_.fingerprints();
  Stager stager(*pool_, {.copy_threads = 3});
  stager.enqueue(job);
  ASSERT_TRUE(sink_.wait().has_value());
  EXPECT_EQ(device_.fingerprints() - at_save, 2) << "empty and unguarded tensors are skipped";
}

TEST_F(StagerEnd, APoolThatStaysFullFailsTheJobAndNotTheNextOne) {
  snapshot_.add(kMiB);
  sink_.attach(snapshot_.settings());
  auto held = take_all_slabs();
  Stager stager(*pool_, {.copy_threads = 2, .stall_timeout = 5ms});
  stager.enqueue(snapshot_.job());
  EXPECT_EQ(sink_.wait().error().kind, ErrorKind::kTimeout);

  held.clear();
  TestSnapshot next(device_);
  next.add(2 * kMiB);
  SlabSink next_sink;
  next_sink.attach(next.settings());
  stager.enqueue(next.job());
  EXPECT_TRUE(next_sink.wait().has_value());
  EXPECT_EQ(sink_.done_calls(), 1);
}

TEST_F(StagerEnd, SlabsThatAreNotGivenBackStallAJobInItsMiddle) {
  pool_->wait_touched();  // or it stalls at its beginning, on a busy machine
  snapshot_.add(6 * kMiB);
  sink_.attach(snapshot_.settings());
  sink_.keep_slabs();
  {
    Stager stager(*pool_, {.copy_threads = 2, .stall_timeout = 5ms});
    stager.enqueue(snapshot_.job());
    EXPECT_EQ(sink_.wait().error().kind, ErrorKind::kTimeout);
  }
  sink_.drop_slabs();
  EXPECT_EQ(pool_->free_count(), 3u);
}

TEST_F(StagerEnd, CancelEndsAJobThatWaitsForASlab) {
  snapshot_.add(kMiB);
  sink_.attach(snapshot_.settings());
  const auto held = take_all_slabs();
  Stager stager(*pool_, {.copy_threads = 2});
  const auto job = snapshot_.job();
  stager.enqueue(job);
  until_waiting();
  stager.cancel(job, {ErrorKind::kAborted, "not wanted any more", {}, 0, false});
  const Status status = sink_.wait();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().kind, ErrorKind::kAborted);
  EXPECT_EQ(status.error().message, "not wanted any more");
}

TEST_F(StagerEnd, CancelOfALaterJobNeedsNoSlabAndLeavesTheFrontOneAlone) {
  snapshot_.add(kMiB);
  sink_.attach(snapshot_.settings());
  TestSnapshot later(device_);
  later.add(kMiB);
  SlabSink later_sink;
  later_sink.attach(later.settings());
  auto held = take_all_slabs();
  Stager stager(*pool_, {.copy_threads = 1});
  stager.enqueue(snapshot_.job());
  const auto later_job = later.job();
  stager.enqueue(later_job);
  until_waiting();
  stager.cancel(later_job, {ErrorKind::kAborted, "not wanted any more", {}, 0, false});
  EXPECT_EQ(later_sink.wait().error().kind, ErrorKind::kAborted);
  held.clear();
  EXPECT_TRUE(sink_.wait().has_value());
}

TEST_F(StagerEnd, ACancelledJobIsDoneOnlyWhenNobodyReadsItsSourcesAnyMore) {
  snapshot_.add(4 * kMiB);
  std::atomic<bool> reading = true;
  std::promise<bool> read_at_done;
  snapshot_.settings().on_slab = [](FullSlab) {};
  snapshot_.settings().on_done = [&](const Status&) { read_at_done.set_value(reading); };
  device_.hold();
  Stager stager(*pool_, {.copy_threads = 2});
  const auto job = snapshot_.job();
  stager.enqueue(job);
  device_.until_copying();
  stager.cancel(job, {ErrorKind::kAborted, "not wanted any more", {}, 0, false});
  reading = false;
  device_.go_on();
  EXPECT_FALSE(read_at_done.get_future().get()) << "on_done came while a copy was under way";
}

TEST_F(StagerEnd, CancelOfAStagedJobHasNoEffect) {
  snapshot_.add(kMiB);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  {
    Stager stager(*pool_, {.copy_threads = 2});
    stager.enqueue(job);
    ASSERT_TRUE(sink_.wait().has_value());
    stager.cancel(job, {ErrorKind::kAborted, "too late", {}, 0, false});
  }
  EXPECT_EQ(sink_.done_calls(), 1);
}

TEST_F(StagerEnd, ADeviceErrorEndsTheJob) {
  snapshot_.add(4 * kMiB, true);
  sink_.attach(snapshot_.settings());
  const auto job = snapshot_.job();
  device_.make_fail();
  Stager stager(*pool_, {.copy_threads = 2});
  stager.enqueue(job);
  const Status status = sink_.wait();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message, "the device fell off the bus");
}

TEST_F(StagerEnd, DestructionEndsEveryJobOnceWithClosed) {
  snapshot_.add(kMiB);
  sink_.attach(snapshot_.settings());
  TestSnapshot later(device_);
  later.add(kMiB);
  SlabSink later_sink;
  later_sink.attach(later.settings());
  const auto held = take_all_slabs();
  {
    Stager stager(*pool_, {.copy_threads = 2});
    stager.enqueue(snapshot_.job());
    stager.enqueue(later.job());
    until_waiting();
  }
  EXPECT_EQ(sink_.wait().error().kind, ErrorKind::kClosed);
  EXPECT_EQ(later_sink.wait().error().kind, ErrorKind::kClosed);
  EXPECT_EQ(sink_.done_calls(), 1);
  EXPECT_EQ(later_sink.done_calls(), 1);
}

}  // namespace
}  // namespace slackwater
