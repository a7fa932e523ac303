// What is published on a lower tier: a version of which every file is there, whoever deletes there meanwhile.
#include "tiers/version_copier.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "restore/checkpoint_reader.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

class VersionCopierTest : public ::testing::Test {
 protected:
  VersionCopierTest() {
    CheckpointWriter writer(source_);
    (void)writer.write(1, state_of(tensors_, "{}"));
    stdfs::create_directories(target_ + "/.slackwater");
    stdfs::copy(source_ + "/.slackwater/attempt-0001.json", target_ + "/.slackwater/attempt-0001.json");
    files_ = std::make_unique<VersionFiles>(must(VersionFiles::read(*real_, source_, {1, 1})));
  }
  [[nodiscard]] const RecordReference& rank() const { return files_->manifest().records[0]; }
  [[nodiscard]] std::string data() const { return version_path(target_, {1, 1}) + "/" + data_file(0, 0); }
  // Name and bytes of every file of a version.
  [[nodiscard]] static std::map<std::string, std::string> files_in(const std::string& directory) {
    std::map<std::string, std::string> files;
    for (const auto& entry : stdfs::directory_iterator(directory))
      files[entry.path().filename()] = read_file_text(entry.path());
    return files;
  }
  // Another run has saved a version of the same name on the target.
  void write_namesake() {
    stdfs::remove_all(target_);
    const std::vector<OwnedTensor> others{OwnedTensor::random("w", DType::kF32, {300, 1000}, 2)};
    CheckpointWriter(target_).write(1, state_of(others, "{}"));
  }
  void expect_live_and_whole() {
    const auto report = verify_version({.fs = real_.get()}, target_, {1, 1}, {});
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_TRUE(report->damages.empty()) << report->damages[0].what;
  }

  TempDir temp_;
  const std::string source_ = temp_ / "source";
  const std::string target_ = temp_ / "target";
  const std::vector<OwnedTensor> tensors_{OwnedTensor::random("w", DType::kF32, {300, 1000})};
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  std::unique_ptr<VersionFiles> files_;
};

TEST_F(VersionCopierTest, NothingIsPublishedWhileAFileIsMissingOrShort) {
  VersionCopier copier(*files_, fs_, target_);
  ASSERT_TRUE(copier.begin());
  ASSERT_TRUE(copier.copy_rank(rank(), {}));
  stdfs::resize_file(data(), 100);
  EXPECT_EQ(copier.publish(), false) << "the record vouches for a file that is cut short";
  EXPECT_EQ(copier.is_published(), false);
  ASSERT_TRUE(copier.copy_rank(rank(), {}));
  stdfs::remove(data());
  EXPECT_EQ(copier.publish(), false) << "the record vouches for a file that is gone";
  EXPECT_EQ(copier.incomplete(), std::set<std::uint32_t>{0});
  ASSERT_TRUE(copier.copy_rank(rank(), {}));
  stdfs::remove(version_path(target_, {1, 1}) + "/" + kIndexName);
  EXPECT_EQ(copier.publish(), false) << "the index is gone";
  ASSERT_TRUE(copier.begin());
  EXPECT_EQ(copier.publish(), true);
  expect_live_and_whole();
}

TEST_F(VersionCopierTest, ARecordThatOutlivedItsDataIsNotTrusted) {
  {
    VersionCopier earlier(*files_, fs_, target_);
    ASSERT_TRUE(earlier.begin());
    ASSERT_TRUE(earlier.copy_rank(rank(), {}));
  }
  stdfs::remove(data());  // by a clean-up that was cut off, or a power cut that kept the record
  ASSERT_TRUE(VersionCopier(*files_, fs_, target_).copy_all({}));
  expect_live_and_whole();
}

TEST_F(VersionCopierTest, FilesThatGoWhileTheManifestIsPublishedAreCopiedAgain) {
  fs_.hang(FsCall::kLink, {.path = kManifestName});
  std::jthread other([this] {
    fs_.wait_hung(1);
    stdfs::remove(data());
    fs_.release_hung();
  });
  const Status copied = VersionCopier(*files_, fs_, target_).copy_all({});
  ASSERT_TRUE(copied) << copied.error().to_string();
  expect_live_and_whole();
}

