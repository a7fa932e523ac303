#include "os/durable.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "base/units.hpp"
#include "os/retry.hpp"

namespace slackwater {
namespace {

// Removes a file that could not be finished, to free its space. The first error is the one to report.
std::unexpected<Error> discard(FileSystem& fs, const std::string& path, Error error) {
  (void)fs.unlink(path);
  return fail(std::move(error));
}

Status write_sync_close(File& file, std::string_view bytes) {
  SW_TRY(file.write_at(std::as_bytes(std::span(bytes)), 0));
  // fsync, not fdatasync: all metadata of the file must be durable before its name is.
  SW_TRY(file.sync_all());
  // NFS and quotas may report lost writes only at close.
  return file.close();
}

}  // namespace

DurableFile::DurableFile(std::unique_ptr<File> file, std::uint64_t size_bytes)
    : file_(std::move(file)), size_bytes_(size_bytes) {}

Result<DurableFile> DurableFile::create(FileSystem& fs, const std::string& path, std::uint64_t size_bytes,
                                        bool direct) {
  // 1. Create exclusively. A late writer of an earlier attempt can never write into our file, nor we into its file.
  SW_ASSIGN(auto file, fs.open(path, OpenMode::kCreateExclusive, direct));
  // 2. Allocate all space at once, rounded up to what direct writes need. A full disk then shows before a byte is
  //    written. And no write extends the file; extending writes are serialised and handed to kernel workers.
  if (Status allocated = file->allocate(round_up(size_bytes, kDirectAlignment)); !allocated) {
    return discard(fs, path, std::move(allocated).error());
  }
  return DurableFile(std::move(file), size_bytes);
}

Status DurableFile::finish() {
  // 3. Set the exact length before the sync. In the other order, a power cut could leave a file of the rounded length.
  if (round_up(size_bytes_, kDirectAlignment) != size_bytes_) SW_TRY(file_->truncate(size_bytes_));
  // 4. Sync data, length and extents. Never retried, because a second sync that succeeds proves nothing.
  SW_TRY(file_->sync_data());
  // 5. Check the result of close as well. Some file systems report lost writes only here.
  return file_->close();
}

Status write_durably(FileSystem& fs, const std::string& path, std::string_view bytes) {
  SW_ASSIGN(auto file, fs.open(path, OpenMode::kCreateExclusive, false));
  if (Status written = write_sync_close(*file, bytes); !written) return discard(fs, path, std::move(written).error());
  return {};
}

Status link_exclusively(FileSystem& fs, const std::string& private_path, const std::string& path) {
  Status linked = fs.link(private_path, path);
  if (linked) return linked;
  // The file has a second name only if we gave it one. Open it to find out: cached attributes may still say one name,
  // but an open asks the server.
  const auto file = fs.open(private_path, OpenMode::kRead, false);
  const auto found = file ? (*file)->status() : fail(file.error());
  if (found && found->link_count == 2) return {};
  return linked;
}

Status publish_exclusively(FileSystem& fs, const std::string& directory, const std::string& name,
                           std::string_view bytes, const std::string& unique) {
  const std::string final_path = directory + "/" + name;
  const std::string temp_path = directory + "/." + name + "." + unique + ".tmp";
  // 1. Make the bytes durable under a private name. Whoever sees the final name then sees all of them.
  if (Status written = write_durably(fs, temp_path, bytes); !written) {
    Error error = std::move(written).error();
    // kAlreadyExists is reserved for the final name. A private name that is taken is a different error.
    if (error.kind == ErrorKind::kAlreadyExists) error.kind = ErrorKind::kIo;
    return fail(std::move(error));
  }
  // 2. Link, not rename: a link fails if the name exists, so exactly one writer wins.
  const Status linked = link_exclusively(fs, temp_path, final_path);
  // 3. Remove the private name. If that fails, readers ignore it.
  (void)fs.unlink(temp_path);
  if (!linked) return linked;
  // 4. Make the name itself survive a power cut. If this fails, nobody knows whether it will, so nobody may rely on it.
  if (Status synced = fs.sync_directory(directory); !synced) {
    Error error = std::move(synced).error();
    error.kind = ErrorKind::kInDoubt;
    error.message = "the file was published, but its directory could not be synced: it may be gone after a power cut";
    error.path = final_path;
    error.retryable = false;
    return fail(std::move(error));
  }
  return {};
}

Result<bool> lists_name(FileSystem& fs, const std::string& directory, std::string_view name) {
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs.list(directory));
  return std::ranges::binary_search(entries, name, {}, &DirectoryEntry::name);
}

Result<std::string> read_whole(FileSystem& fs, const std::string& path, std::uint64_t max_bytes) {
  SW_ASSIGN(auto file, fs.open(path, OpenMode::kRead, false));
  SW_ASSIGN(const FileStatus found, file->status());
  if (found.size_bytes > max_bytes) {
    return fail(ErrorKind::kCorrupt,
                "the file is larger (" + format_bytes(found.size_bytes) + ") than such a file can be (" +
                    format_bytes(max_bytes) + ")",
                path);
  }
  std::string text(found.size_bytes, '\0');
  SW_ASSIGN(const std::uint64_t size_bytes, file->read_at(std::as_writable_bytes(std::span(text)), 0));
  text.resize(size_bytes);
  return text;
}

Result<bool> ensure_directory(FileSystem& fs, const std::string& path) {
  Status made = fs.make_directory(path);
  if (made) return true;
  if (made.error().kind != ErrorKind::kAlreadyExists) return fail(std::move(made).error());
  // "/." follows a symbolic link, because people use one to put their runs elsewhere.
  auto found = retry_read([&] { return fs.status(path + "/."); });
  if (found && found->type == FileType::kDirectory) return false;
  if (!found && found.error().kind != ErrorKind::kNotFound) return fail(std::move(found).error());
  made.error().message = "cannot create the directory: a file with that name is in the way";
  return fail(std::move(made).error());
}

}  // namespace slackwater
