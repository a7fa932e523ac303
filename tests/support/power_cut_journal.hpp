// PowerCutJournal: every change made to a directory tree, in order, with its bytes; and CutDisk: what such a tree may
// look like after the power went off behind any of those changes. Written by PowerCutFileSystem, read by the crash
// tests.
//
// The model is POSIX at its least helpful: fsync of a file keeps its bytes and its length and nothing else, fsync of a
// directory keeps its names and nothing else. Whatever was not synced is kept, lost or (bytes) torn, each on its own
// and in any order.
//
// Thread rule: PowerCutJournal is thread-safe; a CutDisk belongs to one thread, while nobody writes the journal.
// Lifetime: the journal outlives the CutDisks made from it. Memory: all bytes ever written, so keep states small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace slackwater::test {

using Inode = std::uint32_t;
inline constexpr Inode kNoInode = 0;    // a name that is not there
inline constexpr Inode kRootInode = 1;  // the directory that is watched; it always exists

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

enum class DiskChange : std::uint8_t {
  kName,       // `name` in directory `inode` now means `target`
  kSyncNames,  // of directory `inode`
  kWrite,      // handed to the disk
  kWritten,    // the disk says it is done: a later sync covers it
  kAllocate,
  kTruncate,
  kSyncBytes,  // of file `inode`: bytes and length
};

struct DiskOperation {
  DiskChange change = DiskChange::kName;
  Inode inode = kNoInode;
  std::string name;
  Inode target = kNoInode;
  std::uint64_t offset = 0;  // kWrite; the length for kAllocate and kTruncate; the operation meant by kWritten
  SharedBytes bytes = {};
};

class PowerCutJournal {
 public:
  explicit PowerCutJournal(std::string root) : root_(std::move(root)) { paths_[root_] = kRootInode; }

  // What lies in the root already, as if it had been made and synced.
  void adopt_existing();

  // Paths outside of the root are none of its business: nothing is noted, kNoInode is returned.
  Inode add_file(const std::string& path) { return add(path, false); }
  Inode add_directory(const std::string& path) { return add(path, true); }
  void link(const std::string& from, const std::string& to);
  void remove_name(const std::string& path);
  void sync_names(const std::string& path);

  std::size_t write(Inode file, std::uint64_t offset, std::span<const std::byte> bytes);  // what written() takes
  void written(std::size_t write);
  void allocate(Inode file, std::uint64_t size_bytes);
  void truncate(Inode file, std::uint64_t size_bytes);
  void sync_bytes(Inode file);

  [[nodiscard]] const std::string& root() const { return root_; }
  [[nodiscard]] Inode find(const std::string& path) const;
  // The name that changed last in a directory; empty if none has.
  [[nodiscard]] std::string last_name(const std::string& path) const;
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] DiskOperation operation(std::size_t number) const;
  [[nodiscard]] bool is_directory(Inode inode) const;

 private:
  Inode add(const std::string& path, bool directory);
  void set_name(const std::string& path, Inode target);  // needs mutex_
  [[nodiscard]] Inode lookup(const std::string& path) const;

  const std::string root_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<DiskOperation> operations_;
  std::map<std::string, Inode> paths_;  // as they are now
  std::map<Inode, std::string> last_names_;
  std::set<Inode> directories_{kRootInode};
  Inode last_inode_ = kRootInode;
};

// One tree as it may be found after the cut.
struct DiskImage {
  std::set<std::string> directories;         // relative to the root; parents sort before children
  std::map<std::string, SharedBytes> files;  // likewise

  void write_to(const std::string& root) const;
  [[nodiscard]] std::uint64_t digest() const;
};

// The disk after the first n operations. What the cut leaves open is a list of questions, each with a few answers.
class CutDisk {
 public:
  explicit CutDisk(const PowerCutJournal& journal) : journal_(journal) {}

  [[nodiscard]] std::size_t operations() const { return operations_; }
  void advance();  // one operation

  // Answers 0 to n-1 to each question, in a fixed order.
  [[nodiscard]] std::vector<std::uint32_t> questions() const;
  // `seed` says which sectors of a torn write arrived.
  [[nodiscard]] DiskImage image(std::span<const std::uint32_t> answers, std::uint64_t seed) const;

  // Different images: all combinations of answers if there are at most `exhaustive`, else the four corners (all lost,
  // all kept, only names and lengths kept, only bytes kept) and `samples` random ones.
  [[nodiscard]] std::vector<DiskImage> images(std::size_t exhaustive, std::size_t samples,
                                              std::mt19937_64& random) const;

 private:
  enum class Question : std::uint8_t { kName, kLength, kBytes };
  struct Entry {
    Inode durable = kNoInode;
    std::vector<Inode> pending;
  };
  struct PendingBytes {
    std::size_t operation = 0;
    bool completed = true;  // false: a sync does not cover it
  };
  struct FileState {
    SharedBytes durable = std::make_shared<const std::vector<std::byte>>();
    std::vector<PendingBytes> pending;  // writes and changes of length, oldest first
  };
  struct Asked {
    Question question;
    Inode inode;
    std::string name;
    std::uint32_t answers;
  };

  [[nodiscard]] std::vector<Asked> ask() const;
  [[nodiscard]] std::vector<std::uint64_t> lengths(const FileState& file) const;
  [[nodiscard]] SharedBytes contents(const FileState& file, std::uint64_t length, std::uint32_t bytes_answer,
                                     std::uint64_t seed) const;
  void sync_bytes(FileState& file) const;
  [[nodiscard]] static std::uint32_t corner(const Asked& asked, bool keep_names, bool keep_bytes);

  const PowerCutJournal& journal_;
  std::size_t operations_ = 0;
  std::map<std::pair<Inode, std::string>, Entry> entries_;  // by directory and name
  std::map<Inode, FileState> files_;
};

}  // namespace slackwater::test
