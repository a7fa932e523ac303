// Every kind of damage is noticed by open, read or verify, and never loads without an error.
#include <sys/stat.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.hpp"
#include "restore/checkpoint_reader.hpp"
#include "slackwater/checkpoint.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"
#include "version/manifest.hpp"
#include "version/record.hpp"

namespace slackwater {
namespace {

using test::must;
using test::OwnedTensor;
using testing::HasSubstr;
namespace stdfs = std::filesystem;

constexpr const char* kData = "rank-00000.safetensors";
constexpr const char* kRecord = "rank-00000.record";

class DamageTest : public testing::Test {
 protected:
  void SetUp() override { path_ = writer_.write(5, test::state_of(tensors_, R"({"step": 5})")); }

  // Opens and reads everything; the first error.
  [[nodiscard]] Status load() const {
    auto checkpoint = Checkpoint::open(root_, 5, {.buffer_bytes = 0});
    if (!checkpoint) return fail(checkpoint.error());
    std::vector<std::vector<std::byte>> memory;
    std::vector<Target> targets;
    for (const OwnedTensor& tensor : tensors_) {
      memory.emplace_back(tensor.bytes.size());
      targets.push_back(
          {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = memory.back().data()});
    }
    return checkpoint->read(targets);
  }
  [[nodiscard]] VerifyReport verify() const {
    const std::unique_ptr<FileSystem> fs = make_posix_file_system();
    return must(verify_version({.fs = fs.get()}, root_, {5, writer_.attempt().number}, {.buffer_bytes = 0}));
  }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

  // Publishes changed metadata with digests that fit, as a clumsy or malicious writer would.
  void publish(const Record& record, const std::function<void(Manifest&)>& change = {}) {
    const std::string text = serialize(record);
    test::write_file_text(file(kRecord), text);
    Manifest manifest = must(parse_manifest(test::read_file_text(file(kManifestName)), "manifest"));
    manifest.records[0].digest = digest128(text);
    if (change) change(manifest);
    test::write_file_text(file(kManifestName), serialize(manifest));
  }
  [[nodiscard]] Record record() const { return must(parse_record(test::read_file_text(file(kRecord)), "record")); }

  void store_data(std::string bytes) {
    Record changed = record();
    changed.files[0].size_bytes = bytes.size();
    changed.files[0].block_digests.clear();
    const auto all = std::as_bytes(std::span(bytes));
    for (std::uint64_t at = 0; at < all.size(); at += kBlockBytes)
      changed.files[0].block_digests.push_back(
          digest64(all.subspan(at, std::min<std::uint64_t>(kBlockBytes, all.size() - at))));
    test::write_file_text(file(kData), bytes);
    publish(changed, [&](Manifest& manifest) { manifest.size_bytes = bytes.size(); });
  }

  test::TempDir directory_;
  const std::string root_ = directory_ / "run";
  test::CheckpointWriter writer_{root_};
  const std::vector<OwnedTensor> tensors_{OwnedTensor::random("large", DType::kU8, {(3 << 20) + 99}),
                                          OwnedTensor::random("small", DType::kI16, {7})};
  std::string path_;
};

TEST_F(DamageTest, IsNotSeenInAHealthyVersion) {
  must(load());
  const VerifyReport report = verify();
  EXPECT_TRUE(report.damages.empty());
  EXPECT_EQ(report.bytes_read, stdfs::file_size(file(kData)));
}

TEST_F(DamageTest, OfASingleBitIsNoticedInEveryFile) {
  std::mt19937_64 generator(42);
  for (const char* name : {kData, kRecord, kManifestName, kIndexName}) {
    const std::uint64_t size = stdfs::file_size(file(name));
    std::vector<std::uint64_t> offsets{0, size / 2, size - 1};
    for (int i = 0; i < 12; ++i) offsets.push_back(generator() % size);
    for (const std::uint64_t offset : offsets) {
      const auto bit = static_cast<unsigned>(generator() % 8);
      test::flip_bit(file(name), offset, bit);
      if (name != std::string(kIndexName)) {
        EXPECT_FALSE(load()) << name << " offset " << offset << " bit " << bit;
      }
      const VerifyReport report = verify();
      ASSERT_FALSE(report.damages.empty()) << name << " offset " << offset << " bit " << bit;
      EXPECT_EQ(report.damages[0].file, name);
      test::flip_bit(file(name), offset, bit);
    }
  }
  must(load());
}

TEST_F(DamageTest, IsNamedWithBlockAndTensors) {
  test::flip_bit(file(kData), (1u << 20) + 5, 0);
  const VerifyReport inside = verify();
  ASSERT_EQ(inside.damages.size(), 1u);
  EXPECT_EQ(inside.damages[0].offset, 1u << 20);
  EXPECT_EQ(inside.damages[0].size_bytes, 1u << 20);
  EXPECT_EQ(inside.damages[0].tensors, (std::vector<std::string>{"large"}));
  test::flip_bit(file(kData), (1u << 20) + 5, 0);

  test::flip_bit(file(kData), 9, 0);
  const VerifyReport header = verify();
  ASSERT_EQ(header.damages.size(), 1u);
  EXPECT_EQ(header.damages[0].tensors, (std::vector<std::string>{"(header)", "small", "large"}))
      << "named with the help of the index";
}

TEST_F(DamageTest, OfTheHeaderIsFoundBeforeItIsParsed) {
  test::flip_bit(file(kData), 3, 7);  // now the header claims gigabytes
  const Status status = load();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kCorrupt);
  EXPECT_THAT(status.error().message, HasSubstr("checksum"));
}

TEST_F(DamageTest, ATruncatedFileIsNamedWithWhatItLost) {
  stdfs::resize_file(file(kData), (2u << 20) + 1234);
  EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt);
  const VerifyReport report = verify();
  ASSERT_EQ(report.damages.size(), 1u);
  EXPECT_EQ(report.damages[0].offset, 2u << 20);
  EXPECT_EQ(report.damages[0].tensors, (std::vector<std::string>{"large"}));
  EXPECT_THAT(report.damages[0].what, HasSubstr("truncated"));
  EXPECT_EQ(report.bytes_read, 2u << 20) << "the rest was read";
}

