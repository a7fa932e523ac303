// What a repair writes to the upper tier: only the version that it was told to, and no file that seems complete before
// it is.
#include "tiers/version_repair.hpp"

#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "restore/checkpoint_reader.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

class VersionRepairTest : public ::testing::Test {
 protected:
  VersionRepairTest() {
    CheckpointWriter writer(below_);
    (void)writer.write(1, state_of(tensors_, "{}"));
    stdfs::copy(below_, upper_, stdfs::copy_options::recursive);
  }
  VersionRepair repair() {
    return VersionRepair(
        {.version = version_, .sources = {{real_.get(), below_}}}, {&fs_, upper_}, [](std::uint32_t) { return true; },
        Log([](LogLevel, std::string_view) {}));
  }
  [[nodiscard]] std::string on_upper(const std::string& name) const {
    return version_path(upper_, version_) + "/" + name;
  }
  void expect_whole() {
    const auto report = verify_version({.fs = real_.get()}, upper_, version_, {});
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_TRUE(report->damages.empty()) << report->damages[0].what;
  }

  TempDir temp_;
  const std::string below_ = temp_ / "below";
  const std::string upper_ = temp_ / "upper";
  const VersionName version_{1, 1};
  const std::vector<OwnedTensor> tensors_{OwnedTensor::random("w", DType::kF32, {300, 1000})};
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
};

TEST_F(VersionRepairTest, AFileWhoseCopyWasCutShortIsStillMissing) {
  stdfs::remove(on_upper(data_file(0, 0)));
  stdfs::remove(on_upper(kManifestName));
  fs_.fail(FsCall::kWriteAt, EIO, {.nth = 2, .path = ".safetensors"});
  EXPECT_FALSE(repair().copy({.buffer_bytes = 1u << 20}));
  fs_.clear_faults();
  VersionRepair next = repair();
  ASSERT_TRUE(next.copy({}));
  EXPECT_EQ(next.files_copied(), 1u) << "the record vouches for it, and so it was taken for complete";
  EXPECT_FALSE(must(next.missing_rank()));
  EXPECT_EQ(next.publish(), true);
  expect_whole();
}

TEST_F(VersionRepairTest, ADamagedManifestIsReplaced) {
  write_file_text(on_upper(kManifestName), "{");
  VersionRepair one = repair();
  ASSERT_TRUE(one.copy({}));
  EXPECT_EQ(one.unpublished(), true);
  EXPECT_EQ(one.publish(), true);
  expect_whole();
}

TEST_F(VersionRepairTest, AnotherVersionOfThatNameStaysAsItIs) {
  stdfs::remove_all(upper_);
  const std::vector<OwnedTensor> others{OwnedTensor::random("w", DType::kF32, {300, 1000}, 2)};
  CheckpointWriter(upper_).write(1, state_of(others, "{}"));
  const Status copied = repair().copy({});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().kind, ErrorKind::kAlreadyExists);
  expect_whole();
}

TEST_F(VersionRepairTest, NothingIsWrittenIfTheManifestThereCannotBeRead) {
  stdfs::remove(on_upper(kIndexName));
  fs_.fail(FsCall::kReadAt, EIO, {.times = kAlways, .path = "upper"});
  const Status copied = repair().copy({});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().kind, ErrorKind::kIo);
  EXPECT_FALSE(stdfs::exists(on_upper(kIndexName)));
}

}  // namespace
}  // namespace slackwater::test
