// The durability order (docs/durability.md), in one place. Every file that must survive a power cut is written by these
// functions.
//   DurableFile:          create exclusively -> allocate the rounded size -> [writes] -> truncate to the exact size
//                         -> fdatasync -> close
//   write_durably:        create exclusively -> write -> fsync -> close                          (small files)
//   publish_exclusively:  write a temp file durably -> link it to the final name -> unlink the temp file
//                         -> fsync the directory
// A failed sync or close is never retried. The file is treated as lost.
// Thread rule: the functions may run on any thread; a DurableFile belongs to one. The FileSystem outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "os/file_system.hpp"

namespace slackwater {

class DurableFile {
 public:
  // `direct` falls back to buffered I/O as in FileSystem::open.
  [[nodiscard]] static Result<DurableFile> create(FileSystem& fs, const std::string& path, std::uint64_t size_bytes,
                                                  bool direct);

  [[nodiscard]] File& file() { return *file_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  // Call once, after every write has completed. Makes the bytes durable. The name takes a sync_directory().
  [[nodiscard]] Status finish();

 private:
  DurableFile(std::unique_ptr<File> file, std::uint64_t size_bytes);
  std::unique_ptr<File> file_;
  std::uint64_t size_bytes_;
};

[[nodiscard]] Status write_durably(FileSystem& fs, const std::string& path, std::string_view bytes);

// Gives a file with a private name, which nobody else knows, a second name. Unlike FileSystem::link, the result can be
// trusted on NFS. There, the reply can get lost after the server has made the link. The client sends the call again and
// gets EEXIST, or it reports an error. Success here means that the link is ours, whatever link() answered.
[[nodiscard]] Status link_exclusively(FileSystem& fs, const std::string& private_path, const std::string& path);

// Exactly one writer gets the name; the others get kAlreadyExists. kInDoubt means that the name was made, but the sync
// of the directory failed. `unique` makes the temp name unique among all writers (run, attempt, rank).
[[nodiscard]] Status publish_exclusively(FileSystem& fs, const std::string& directory, const std::string& name,
                                         std::string_view bytes, const std::string& unique);

// Whether the directory lists this name; kNotFound if there is no such directory. Use it to check for a name that
// another host may make at any time. On NFS, do not open or lstat such a name: if it is missing, this host assumes for
// 30 to 60 s that it stays missing, even if somebody makes it in that time (nfs(5), "Directory entry caching"). Opening
// a directory asks the server, and every name that it then lists can be opened.
[[nodiscard]] Result<bool> lists_name(FileSystem& fs, const std::string& directory, std::string_view name);

// Reads a small file. kCorrupt if it is larger than max_bytes, which is checked before memory is allocated.
[[nodiscard]] Result<std::string> read_whole(FileSystem& fs, const std::string& path, std::uint64_t max_bytes);

// Makes the directory if it is missing, but not its parents. True if it was made; its parent then needs a sync.
[[nodiscard]] Result<bool> ensure_directory(FileSystem& fs, const std::string& path);

}  // namespace slackwater
