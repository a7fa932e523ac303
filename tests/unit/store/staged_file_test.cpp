// Stager and writer together, as the engine joins them: snapshots of any form through small pools into real files.

#include <gtest/gtest.h>

#include "stage/stager.hpp"
#include "store/file_writer.hpp"
#include "support/bytes.hpp"
#include "support/file_bytes.hpp"
#include "support/temp_dir.hpp"
#include "unit/stage/stage_fixture.hpp"

namespace slackwater {
namespace {

using test::kMiB;
using test::TestSnapshot;

struct SaveJob {
  explicit SaveJob(Device& device, std::uint64_t seed) : snapshot(device, seed) {}
  TestSnapshot snapshot;
  std::vector<std::promise<Result<WrittenFile>>> written;
  std::promise<Status> staged;
};

class StagedFile : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  StagedFile() {
    auto writer = FileWriter::create(*fs_, {.buffer_slots = GetParam()}, Log());
    EXPECT_TRUE(writer.has_value());
    writer_ = std::move(*writer);
    auto pool = Pool::create(
        kMiB, GetParam(), [this](int index, std::span<std::byte> memory) { writer_->register_buffer(index, memory); });
    EXPECT_TRUE(pool.has_value());
    pool_ = std::move(*pool);
  }
  ~StagedFile() override { writer_.reset(); }  // it gives slabs back

  std::string path(const SaveJob& job, std::size_t part) {
    return dir_ / (std::to_string(reinterpret_cast<std::uintptr_t>(&job)) + "-" + std::to_string(part));
  }

  void launch(SaveJob& job, Stager& stager) {
    const auto stage_job = job.snapshot.job();
    job.written.resize(stage_job->layout->parts.size());
    std::vector<FileWriter::FileId> files;
    for (std::size_t part = 0; part < stage_job->layout->parts.size(); ++part) {
      files.push_back(writer_->begin({.path = path(job, part),
                                      .size_bytes = stage_job->layout->parts[part].size_bytes(),
                                      .direct = true,
                                      .on_progress = {},
                                      .on_written = [&job, part](Result<WrittenFile> written) {
                                        job.written[part].set_value(std::move(written));
                                      }}));
    }
    stage_job->on_slab = [this, files](FullSlab slab) {
      const auto memory = slab.lease.memory();
      const int buffer = slab.lease.index();
      writer_->write(files[slab.part], {.memory = memory,
                                        .buffer = buffer,
                                        .offset = slab.offset,
                                        .size_bytes = slab.size_bytes,
                                        .release = [lease = std::move(slab.lease)]() mutable { lease.release(); }});
    };
    stage_job->on_done = [&job](Status status) { job.staged.set_value(std::move(status)); };
    stager.enqueue(stage_job);
  }

  void expect_arrived(SaveJob& job) {
    const Status staged = job.staged.get_future().get();
    ASSERT_TRUE(staged.has_value()) << staged.error().to_string();
    for (std::size_t part = 0; part < job.written.size(); ++part) {
      auto written = job.written[part].get_future().get();
      ASSERT_TRUE(written.has_value()) << written.error().to_string();
      ASSERT_TRUE(written->file.finish().has_value());
      EXPECT_TRUE(test::same_bytes(test::read_file(path(job, part)), job.snapshot.expected()[part])) << "part " << part;
    }
  }

  test::TempDir dir_;
  std::unique_ptr<Device> device_ = make_host_device();
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
  std::unique_ptr<FileWriter> writer_;
  std::unique_ptr<Pool> pool_;
};

INSTANTIATE_TEST_SUITE_P(Slabs, StagedFile, ::testing::Values(2u, 3u, 8u));

TEST_P(StagedFile, SnapshotsInFlightBecomeTheFilesTheObviousSerialiserWrites) {
  Stager stager(*pool_, {.copy_threads = 3});
  std::vector<std::unique_ptr<SaveJob>> jobs;
  for (std::uint64_t i = 0; i < 3; ++i) {
    SaveJob& job = *jobs.emplace_back(std::make_unique<SaveJob>(*device_, i));
    TestSnapshot& snapshot = job.snapshot;
    snapshot.set_header(i == 1 ? 2 * kMiB + 4096 : 4096);
    snapshot.add(3 * kMiB + 4097, true);
    for (std::uint64_t t = 0; t < 200; ++t) snapshot.add(t * 31 % 9000, true);
    snapshot.add_transposed(333, 777, 4, true);
    snapshot.add_tree(i * 100'000);
    snapshot.begin_part(8192);
    snapshot.add(kMiB + i, true);
    launch(job, stager);
  }
  for (const auto& job : jobs) expect_arrived(*job);
}

}  // namespace
}  // namespace slackwater
