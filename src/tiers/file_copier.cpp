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

constexpr std::uint64_t kLeastWindow = kBlockBytes;  // at least one block, because blocks are checked whole

struct WindowMemoryDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(kDirectAlignment)); }
};
using WindowMemory = std::unique_ptr<std::byte[], WindowMemoryDelete>;

WindowMemory window_memory(std::uint64_t size_bytes) {
  return WindowMemory(static_cast<std::byte*>(::operator new[](size_bytes, std::align_val_t(kDirectAlignment))));
}

// What all threads of one copy share.
struct CopyJob {
  File& source;
  const FileRecord& record;
  const CopyOptions& options;

  [[nodiscard]] Error stopped() const {
    return {.kind = ErrorKind::kClosed, .message = "the copy was stopped; it can be continued", .path = source.path()};
  }
};

// One part of the source, read window by window: a part may be much larger than the memory for it. Every window is
// checked each time it is read. A part that fits into one window is read once.
class PartReader final : public ByteSource {
 public:
  PartReader(const CopyJob& job, std::uint64_t window_bytes)
      : job_(job), window_bytes_(window_bytes), memory_(window_memory(window_bytes)) {}

  void begin(std::uint64_t offset, std::uint64_t size_bytes) {
    offset_ = offset;
    size_bytes_ = size_bytes;
    held_ = {};
  }

  [[nodiscard]] std::uint64_t size_bytes() const override { return size_bytes_; }
  [[nodiscard]] Result<std::span<const std::byte>> at(std::uint64_t offset) override {
    if (offset < held_from_ || offset - held_from_ >= held_.size()) SW_TRY(read_window(offset));
    return held_.subspan(offset - held_from_);
  }

 private:
  [[nodiscard]] Status read_window(std::uint64_t offset) {
    if (job_.options.stop.stop_requested()) return fail(job_.stopped());
    held_ = {};
    held_from_ = round_down(offset, window_bytes_);
    const std::span<std::byte> bytes(memory_.get(), std::min(window_bytes_, size_bytes_ - held_from_));
    // A read that fails or looks damaged is tried again. Only what stays wrong is damage.
    const std::uint64_t start = offset_ + held_from_;
    SW_TRY(retry_read([&] { return read(bytes, start); }));
    if (Status checked = check(bytes, start); !checked) {
      SW_TRY(retry_read([&] { return read(bytes, start); }));
      SW_TRY(check(bytes, start));
    }
    held_ = bytes;
    return {};
  }

  [[nodiscard]] Status read(std::span<std::byte> bytes, std::uint64_t offset) {
    // Direct reads have whole blocks; the file ends where it ends. The buffer has room for them.
    const std::uint64_t asked = job_.source.direct() ? round_up(bytes.size(), kDirectAlignment) : bytes.size();
    SW_ASSIGN(const std::uint64_t got, job_.source.read_at({bytes.data(), asked}, offset));
    if (got >= bytes.size()) return {};
    return fail(ErrorKind::kCorrupt,
                fmt::format("the file ends at byte {}, but its record says {}", offset + got, job_.record.size_bytes),
                job_.source.path());
  }

  [[nodiscard]] Status check(std::span<const std::byte> bytes, std::uint64_t offset) const {
    for (std::uint64_t start = 0; start < bytes.size(); start += kBlockBytes) {
      const auto block = bytes.subspan(start, std::min<std::uint64_t>(kBlockBytes, bytes.size() - start));
      if (digest64(block) == job_.record.block_digests[(offset + start) / kBlockBytes]) continue;
      return fail(
          ErrorKind::kCorrupt,
          fmt::format("the bytes from {} on are not those that were saved, so they are not copied", offset + start),
          job_.source.path());
    }
    return {};
  }

  const CopyJob& job_;
  const std::uint64_t window_bytes_;
  const WindowMemory memory_;
  std::uint64_t offset_ = 0;  // of the part in the file
  std::uint64_t size_bytes_ = 0;
  std::uint64_t held_from_ = 0;           // within the part
  std::span<const std::byte> held_ = {};  // empty: nothing
};

// One file on its way.
class FileCopy {
 public:
  FileCopy(File& source, FileUpload& upload, const FileRecord& record, const CopyOptions& options)
      : job_{source, record, options}, upload_(upload), part_bytes_(upload.part_bytes()) {}

  [[nodiscard]] Status run() {
    const std::uint64_t parts = (job_.record.size_bytes + part_bytes_ - 1) / part_bytes_;
    const std::uint64_t windows = std::max<std::uint64_t>(1, job_.options.buffer_bytes / kLeastWindow);
    const std::uint64_t threads = std::min({std::max<std::uint64_t>(1, job_.options.threads), windows, parts});
    const std::uint64_t share =
        round_down(job_.options.buffer_bytes / std::max<std::uint64_t>(1, threads), kLeastWindow);
    // A short part needs no more than its own bytes.
    const std::uint64_t longest = std::min(part_bytes_, round_up(job_.record.size_bytes, kLeastWindow));
    window_bytes_ = std::max(kLeastWindow, std::min(share, longest));
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
      PartReader reader(job_, window_bytes_);
      while (!failed_) {
        const std::uint64_t part = next_part_++;
        if (part * part_bytes_ >= job_.record.size_bytes) return;
        if (Status sent = send_part(static_cast<std::uint32_t>(part), reader); !sent) note(sent.error());
      }
    } catch (const std::exception& trouble) {
      note({.kind = ErrorKind::kOutOfMemory,
            .message = fmt::format("a part could not be copied: {}", trouble.what()),
            .path = job_.source.path()});
    }
  }

  [[nodiscard]] Status send_part(std::uint32_t part, PartReader& reader) {
    const std::uint64_t offset = part * part_bytes_;
    const std::uint64_t size_bytes = std::min(part_bytes_, job_.record.size_bytes - offset);
    if (job_.options.stop.stop_requested()) return fail(job_.stopped());
    if (job_.options.cap != nullptr && !job_.options.cap->wait(size_bytes, job_.options.stop))
      return fail(job_.stopped());
    reader.begin(offset, size_bytes);
    SW_TRY(upload_.send(part, reader));
    if (job_.options.on_sent) job_.options.on_sent(size_bytes);
    return {};
  }

  void note(Error error) {
    failed_ = true;
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }

  const CopyJob job_;
  FileUpload& upload_;
  const std::uint64_t part_bytes_;
  std::uint64_t window_bytes_ = 0;  // set before the threads start
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
