// The durability order (docs/durability.md), in one place: every file that must survive a power cut is written by these functions.
//   DurableFile: create exclusively -> allocate the rounded size -> [writes] -> truncate to the exact size -> fdatasync -> close
//   write_durably: create exclusively -> write -> fsync -> close                      (small files)
//   publish_exclusively: temp file written durably -> link to the final name -> unlink temp -> fsync of the directory
// A failed sync or close is never retried: the file counts as lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "os/file_system.hpp"

namespace slackwater {

class DurableFile {
 public:
  // direct falls back as FileSystem::open does.
  [[nodiscard]] static Result<DurableFile> create(FileSystem& fs, const std::string& path, std::uint64_t size_bytes,
                                                  bool direct);

  [[nodiscard]] File& file() { return *file_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  // After every write has completed. Once; afterwards the bytes are durable, the name is not: sync_directory() does that.
  [[nodiscard]] Status finish();

 private:
  DurableFile(std::unique_ptr<File> file, std::uint64_t size_bytes);
  std::unique_ptr<File> file_;
  std::uint64_t size_bytes_;
};

[[nodiscard]] Status write_durably(FileSystem& fs, const std::string& path, std::string_view bytes);

// Gives a file under a private name, which nobody else knows, a second one: FileSystem::link, but its answer is true over NFS
// too. There the reply can be lost after the server has made the link; the call that the client sends again then finds it
// (EEXIST), or an error comes instead of a reply. Success here means that the link is ours, whatever link() answered.
[[nodiscard]] Status link_exclusively(FileSystem& fs, const std::string& private_path, const std::string& path);

// Name is taken exactly once, by exactly one writer: kAlreadyExists if somebody was first. kInDoubt if the name was made and the
// sync of the directory then failed. `unique` makes the temp name unique among all writers (run, attempt, rank).
[[nodiscard]] Status publish_exclusively(FileSystem& fs, const std::string& directory, const std::string& name,
                                         std::string_view bytes, const std::string& unique);

// Whether a directory lists this name; kNotFound if there is no such directory. The way to look for a name that another
// host may make at any time. Over NFS, asking for the name itself (open, lstat) has a price: if it is missing, this host
// believes for 30 to 60 s that it stays missing, whoever makes it meanwhile (nfs(5), "Directory entry caching"). Opening a
// directory asks the server, and what it then lists can be opened.
[[nodiscard]] Result<bool> lists_name(FileSystem& fs, const std::string& directory, std::string_view name);

// Reads a small file whole; kCorrupt when it is larger than max_bytes (checked before allocating).
[[nodiscard]] Result<std::string> read_whole(FileSystem& fs, const std::string& path, std::uint64_t max_bytes);

// mkdir -p of the last `path` component only; true if it was made (its parent then needs a sync).
[[nodiscard]] Result<bool> ensure_directory(FileSystem& fs, const std::string& path);

}  // namespace slackwater
