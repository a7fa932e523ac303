// TierOverlay: several tiers seen as one, for reading. Each file comes from the fastest tier that has it. If a file
// turns out to be damaged or cannot be read there, move_on() moves that file alone to the next tier that has it, and
// the caller tries again. Directories list what any tier has. Paths are those of the fastest tier.
// Owned by one restore, or by a verb of the CLI. Thread rule: thread-safe, as FileSystem; move_on() while nobody reads.
// Lifetime: the tiers' FileSystems outlive it, and it outlives the files and queues that it made.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "os/read_only_file_system.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// Where the checkpoints of a tier are.
struct TierPlace {
  FileSystem* fs = nullptr;
  std::string root;
  const char* missing = "is missing";  // in messages, for a file that it does not have
};

class TierOverlay final : public ReadOnlyFileSystem {
 public:
  explicit TierOverlay(std::vector<TierPlace> tiers);  // the fastest first; at least one

  [[nodiscard]] const std::string& root() const { return tiers_.front().root; }
  [[nodiscard]] const std::vector<TierPlace>& tiers() const { return tiers_; }

  // From now on this tier is left out. `why` names it in messages.
  void leave_out(std::size_t tier, Error why);
  [[nodiscard]] std::map<std::size_t, Error> left_out() const;
  // A file or directory (relative to the root, with everything in it) is not taken from this tier, until include().
  void exclude(std::size_t tier, const std::string& name);
  void include(std::size_t tier, const std::string& name);
  // The tiers that are asked for this file or directory.
  [[nodiscard]] std::vector<std::size_t> tiers_for(const std::string& name) const;

  // Something that was read cannot be used; the error's path says which file or directory. From now on it comes from
  // the next tier that has it.
  struct Move {
    std::string name;      // relative to the root
    std::size_t from = 0;  // tiers
    std::size_t to = 0;
    Error why;
  };
  // nullopt: no other tier has it, or another tier would not help.
  [[nodiscard]] std::optional<Move> move_on(const Error& error);
  // The error when there is nothing left to try: says what was tried on which tier. It stays damage only if every tier
  // answered. If one of them could not be read, the bytes may be intact there, and the error is that of its storage.
  [[nodiscard]] Error explain(Error error) const;

  // All moves so far that were made because of damage.
  struct Damaged {
    std::string name;  // relative to the root
    std::size_t tier = 0;
    Error why;
  };
  [[nodiscard]] std::vector<Damaged> damaged() const;

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override;
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override;

 private:
  using Tried = std::map<std::size_t, Error>;  // by tier: why
  struct Place {
    std::string name;
    std::optional<std::size_t> tier;  // whose path it was; of tier 0 it may also be the overlay's
  };
  [[nodiscard]] std::string name_of(const std::string& path) const;  // relative to the overlay's root
  [[nodiscard]] std::string path_on(std::size_t tier, const std::string& name) const;
  [[nodiscard]] std::optional<Place> place_of(const std::string& path) const;
  [[nodiscard]] bool used(std::size_t tier, const std::string& name) const;  // with the lock held

  const std::vector<TierPlace> tiers_;

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::size_t, Error> left_out_;
  std::map<std::string, std::set<std::size_t>> excluded_;  // by name: not from these tiers; for a directory, all in it
  std::map<std::string, Tried> tried_;                     // by name: what was wrong, tier by tier
  std::map<std::string, std::size_t> served_;              // by name: the tier that the file was last opened on
};

}  // namespace slackwater
