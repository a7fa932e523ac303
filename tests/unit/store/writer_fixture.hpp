// What the writer's tests share: files of test bytes cut into slabs, their end as a future, and the log.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/units.hpp"
#include "os/file_system.hpp"
#include "store/file_writer.hpp"
#include "support/aligned_buffer.hpp"
#include "support/bytes.hpp"
#include "support/file_bytes.hpp"
#include "support/sizes.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {

// One file's bytes in memory, lent to the writer slab by slab, and what becomes of it.
class TestFile {
 public:
  TestFile(std::string path, std::uint64_t size_bytes, std::uint64_t seed = 1)
      : path_(std::move(path)),
        size_bytes_(size_bytes),
        memory_(round_up(std::max<std::uint64_t>(size_bytes, 1), 4096)) {
    for (std::uint64_t at = 0, word = seed; at < size_bytes; at += sizeof word) {
      word += 0x9e3779b97f4a7c15;  // none comes twice, so that misplaced bytes show
      std::memcpy(memory_.data() + at, &word, std::min(sizeof word, size_bytes - at));
    }
  }

  FileSpec spec(bool direct = true) {
    return {.path = path_,
            .size_bytes = size_bytes_,
            .direct = direct,
            .on_progress = [this](std::uint64_t bytes) { progress_ = bytes; },
            .on_written =
                [this](Result<WrittenFile> written) {
                  ++ends_;
                  end_.set_value(std::move(written));
                }};
  }

  // Bytes [begin, begin + slab_bytes), or as far as the file goes.
  SlabWrite slab(std::uint64_t begin, std::uint64_t slab_bytes, int buffer = -1) {
    const std::uint64_t size = std::min(slab_bytes, size_bytes_ - begin);
    ++lent_;
    return {.memory = memory_.bytes().subspan(begin, round_up(size, 4096)),
            .buffer = buffer,
            .offset = begin,
            .size_bytes = size,
            .release = [this] { ++released_; }};
  }

  void write_all(FileWriter& writer, FileWriter::FileId id, std::uint64_t slab_bytes, bool backwards = false) {
    std::vector<std::uint64_t> begins;
    for (std::uint64_t begin = 0; begin < size_bytes_; begin += slab_bytes) begins.push_back(begin);
    if (backwards) std::ranges::reverse(begins);
    for (const std::uint64_t begin : begins) writer.write(id, slab(begin, slab_bytes));
  }

  Result<WrittenFile> wait() { return end_.get_future().get(); }

  // What is on disk and the digests are those of the bytes given.
  void expect_on_disk(WrittenFile& written) {
    ASSERT_TRUE(written.file.finish().has_value());
    const std::vector<std::byte> found = read_file(path_);
    ASSERT_EQ(found.size(), size_bytes_);
    const std::span<const std::byte> bytes(found);
    EXPECT_TRUE(same_bytes(bytes, memory_.bytes().first(size_bytes_))) << path_ << " holds other bytes";
    std::vector<std::uint64_t> digests;
    for (std::uint64_t begin = 0; begin < size_bytes_; begin += kBlockBytes) {
      digests.push_back(digest64(bytes.subspan(begin, std::min(kBlockBytes, size_bytes_ - begin))));
    }
    EXPECT_EQ(written.block_digests, digests);
    EXPECT_EQ(released_, lent_) << "slabs were kept";
    EXPECT_EQ(progress_, size_bytes_);
    EXPECT_EQ(ends_, 1);
  }

  [[nodiscard]] std::span<std::byte> memory() { return memory_.bytes(); }
  [[nodiscard]] int lent() const { return lent_; }
  [[nodiscard]] int released() const { return released_; }
  [[nodiscard]] int ends() const { return ends_; }

 private:
  const std::string path_;
  const std::uint64_t size_bytes_;
  AlignedBuffer memory_;
  std::promise<Result<WrittenFile>> end_;
  std::atomic<int> lent_ = 0;
  std::atomic<int> released_ = 0;
  std::atomic<int> ends_ = 0;
  std::atomic<std::uint64_t> progress_ = 0;
};

// Collects what is logged.
class TestLog {
 public:
  [[nodiscard]] Log log() {
    return Log([this](LogLevel, std::string_view message) {
      const std::lock_guard lock(mutex_);
      messages_.emplace_back(message);
    });
  }
  [[nodiscard]] std::vector<std::string> messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> messages_;  // guarded by mutex_
};

}  // namespace slackwater::test