TEST_F(DamageTest, AnEmptyFileIsNamed) {
  for (const char* name : {kData, kRecord, kManifestName, kIndexName}) {
    const std::string before = test::read_file_text(file(name));
    test::write_file_text(file(name), "");
    if (name != std::string(kIndexName)) {
      EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt) << name;
    }
    const VerifyReport report = verify();
    ASSERT_FALSE(report.damages.empty());
    EXPECT_EQ(report.damages[0].file, name);
    test::write_file_text(file(name), before);
  }
}

TEST_F(DamageTest, AFileThatGrewIsNamed) {
  test::write_file_text(file(kData), test::read_file_text(file(kData)) + "more");
  EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt);
  const VerifyReport report = verify();
  ASSERT_EQ(report.damages.size(), 1u);
  EXPECT_EQ(report.damages[0].size_bytes, 4u);
}

TEST_F(DamageTest, AMissingFileIsDamageAndNamesItsTensors) {
  stdfs::remove(file(kData));
  EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(load().error().path, file(kData));
  const VerifyReport data = verify();
  ASSERT_EQ(data.damages.size(), 1u);
  EXPECT_THAT(data.damages[0].what, HasSubstr("missing"));
  EXPECT_EQ(data.damages[0].tensors, (std::vector<std::string>{"small", "large"}));

  stdfs::remove(file(kRecord));
  stdfs::remove(file(kIndexName));
  const VerifyReport more = verify();
  ASSERT_EQ(more.damages.size(), 2u);
  EXPECT_EQ(more.damages[0].file, kIndexName);
  EXPECT_EQ(more.damages[1].file, kRecord);
}

TEST_F(DamageTest, LinksPipesAndDirectoriesInPlaceOfFilesAreRefused) {
  for (const char* name : {kData, kRecord, kIndexName}) {
    const std::string aside = directory_ / "aside";
    stdfs::rename(file(name), aside);
    const auto refused = [&](const char* kind) {
      if (name != std::string(kIndexName)) {
        EXPECT_FALSE(load()) << name << " " << kind;
      }
      EXPECT_FALSE(verify().damages.empty()) << name << " " << kind;
      stdfs::remove(file(name));
    };
    stdfs::create_symlink(aside, file(name));
    refused("symbolic link");
    ASSERT_EQ(::mkfifo(file(name).c_str(), 0600), 0);
    refused("pipe");
    stdfs::create_directory(file(name));
    refused("directory");
    stdfs::rename(aside, file(name));
  }
  must(load());
}

TEST_F(DamageTest, FilesExchangedBetweenTwoStepsAreNoticed) {
  const std::string other = writer_.write(6, test::state_of(tensors_, R"({"step": 5})"));
  for (const char* name : {kData, kRecord, kManifestName}) {
    stdfs::rename(file(name), directory_ / "aside");
    stdfs::rename(other + "/" + name, file(name));
    stdfs::rename(directory_ / "aside", other + "/" + name);
    EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt) << name;
    EXPECT_FALSE(verify().damages.empty()) << name;
    stdfs::rename(file(name), directory_ / "aside");
    stdfs::rename(other + "/" + name, file(name));
    stdfs::rename(directory_ / "aside", other + "/" + name);
  }
  must(load());
}

