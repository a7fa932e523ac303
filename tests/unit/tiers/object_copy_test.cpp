// copy_file() into an object store: parts that are larger than the memory for them.
#include <algorithm>
#include <fstream>
#include <memory>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "support/bytes.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "tiers/file_copier.hpp"
#include "unit/store/s3/object_store_fixture.hpp"

namespace slackwater::s3 {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

class ObjectCopyTest : public ObjectStoreTest {
 protected:
  ObjectCopyTest() : bytes_(29 * kMiB + 77) {  // four parts
    test::fill_pattern(bytes_, 5);
    record_ = {.name = "big", .size_bytes = bytes_.size(), .tensor_count = 1, .block_digests = {}};
    for (std::uint64_t at = 0; at < bytes_.size(); at += kBlockBytes)
      record_.block_digests.push_back(
          digest64(std::span(bytes_).subspan(at, std::min<std::uint64_t>(kBlockBytes, bytes_.size() - at))));
    write();
  }
  void write() const {
    std::ofstream(source_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
  }
  [[nodiscard]] bool arrived() { return std::ranges::equal(bytes_of(objects_["run/big"]), bytes_); }

  test::TempDir temp_;
  const std::string source_ = temp_ / "source";
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  test::FaultFileSystem local_{*real_};
  test::Bytes bytes_;
  FileRecord record_;
};

TEST_F(ObjectCopyTest, SeveralPartsTravelAtOnceInLessMemoryThanOne) {
  const auto fs = file_system();
  Gathering parts(4);
  server_.set_on_arrival([&](const WebRequest& request) {
    if (request.method == "PUT") EXPECT_TRUE(parts.arrive()) << "the parts are sent one after the other";
  });
  ASSERT_TRUE(copy_file({local_, source_}, {*fs, "s3://b/run/big"}, record_, {.threads = 4, .buffer_bytes = 4 * kMiB}));
  EXPECT_TRUE(arrived());
  // Windows of 1 MiB each, for the checksum and for the bytes.
  EXPECT_GE(local_.count(test::FsCall::kReadAt), 2 * record_.block_digests.size());
}

TEST_F(ObjectCopyTest, APartThatFitsIntoTheMemoryIsReadOnce) {
  const auto fs = file_system();
  ASSERT_TRUE(
      copy_file({local_, source_}, {*fs, "s3://b/run/big"}, record_, {.threads = 2, .buffer_bytes = 16 * kMiB}));
  EXPECT_TRUE(arrived());
  EXPECT_EQ(local_.count(test::FsCall::kReadAt), 4u);
}

TEST_F(ObjectCopyTest, DamageInALaterPartEndsTheCopy) {
  const auto fs = file_system();
  bool damaged = false;
  // After the first part has arrived.
  script_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.method != "PUT" || damaged) return std::nullopt;
    damaged = true;
    bytes_[20 * kMiB] ^= std::byte{1};
    write();
    return std::nullopt;
  };
  const Status copied =
      copy_file({local_, source_}, {*fs, "s3://b/run/big"}, record_, {.threads = 1, .buffer_bytes = kMiB});
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(copied.error().path, source_);
  EXPECT_FALSE(objects_.contains("run/big"));
}

}  // namespace
}  // namespace slackwater::s3
