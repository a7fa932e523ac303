// verify(): goes on after damage, tells progress, and keeps its report small.
#include <cerrno>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "restore/checkpoint_reader.hpp"
#include "slackwater/checkpoint.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"
#include "version/index.hpp"

namespace slackwater {
namespace {

using test::must;
using test::OwnedTensor;
using testing::HasSubstr;

class VerifyTest : public testing::Test {
 protected:
  test::TempDir directory_;
  const std::string root_ = directory_ / "run";
  test::CheckpointWriter writer_{root_};
};

TEST_F(VerifyTest, TellsProgressThatEndsWithEveryByte) {
  writer_.write(1, test::state_of({OwnedTensor::random("w", DType::kU8, {5 << 20})}));
  Checkpoint checkpoint = must(Checkpoint::open(root_));
  std::uint64_t last = 0;
  std::uint64_t in_all = 0;
  const VerifyReport report = must(checkpoint.verify([&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    in_all = total;
  }));
  EXPECT_EQ(last, checkpoint.version().size_bytes);
  EXPECT_EQ(in_all, checkpoint.version().size_bytes);
  EXPECT_EQ(report.bytes_read, checkpoint.version().size_bytes);
  EXPECT_GT(report.seconds, 0.0);
}

TEST_F(VerifyTest, NamesAllDamageOfAllFilesAndMergesNeighbours) {
  std::vector<OwnedTensor> tensors;
  for (int i = 0; i < 120; ++i)
    tensors.push_back(OwnedTensor::random("t" + std::to_string(1000 + i), DType::kU8, {100'000}));
  const std::string path = writer_.write(1, test::state_of(tensors), 8192);
  Checkpoint checkpoint = must(Checkpoint::open(root_, 1, {.buffer_bytes = 0}));
  ASSERT_GE(checkpoint.files().size(), 2u);
  const std::string first = checkpoint.files()[0].name;
  const std::string second = checkpoint.files()[1].name;
  for (const std::uint64_t block : {1u, 2u, 3u}) test::flip_bit(path + "/" + first, (block << 20) + 1, 1);
  test::flip_bit(path + "/" + second, 0, 1);

  const VerifyReport report = must(checkpoint.verify());
  std::uint64_t bad_of_first = 0;
  bool second_named = false;
  for (const Damage& damage : report.damages) {
    if (damage.file == first) bad_of_first += damage.size_bytes;
    if (damage.file == second) second_named = damage.tensors.at(0) == "(header)";
  }
  EXPECT_EQ(bad_of_first, 3u << 20);
  EXPECT_TRUE(second_named);
}

TEST_F(VerifyTest, ReportsBlocksTheDiskCannotRead) {
  writer_.write(1, test::state_of({OwnedTensor::random("w", DType::kU8, {5 << 20})}));
  const std::unique_ptr<FileSystem> real = make_posix_file_system();
  test::FaultFileSystem fs(*real);
  Checkpoint checkpoint =
      must(open_version({.fs = &fs}, root_, must(list_versions(root_)).back(), {.buffer_bytes = 0}));
  fs.fail(test::FsCall::kQueueRead, EIO, {.nth = 2});
  const VerifyReport reread = must(checkpoint.verify());
  EXPECT_TRUE(reread.damages.empty()) << "each block was read again, successfully";
}

TEST_F(VerifyTest, NoticesAnIndexThatContradictsTheHeaders) {
  const std::string path = writer_.write(1, test::state_of({OwnedTensor::random("w", DType::kU8, {100})}));
  std::vector<IndexEntry> entries = must(parse_index(test::read_file_text(path + "/index"), "index"));
  entries[0].shards[0].offset += 8;
  const std::string text = serialize_index(entries);
  test::write_file_text(path + "/index", text);
  Manifest manifest = must(parse_manifest(test::read_file_text(path + "/manifest.json"), "manifest"));
  manifest.index_digest = digest128(text);
  test::write_file_text(path + "/manifest.json", serialize(manifest));
  const VerifyReport report = must(must(Checkpoint::open(root_)).verify());
  ASSERT_EQ(report.damages.size(), 1u);
  EXPECT_EQ(report.damages[0].file, "index");
  EXPECT_EQ(report.damages[0].tensors, (std::vector<std::string>{"w"}));
}

TEST_F(VerifyTest, IsAnErrorForAVersionThatIsNotThere) {
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  const auto report = verify_version({.fs = fs.get()}, root_, {99, 1}, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().kind, ErrorKind::kNotFound);
}

}  // namespace
}  // namespace slackwater