TEST_F(DamageTest, AWholeVersionUnderTheNameOfAnotherIsNoticed) {
  const std::string other = writer_.write(6, test::state_of(tensors_));
  stdfs::remove_all(path_);
  stdfs::copy(other, path_);
  EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt);
}

TEST_F(DamageTest, AHeaderOfAnotherStepIsNoticedEvenWhenDigestsFit) {
  const std::string other = writer_.write(6, test::state_of(tensors_, R"({"step": 5})"));
  store_data(test::read_file_text(other + "/" + kData));
  const Status status = load();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kCorrupt);
  EXPECT_THAT(status.error().message, HasSubstr("belongs to step 6"));
  const VerifyReport report = verify();
  ASSERT_EQ(report.damages.size(), 1u);
  EXPECT_EQ(report.damages[0].tensors, (std::vector<std::string>{"(header)"}));
}

TEST_F(DamageTest, AHeaderThatClaims2To60BytesIsRefusedEvenWhenDigestsFit) {
  std::string bytes = test::read_file_text(file(kData));
  bytes.replace(0, 8, std::string("\0\0\0\0\0\0\0\x10", 8));
  store_data(bytes);
  const Status status = load();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kCorrupt);
  EXPECT_FALSE(verify().damages.empty());
}

// The record is whole and sealed, but not the one that was voted for: the digests in it prove nothing.
TEST_F(DamageTest, ARecordThatTheManifestDoesNotNameIsNoticed) {
  Record changed = record();
  std::string bytes = test::read_file_text(file(kData));
  bytes.back() = static_cast<char>(~bytes.back());
  changed.files[0].block_digests.back() =
      digest64(std::as_bytes(std::span(bytes)).subspan((changed.files[0].block_digests.size() - 1) * kBlockBytes));
  test::write_file_text(file(kData), bytes);
  test::write_file_text(file(kRecord), serialize(changed));
  const Status status = load();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("not the one the manifest names"));
  EXPECT_FALSE(verify().damages.empty());
}

// Behind its first MiB, where one letter turns into another and the JSON is still valid.
TEST_F(DamageTest, OfTheEndOfALongHeaderIsFoundBeforeItIsParsed) {
  State state = test::state_of(tensors_);
  state.metadata = {{"filler", std::string(2u << 20, 'y')}};
  path_ = writer_.write(7, state);
  std::string bytes = test::read_file_text(file(kData));
  const std::size_t name = bytes.find("\"large\"");
  ASSERT_GT(name, kBlockBytes);
  bytes[name + 1] = 'L';
  test::write_file_text(file(kData), bytes);
  const auto opened = Checkpoint::open(root_, 7);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::kCorrupt);
  EXPECT_THAT(opened.error().message, HasSubstr("checksum differs"));
}

TEST_F(DamageTest, ARecordThatClaims2To60BytesIsRefused) {
  Record changed = record();
  changed.files[0].size_bytes = std::uint64_t{1} << 60;
  publish(changed, [](Manifest& manifest) { manifest.size_bytes = std::uint64_t{1} << 60; });
  EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt);
  EXPECT_FALSE(verify().damages.empty());
}

TEST_F(DamageTest, NamesThatLeaveTheDirectoryAreRefused) {
  stdfs::copy(file(kRecord), root_ + "/" + kRecord);
  stdfs::copy(file(kData), root_ + "/" + kData);
  Record changed = record();
  changed.files[0].name = std::string("../") + kData;
  const Record before = record();
  publish(changed);
  EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt);
  EXPECT_FALSE(verify().damages.empty());

  publish(before, [](Manifest& manifest) { manifest.records[0].file = std::string("../") + kRecord; });
  EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt);
  EXPECT_FALSE(verify().damages.empty());
}

TEST_F(DamageTest, AManifestThatNamesTooFewOrForeignRecordsIsRefused) {
  const std::string before = test::read_file_text(file(kManifestName));
  const std::vector<std::function<void(Manifest&)>> changes{
      [](Manifest& manifest) { manifest.world = 2; },
      [](Manifest& manifest) { manifest.run = std::string(32, 'a'); },
      [](Manifest& manifest) { manifest.records.clear(); },
      [](Manifest& manifest) { manifest.records[0].rank = 1; },
      [](Manifest& manifest) { manifest.size_bytes += 1; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    publish(record(), changes[i]);
    EXPECT_EQ(load().error().kind, ErrorKind::kCorrupt) << "change " << i;
    test::write_file_text(file(kManifestName), before);
  }
  must(load());
}

}  // namespace
}  // namespace slackwater
