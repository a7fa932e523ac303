#include "store/file_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/store/writer_fixture.hpp"

namespace slackwater {
namespace {

using test::kMiB;
using test::TestFile;
using ::testing::IsEmpty;

struct Backend {
  bool threads;
  bool direct;
};

class FileWriterOn : public ::testing::TestWithParam<Backend> {
 protected:
  std::unique_ptr<FileWriter> make_writer(unsigned depth = 0) {
    auto writer = FileWriter::create(*fs_, {.queue_depth = depth, .force_threads = GetParam().threads}, log_.log());
    EXPECT_TRUE(writer.has_value());
    return std::move(*writer);
  }
  void write_and_compare(std::uint64_t size_bytes, std::uint64_t slab_bytes, bool backwards = false) {
    TestFile file(dir_ / std::to_string(size_bytes), size_bytes);
    const auto writer = make_writer(3);
    file.write_all(*writer, writer->begin(file.spec(GetParam().direct)), slab_bytes, backwards);
    auto written = file.wait();
    ASSERT_TRUE(written.has_value()) << written.error().to_string();
    file.expect_on_disk(*written);
    EXPECT_EQ(writer->bytes_written(), size_bytes);
  }

  test::TempDir dir_;
  test::TestLog log_;
  std::unique_ptr<FileSystem> fs_ = make_posix_file_system();
};

INSTANTIATE_TEST_SUITE_P(Backends, FileWriterOn,
                         ::testing::Values(Backend{false, true}, Backend{false, false}, Backend{true, true},
                                           Backend{true, false}),
                         [](const auto& backend) {
                           return std::string(backend.param.threads ? "threads" : "uring") +
                                  (backend.param.direct ? "Direct" : "Buffered");
                         });

TEST_P(FileWriterOn, FilesOfAnySizeHoldExactlyTheBytesGiven) {
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{4096}, std::uint64_t{4097},
                                   kMiB - 1, kMiB, kMiB + 1, 5 * kMiB + 12345}) {
    write_and_compare(size, kMiB);
  }
}

TEST_P(FileWriterOn, SlabsLargerThanABlockGetADigestForEachBlock) { write_and_compare(7 * kMiB + 5, 3 * kMiB); }
TEST_P(FileWriterOn, SlabsLargerThanARequestAreWrittenWhole) { write_and_compare(10 * kMiB + 1, 9 * kMiB); }
TEST_P(FileWriterOn, SlabsMayComeInAnyOrder) { write_and_compare(6 * kMiB + 77, kMiB, true); }

TEST_P(FileWriterOn, FilesUnderWayAtOnceDoNotMix) {
  const auto writer = make_writer();
  std::vector<std::unique_ptr<TestFile>> files;
  std::vector<FileWriter::FileId> ids;
  for (std::uint64_t i = 0; i < 3; ++i) {
    files.push_back(std::make_unique<TestFile>(dir_ / std::to_string(i), 4 * kMiB + i, i));
    ids.push_back(writer->begin(files[i]->spec(GetParam().direct)));
  }
  for (std::uint64_t begin = 0; begin < 5 * kMiB; begin += kMiB) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      if (begin < 4 * kMiB + i) writer->write(ids[i], files[i]->slab(begin, kMiB));
    }
  }
  for (const auto& file : files) {
    auto written = file->wait();
    ASSERT_TRUE(written.has_value()) << written.error().to_string();
    file->expect_on_disk(*written);
  }
  EXPECT_THAT(log_.messages(), IsEmpty());
}

TEST_P(FileWriterOn, AnEmptyFileIsCompleteAtOnce) { write_and_compare(0, kMiB); }

TEST_P(FileWriterOn, RegisteredBuffersCarryTheSameBytes) {
  TestFile file(dir_ / "file", 3 * kMiB + 9);
  auto writer = FileWriter::create(*fs_, {.force_threads = GetParam().threads, .buffer_slots = 2}, log_.log());
  ASSERT_TRUE(writer.has_value());
  (*writer)->register_buffer(1, file.memory().first(2 * kMiB));
  const auto id = (*writer)->begin(file.spec(GetParam().direct));
  (*writer)->write(id, file.slab(0, 2 * kMiB, 1));
  (*writer)->write(id, file.slab(2 * kMiB, 2 * kMiB, 0));  // a slab that was never registered
  auto written = file.wait();
  ASSERT_TRUE(written.has_value()) << written.error().to_string();
  file.expect_on_disk(*written);
  EXPECT_TRUE(!GetParam().threads || log_.messages().empty()) << "worker threads need no registration";
}

TEST_P(FileWriterOn, TellsItsBackend) {
  const auto writer = make_writer();
  if (GetParam().threads) {
    EXPECT_EQ(writer->backend(), "threads");
    EXPECT_THAT(log_.messages(), IsEmpty()) << "asked for, so nothing to report";
  } else {
    EXPECT_EQ(writer->backend() == "io_uring", log_.messages().empty()) << "a fallback is reported";
  }
}

}  // namespace
}  // namespace slackwater
