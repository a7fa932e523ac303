#include "store/s3/object_file.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater::s3 {
namespace {

constexpr std::uint64_t kMaxSmallBytes = 1u << 30;  // the largest index that a reader takes

std::unexpected<Error> read_only(const std::string& path) {
  return fail(ErrorKind::kUnsupported, "this object was opened for reading", path);
}

}  // namespace

ObjectFile::ObjectFile(ObjectFileSystem& fs, std::string path, std::string key, std::uint64_t size_bytes)
    : fs_(fs), path_(std::move(path)), key_(std::move(key)), size_bytes_(size_bytes) {}

Result<std::uint64_t> ObjectFile::read_at(std::span<std::byte> into, std::uint64_t offset) {
  if (offset >= size_bytes_) return 0;
  const std::uint64_t wanted = std::min<std::uint64_t>(into.size(), size_bytes_ - offset);
  Status read = fs_.client().read(key_, into.first(wanted), offset, size_bytes_);
  if (read) return wanted;
  // It was there when its size was asked for, so the remembered list may be out of date.
  if (read.error().kind == ErrorKind::kNotFound) fs_.refresh();
  return fail(std::move(read).error());
}

Status ObjectFile::write_at(std::span<const std::byte> /*bytes*/, std::uint64_t /*offset*/) { return read_only(path_); }
Status ObjectFile::allocate(std::uint64_t /*size_bytes*/) { return read_only(path_); }
Status ObjectFile::truncate(std::uint64_t /*size_bytes*/) { return read_only(path_); }

SmallFile::SmallFile(ObjectFileSystem& fs, std::string path, std::string key, std::string bytes, FileStatus status,
                     bool writable)
    : fs_(fs),
      path_(std::move(path)),
      key_(std::move(key)),
      link_count_(status.link_count),
      bytes_(std::move(bytes)),
      unsent_(writable),
      sent_(!writable) {}

Result<std::uint64_t> SmallFile::read_at(std::span<std::byte> into, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (offset >= bytes_.size()) return 0;
  const auto found = std::as_bytes(std::span(bytes_)).subspan(offset);
  const std::size_t count = std::min(found.size(), into.size());
  std::ranges::copy(found.first(count), into.begin());
  return count;
}

Status SmallFile::write_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  if (sent_) return read_only(path_);
  if (offset > kMaxSmallBytes || bytes.size() > kMaxSmallBytes - offset) {
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("a file of more than {} is written to an object store in parts only", format_bytes(kMaxSmallBytes)),
        path_);
  }
  if (offset + bytes.size() > bytes_.size()) bytes_.resize(offset + bytes.size());
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(bytes_)).begin() + static_cast<std::ptrdiff_t>(offset));
  unsent_ = true;
  return {};
}

Status SmallFile::truncate(std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (sent_ || size_bytes > kMaxSmallBytes) return read_only(path_);
  bytes_.resize(size_bytes);
  unsent_ = true;
  return {};
}

Status SmallFile::sync_all() {
  const std::lock_guard lock(mutex_);
  if (!unsent_) return {};
  unsent_ = false;  // a failed sync is not tried again: os/durable.hpp
  SW_TRY(fs_.store_small(path_, key_, bytes_));
  sent_ = true;
  return {};
}

Result<FileStatus> SmallFile::status() const {
  const std::lock_guard lock(mutex_);
  return FileStatus{FileType::kRegular, bytes_.size(), link_count_};
}

}  // namespace slackwater::s3
