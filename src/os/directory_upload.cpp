#include "os/directory_upload.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kCompareBytes = 1u << 20;  // at a time, of what an earlier try left

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(kDirectAlignment)); }
};

std::unique_ptr<std::byte[], AlignedDelete> aligned_memory(std::uint64_t size_bytes) {
  return std::unique_ptr<std::byte[], AlignedDelete>(
      static_cast<std::byte*>(::operator new[](size_bytes, std::align_val_t(kDirectAlignment))));
}

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

}  // namespace

Result<std::unique_ptr<FileUpload>> FileSystem::begin_upload(const std::string& path, std::uint64_t size_bytes) {
  return DirectoryUpload::begin(*this, path, size_bytes);
}

DirectoryUpload::DirectoryUpload(FileSystem& fs, std::unique_ptr<File> file, std::uint64_t size_bytes, bool resumed)
    : fs_(fs), file_(std::move(file)), size_bytes_(size_bytes), resumed_(resumed) {}

Result<std::unique_ptr<FileUpload>> DirectoryUpload::begin(FileSystem& fs, const std::string& path,
                                                           std::uint64_t size_bytes) {
  auto file = fs.open(path, OpenMode::kCreateExclusive, true);
  const bool resumed = !file && file.error().kind == ErrorKind::kAlreadyExists;
  if (resumed) file = fs.open(path, OpenMode::kReadWrite, true);
  if (!file) return fail(std::move(file).error());
  // A full disk is noticed before a byte is copied. What is allocated stays for the next try. One byte too much says
  // that the file is not finished. A file that has its exact length is left like that, because somebody may be reading
  // it, and a longer one too: another process may finish it at any moment.
  std::uint64_t there_bytes = 0;
  if (resumed) {
    SW_ASSIGN(const FileStatus there, (*file)->status());
    there_bytes = there.size_bytes;
  }
  if (there_bytes < size_bytes) SW_TRY((*file)->allocate(size_bytes + 1));
  if (there_bytes == size_bytes) SW_TRY((*file)->allocate(size_bytes));
  return std::unique_ptr<FileUpload>(new DirectoryUpload(fs, std::move(*file), size_bytes, resumed));
}

Status DirectoryUpload::send(std::uint32_t part, ByteSource& source) {
  std::uint64_t offset = part * kPartBytes;
  for (std::uint64_t sent = 0; sent < source.size_bytes();) {
    SW_ASSIGN(const std::span<const std::byte> piece, source.at(sent));
    if (offset % kDirectAlignment != 0 || offset + piece.size() > size_bytes_)
      return fail(ErrorKind::kInternal, fmt::format("part {} does not fit into the upload", part), file_->path());
    // Direct writes have whole blocks. The few bytes behind the last one wait for finish().
    const std::uint64_t whole = file_->direct() ? round_down(piece.size(), kDirectAlignment) : piece.size();
    SW_TRY(resumed_ ? put_changed(piece.first(whole), offset) : put(piece.first(whole), offset));
    if (whole < piece.size()) tail_.assign(piece.begin() + static_cast<std::ptrdiff_t>(whole), piece.end());
    offset += piece.size();
    sent += piece.size();
  }
  return {};
}

Status DirectoryUpload::put(std::span<const std::byte> bytes, std::uint64_t offset) {
  if (bytes.empty()) return {};
  return file_->write_at(bytes, offset);
}

Status DirectoryUpload::put_changed(std::span<const std::byte> bytes, std::uint64_t offset) {
  const auto there = aligned_memory(kCompareBytes);
  for (std::uint64_t done = 0; done < bytes.size(); done += kCompareBytes) {
    const auto block = bytes.subspan(done, std::min<std::uint64_t>(kCompareBytes, bytes.size() - done));
    // Bytes that cannot be read are written again.
    const auto read = file_->read_at({there.get(), block.size()}, offset + done);
    const bool same = read && *read == block.size() && std::memcmp(there.get(), block.data(), block.size()) == 0;
    if (!same) SW_TRY(put(block, offset + done));
  }
  return {};
}

Status DirectoryUpload::finish() {
  if (!tail_.empty()) {
    SW_TRY(file_->set_direct(false));
    SW_TRY(put(tail_, size_bytes_ - tail_.size()));
  }
  // The bytes are durable before the length says that they are there.
  Status synced = file_->sync_data();
  if (synced) {
    SW_ASSIGN(const FileStatus found, file_->status());
    if (found.size_bytes != size_bytes_) {
      SW_TRY(file_->truncate(size_bytes_));
      synced = file_->sync_data();
    }
  }
  if (synced) synced = file_->close();
  // A failed sync is never repeated on the same file: the kernel may have dropped what it could not write, and the next
  // sync would succeed. So the file goes, and the next try writes a new one.
  if (!synced) (void)fs_.unlink(file_->path());
  SW_TRY(synced);
  return fs_.sync_directory(directory_of(file_->path()));
}

Status DirectoryUpload::abandon() {
  (void)file_->close();
  Status unlinked = fs_.unlink(file_->path());
  if (!unlinked && unlinked.error().kind == ErrorKind::kNotFound) return {};
  return unlinked;
}

}  // namespace slackwater
