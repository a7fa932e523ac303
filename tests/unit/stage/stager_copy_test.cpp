#include <condition_variable>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stage/stager.hpp"
#include "support/bytes.hpp"
#include "unit/stage/stage_fixture.hpp"

namespace slackwater {
namespace {

using namespace std::chrono_literals;
using test::kMiB;
using test::SlabSink;
using test::TestSnapshot;
using ::testing::ElementsAre;

struct Machine {
  std::uint32_t slabs;
  unsigned threads;
};

class StagerCopy : public ::testing::TestWithParam<Machine> {
 protected:
  void SetUp() override { test::soil(*pool_); }

  // Stages the snapshot and compares every file with the obvious serialiser's.
  void stage_and_compare(TestSnapshot& snapshot) {
    SlabSink sink;
    sink.attach(snapshot.settings());
    {
      Stager stager(*pool_, {.copy_threads = GetParam().threads, .stall_timeout = 60s});
      stager.enqueue(snapshot.job());
      const Status status = sink.wait();
      ASSERT_TRUE(status.has_value()) << status.error().to_string();
    }
    for (std::uint32_t part = 0; part < snapshot.expected().size(); ++part) {
      EXPECT_TRUE(test::same_bytes(sink.stream(part), snapshot.expected()[part])) << "part " << part << " differs";
    }
    EXPECT_EQ(sink.done_calls(), 1);
    EXPECT_EQ(pool_->free_count(), pool_->slab_count());
  }

  std::unique_ptr<Device> device_ = make_host_device();
  std::unique_ptr<Pool> pool_ = test::make_pool(GetParam().slabs);
};

INSTANTIATE_TEST_SUITE_P(Machines, StagerCopy,
                         ::testing::Values(Machine{2, 1}, Machine{2, 4}, Machine{5, 2}, Machine{16, 4}),
                         [](const auto& machine) {
                           return std::to_string(machine.param.slabs) + "slabs" +
                                  std::to_string(machine.param.threads) + "threads";
                         });

TEST_P(StagerCopy, SmallTensorsShareASlab) {
  TestSnapshot snapshot(*device_);
  for (std::uint64_t i = 0; i < 300; ++i) snapshot.add(i * 7 % 1000, true);
  stage_and_compare(snapshot);
}

TEST_P(StagerCopy, ATensorSpansManySlabs) {
  TestSnapshot snapshot(*device_);
  snapshot.add(11);
  snapshot.add(7 * kMiB + 12345, true);
  snapshot.add(kMiB, true);
  snapshot.add(3);
  stage_and_compare(snapshot);
}

TEST_P(StagerCopy, AHeaderSpansSlabs) {
  TestSnapshot snapshot(*device_);
  snapshot.set_header(2 * kMiB + kMiB / 2);
  snapshot.add(kMiB, true);
  stage_and_compare(snapshot);
}

TEST_P(StagerCopy, AFileOfNothingButItsHeader) {
  TestSnapshot snapshot(*device_);
  snapshot.add(0, true);
  stage_and_compare(snapshot);
}

TEST_P(StagerCopy, AFileThatEndsOnASlabBoundary) {
  TestSnapshot snapshot(*device_);
  snapshot.add(2 * kMiB - 4096, true);
  stage_and_compare(snapshot);
}

TEST_P(StagerCopy, StridedTensorsArePackedAcrossSlabBoundaries) {
  TestSnapshot snapshot(*device_);
  snapshot.add(13);  // so that elements lie across the boundaries
  snapshot.add_transposed(700, 800, 4, true);
  snapshot.add_transposed(90, 33, 1, true);
  snapshot.add_transposed(300, 200, 16, true);
  stage_and_compare(snapshot);
}

TEST_P(StagerCopy, TheTreeAndSeveralParts) {
  TestSnapshot snapshot(*device_);
  snapshot.add(500, true);
  snapshot.add_tree(kMiB + 77);
  snapshot.begin_part(8192);
  snapshot.add(2 * kMiB, true);
  snapshot.begin_part(4096);
  snapshot.add(1);
  stage_and_compare(snapshot);
}

TEST_P(StagerCopy, ParanoidComparesEveryByteAndAcceptsUnchangedTensors) {
  TestSnapshot snapshot(*device_);
  snapshot.settings().whole_fingerprint = true;
  snapshot.add(3 * kMiB, true);
  snapshot.add_transposed(100, 100, 8, true);
  stage_and_compare(snapshot);
}

// This consumer frees a slab only after every earlier slab has arrived. It blocks for ever unless slabs are granted in
// the order of the files and the snapshots.
TEST_P(StagerCopy, SnapshotsInFlightGetSlabsInOrder) {
  constexpr std::size_t kJobs = 3;
  constexpr std::uint64_t kChunks = 6;
  std::mutex mutex;
  std::map<std::uint64_t, Lease> early;  // guarded by mutex; by place among the chunks of all jobs
  std::uint64_t next = 0;                // guarded by mutex
  std::vector<std::unique_ptr<TestSnapshot>> snapshots;
  std::vector<std::promise<Status>> done(kJobs);
  {
    Stager stager(*pool_, {.copy_threads = GetParam().threads, .stall_timeout = 20s});
    for (std::size_t j = 0; j < kJobs; ++j) {
      auto& snapshot = *snapshots.emplace_back(std::make_unique<TestSnapshot>(*device_, j));
      snapshot.add(kChunks * kMiB - 4096, true);
      snapshot.settings().on_slab = [&, j](FullSlab slab) {
        const std::lock_guard lock(mutex);
        early.emplace(j * kChunks + slab.offset / kMiB, std::move(slab.lease));
        for (auto front = early.begin(); front != early.end() && front->first == next; ++next)
          front = early.erase(front);
      };
      snapshot.settings().on_done = [&, j](Status status) { done[j].set_value(std::move(status)); };
      stager.enqueue(snapshot.job());
    }
    for (auto& each : done) {
      const Status status = each.get_future().get();
      EXPECT_TRUE(status.has_value()) << status.error().to_string();
    }
  }
  EXPECT_EQ(next, kJobs * kChunks);
}

TEST(Stager, OneThreadDeliversChunksInOrder) {
  const auto device = make_host_device();
  const auto pool = test::make_pool(3);
  TestSnapshot snapshot(*device);
  snapshot.add(3 * kMiB);
  SlabSink sink;
  sink.attach(snapshot.settings());
  Stager stager(*pool, {.copy_threads = 1});
  stager.enqueue(snapshot.job());
  ASSERT_TRUE(sink.wait().has_value());
  EXPECT_THAT(sink.order(), ElementsAre(0, kMiB, 2 * kMiB, 3 * kMiB));
}

}  // namespace
}  // namespace slackwater
