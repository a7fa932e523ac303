// DirectoryStore: a key-value store in a directory that all ranks share. The key "a/b/c" is the file c in a/b. It is
// written under a private name and then linked, so nobody sees part of a value, and only one writer can create it. If
// the disk is full, a value takes its space from the reserve (reserve.hpp), or is spelled in file names
// (message_names.hpp).
//
// Over NFS, a host that looks up a missing name keeps believing for up to a minute that it is missing (os/durable.hpp,
// lists_name). So a name that may not be there yet is looked up by listing its directory, which is fresh even over NFS.
// A file is opened only after its name was listed.
//
// Owned by KeyValueTransport. Thread rule: thread-safe. Lifetime: FileSystem and Clock outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "ranks/reserve.hpp"
#include "slackwater/key_value_store.hpp"

namespace slackwater {

inline constexpr std::uint64_t kMaxValueBytes = 1u << 30;  // a group's report carries its part of the index
inline constexpr std::uint64_t kMaxGetBytes = 32u << 20;   // get() stops here, and the rest counts as not there yet

class DirectoryStore final : public KeyValueStore {
 public:
  DirectoryStore(FileSystem& fs, const Clock& clock, std::string root);

  [[nodiscard]] Status set(const std::string& key, const std::string& value) override;
  // Lists each directory once. A value that cannot be read now counts as not there yet.
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override;
  void remove(const std::vector<std::string>& keys) override;

  // kAlreadyExists: the key has a value. kNotFound: the directory above its own is gone.
  [[nodiscard]] Status create(const std::string& key, const std::string& value);
  // The names directly below this directory ("" is the root): of keys, and of directories with a '/' at the end.
  // kNotFound: it is not there.
  [[nodiscard]] Result<std::set<std::string>> list(const std::string& directory);
  // Whether this directory was there when it was last listed or written to. Makes no system call.
  [[nodiscard]] bool has(const std::string& directory) const;
  // Whether it is there now. Only for a directory that was there before: over NFS, others are looked for in a listing.
  [[nodiscard]] bool is_still_there(const std::string& directory);

  // Makes `directory`, removes the others with their contents, and reserves space for the messages of `world` ranks.
  [[nodiscard]] Status replace(const std::vector<std::string>& others, const std::string& directory,
                               std::uint32_t world);
  void keep_reserve();  // makes the reserve again if it was used; no effect before replace()

  [[nodiscard]] std::string path_of(const std::string& key) const;

 private:
  using Entries = std::vector<DirectoryEntry>;

  [[nodiscard]] Result<Entries> list_entries(const std::string& directory);
  [[nodiscard]] std::optional<std::string> read(const std::string& key, const Entries& entries);
  // The two forms of a value: a file that holds it, or the names of empty files.
  [[nodiscard]] Status write_file(const std::string& key, const std::string& value);
  [[nodiscard]] Status write_names(const std::string& key, const std::string& value);
  [[nodiscard]] Status check_missing(const std::string& key);
  void remove_tree(const std::string& directory);

  // Constant after construction.
  FileSystem& fs_;
  const std::string root_;

  Reserve reserve_;
  std::atomic<std::uint32_t> reserve_world_ = 0;  // 0: another rank makes the reserve
  std::atomic<bool> spelled_ = false;             // this store has spelled a value in names

  mutable std::mutex mutex_;
  std::set<std::string> seen_;  // directories that are there; guarded by mutex_
};

}  // namespace slackwater