TEST_F(VersionCopierTest, ACopyThatSomebodyDeletesAgainAndAgainFailsAndIsNotVisible) {
  fs_.hang(FsCall::kLink, {.path = kManifestName});
  std::jthread other([this] {
    for (std::uint64_t tries = 1; tries <= 3; ++tries) {
      fs_.wait_hung(tries);
      stdfs::remove(data());
      tries < 3 ? fs_.release_hung_until(FsCall::kLink, {.path = kManifestName}) : fs_.release_hung();
    }
  });
  VersionCopier copier(*files_, fs_, target_);
  const Status copied = copier.copy_all({});
  ASSERT_FALSE(copied) << "it is not there";
  EXPECT_EQ(copied.error().kind, ErrorKind::kBusy);
  EXPECT_EQ(copier.is_published(), false);
}

TEST_F(VersionCopierTest, ARepeatedCopyThatWasCutShortIsNotTakenForComplete) {
  for (const bool published : {false, true}) {
    ASSERT_TRUE(VersionCopier(*files_, fs_, target_).copy_all({}));
    stdfs::remove(data());  // its record stays
    if (!published) stdfs::remove(version_path(target_, {1, 1}) + "/" + kManifestName);
    fs_.fail(FsCall::kWriteAt, EIO, {.nth = 2, .path = ".safetensors"});
    EXPECT_FALSE(VersionCopier(*files_, fs_, target_).copy_all({.buffer_bytes = 1u << 20}));
    fs_.clear_faults();
    VersionCopier next(*files_, fs_, target_);  // of the next process
    EXPECT_EQ(next.is_complete(), false);
    EXPECT_EQ(next.publish(), false) << "half a file was published";
    EXPECT_EQ(next.is_published(), published);
    ASSERT_TRUE(next.copy_all({}));
    expect_live_and_whole();
  }
}

TEST_F(VersionCopierTest, AnotherVersionOfThatNameStaysAsItIs) {
  write_namesake();
  const auto before = files_in(version_path(target_, {1, 1}));
  VersionCopier copier(*files_, fs_, target_);
  EXPECT_EQ(copier.is_published(), false);
  const Status copied = copier.copy_all({});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(copied.error().path, copier.directory());
  EXPECT_TRUE(files_in(version_path(target_, {1, 1})) == before) << "a file was changed";
  expect_live_and_whole();
}

TEST_F(VersionCopierTest, NothingIsWrittenUnderAManifestThatCannotBeRead) {
  write_namesake();
  const std::string manifest = version_path(target_, {1, 1}) + "/" + kManifestName;
  const std::string intact = read_file_text(manifest);
  write_file_text(manifest, intact.substr(0, 50));
  const auto before = files_in(version_path(target_, {1, 1}));
  const Status damaged = VersionCopier(*files_, fs_, target_).copy_all({});
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().kind, ErrorKind::kCorrupt);
  EXPECT_TRUE(files_in(version_path(target_, {1, 1})) == before) << "a file was changed";

  write_file_text(manifest, intact);
  fs_.fail(FsCall::kReadAt, EIO, {.times = kAlways, .path = manifest});
  const Status unreadable = VersionCopier(*files_, fs_, target_).copy_all({});
  ASSERT_FALSE(unreadable);
  EXPECT_EQ(unreadable.error().kind, ErrorKind::kIo);
  expect_live_and_whole();
}

TEST_F(VersionCopierTest, ALiveCopyThatLacksAFileIsCompleted) {
  ASSERT_TRUE(VersionCopier(*files_, fs_, target_).copy_all({}));
  stdfs::remove(data());
  ASSERT_TRUE(VersionCopier(*files_, fs_, target_).copy_all({}));
  expect_live_and_whole();
}

}  // namespace
}  // namespace slackwater::test
