#include "tiers/file_copier.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kPieceBytes = 8u << 20;

struct PartMemoryDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(kDirectAlignment)); }
};
using PartMemory = std::unique_ptr<std::byte[], PartMemoryDelete>;

PartMemory part_memory(std::uint64_t size_bytes) {
  return PartMemory(static_cast<std::byte*>(::operator new[](size_bytes, std::align_val_t(kDirectAlignment))));
}

// One file on its way: what its threads share.
class FileCopy {
 public:
  FileCopy(File& source, FileUpload& upload, const FileRecord& record, const CopyOptions& options)
      : source_(source), upload_(upload), record_(record), options_(options), part_bytes_(upload.part_bytes()) {}

  [[nodiscard]] Status run() {
    const std::uint64_t parts = (record_.size_bytes + part_bytes_ - 1) / part_bytes_;
    const std::uint64_t buffers = std::max<std::uint64_t>(1, options_.buffer_bytes / part_bytes_);
    const std::uint64_t threads = std::min({std::max<std::uint64_t>(1, options_.threads), buffers, parts});
    std::vector<std::jthread> helpers;
    try {
      for (std::uint64_t i = 1; i < threads; ++i)
        helpers.push_back(start_thread(fmt::format("sw-send-{}", i), [this](std::stop_token) { send_parts(); }));
    } catch (const std::system_error&) {
      // No more threads: those that there are do the work.
    }
    send_parts();
    helpers.clear();
    const std::lock_guard lock(mutex_);
    if (error_) return fail(*error_);
    return {};
  }

 private:
  // On several threads: takes the next part that nobody has taken, until there are none.
  void send_parts() noexcept {
    try {
      // A short file needs no buffer of a whole part.
      const PartMemory memory = part_memory(std::min(part_bytes_, round_up(record_.size_bytes, kBlockBytes)));
      while (!failed_) {
        const std::uint64_t part = next_part_++;
        if (part * part_bytes_ >= record_.size_bytes) return;
        if (Status sent = send_part(static_cast<std::uint32_t>(part), memory.get()); !sent) note(sent.error());
      }
    } catch (const std::exception& trouble) {
      note({.kind = ErrorKind::kOutOfMemory,
            .message = fmt::format("a part could not be copied: {}", trouble.what()),
            .path = source_.path()});
    }
  }

  [[nodiscard]] Status send_part(std::uint32_t part, std::byte* memory) {
    const std::uint64_t offset = part * part_bytes_;
    const std::uint64_t size_bytes = std::min(part_bytes_, record_.size_bytes - offset);
    const std::span<std::byte> bytes(memory, size_bytes);
    if (options_.stop.stop_requested()) return fail(stopped());
    // A read that fails or looks damaged is tried again. Only what stays wrong is damage.
    SW_TRY(retry_read([&] { return read(bytes, offset); }));
    if (Status checked = check(bytes, offset); !checked) {
      SW_TRY(retry_read([&] { return read(bytes, offset); }));
      SW_TRY(check(bytes, offset));
    }
    if (options_.cap != nullptr && !options_.cap->wait(size_bytes, options_.stop)) return fail(stopped());
    std::vector<std::span<const std::byte>> pieces;
    for (std::uint64_t start = 0; start < size_bytes; start += kPieceBytes)
      pieces.push_back(bytes.subspan(start, std::min(kPieceBytes, size_bytes - start)));
    SW_TRY(upload_.send(part, pieces));
    if (options_.on_sent) options_.on_sent(size_bytes);
    return {};
  }

  [[nodiscard]] Status read(std::span<std::byte> bytes, std::uint64_t offset) {
    // Direct reads have whole blocks; the file ends where it ends. The buffer has room for them.
    const std::uint64_t asked = source_.direct() ? round_up(bytes.size(), kDirectAlignment) : bytes.size();
    SW_ASSIGN(const std::uint64_t got, source_.read_at({bytes.data(), asked}, offset));
    if (got >= bytes.size()) return {};
    return fail(ErrorKind::kCorrupt,
                fmt::format("the file ends at byte {}, but its record says {}", offset + got, record_.size_bytes),
                source_.path());
  }

  [[nodiscard]] Status check(std::span<const std::byte> bytes, std::uint64_t offset) const {
    for (std::uint64_t start = 0; start < bytes.size(); start += kBlockBytes) {
      const auto block = bytes.subspan(start, std::min<std::uint64_t>(kBlockBytes, bytes.size() - start));
      if (digest64(block) == record_.block_digests[(offset + start) / kBlockBytes]) continue;
      return fail(
          ErrorKind::kCorrupt,
          fmt::format("the bytes from {} on are not those that were saved, so they are not copied", offset + start),
          source_.path());
    }
    return {};
  }

  void note(Error error) {
    failed_ = true;
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }

  [[nodiscard]] Error stopped() const {
    return {.kind = ErrorKind::kClosed, .message = "the copy was stopped; it can be continued", .path = source_.path()};
  }

  File& source_;
  FileUpload& upload_;
  const FileRecord& record_;
  const CopyOptions& options_;
  const std::uint64_t part_bytes_;
  std::atomic<std::uint64_t> next_part_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::optional<Error> error_;  // the first; guarded by mutex_
};

}  // namespace

Status copy_file(const FileAt& source, const FileAt& target, const FileRecord& record, const CopyOptions& options) {
  SW_ASSIGN(const auto file,
            retry_read([&] { return source.fs.open(source.path, OpenMode::kRead, options.direct_io); }));
  SW_ASSIGN(const FileStatus found, file->status());
  if (found.size_bytes != record.size_bytes) {
    return fail(ErrorKind::kCorrupt,
                fmt::format("the file has {} bytes, but its record says {}", found.size_bytes, record.size_bytes),
                source.path);
  }
  SW_ASSIGN(const auto upload, target.fs.begin_upload(target.path, record.size_bytes));
  SW_TRY(FileCopy(*file, *upload, record, options).run());
  return upload->finish();
}

Status place_file(FileSystem& fs, const std::string& directory, const std::string& name, const std::string& text) {
  const std::string path = fmt::format("{}/{}", directory, name);
  Status written = write_durably(fs, path, text);
  if (written || written.error().kind != ErrorKind::kAlreadyExists) return written;
  const auto there = retry_read([&] { return read_whole(fs, path, text.size()); });
  if (there && *there == text) {
    // Its writer may have died before its sync.
    SW_ASSIGN(const auto file, fs.open(path, OpenMode::kRead, false));
    SW_TRY(file->sync_all());
    return file->close();
  }
  if (!there && there.error().kind != ErrorKind::kCorrupt && there.error().kind != ErrorKind::kNotFound)
    return fail(there.error());
  // A crash has cut it short. Everybody who writes this name writes these bytes, so nothing else is lost.
  if (Status unlinked = fs.unlink(path); !unlinked && unlinked.error().kind != ErrorKind::kNotFound) return unlinked;
  return write_durably(fs, path, text);
}

}  // namespace slackwater
