// Tier: a place below tier 0 that holds checkpoints: its options, the file system that reaches it, and its root. All
// code that reads or writes checkpoints takes a FileSystem and a root, so it works on every tier.
// A directory is reached through the engine's own file system. For s3://bucket/prefix there is a FileSystem of its own,
// and the root is the location itself: it takes paths such as s3://bucket/prefix/step-0000000042.a7/index.
// Owned by the engine, or by a verb of the CLI. Thread rule: constant after open(); the FileSystem is thread-safe.
// Lifetime: the local FileSystem outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "os/file_system.hpp"
#include "slackwater/options.hpp"

namespace slackwater {

// What the options of a tier may be, whether they come as text or as values. kInvalidArgument says what they take.
[[nodiscard]] Status check_tier_location(std::string_view location);
[[nodiscard]] Status check_tier_count(std::uint64_t value);  // `every` and `backlog`

class Tier {
 public:
  // Makes no request: a tier that cannot be reached now may be reached later. kInvalidArgument names the location.
  [[nodiscard]] static Result<Tier> open(TierOptions options, FileSystem& local);
  // For tests: a tier with a file system of its own.
  Tier(TierOptions options, std::string root, std::unique_ptr<FileSystem> fs);

  [[nodiscard]] const TierOptions& options() const { return options_; }
  [[nodiscard]] FileSystem& fs() const { return *fs_; }  // for whoever writes: every name is looked up
  // For a restore. Of an object store it remembers names and sizes from one list, until refresh().
  [[nodiscard]] FileSystem& reader() const { return own_reader_ ? *own_reader_ : *fs_; }
  [[nodiscard]] const std::string& root() const { return root_; }

 private:
  Tier(TierOptions options, std::string root, FileSystem& fs);

  TierOptions options_;
  std::string root_;
  std::unique_ptr<FileSystem> own_;         // null: the local one
  std::unique_ptr<FileSystem> own_reader_;  // null: the same as fs_
  FileSystem* fs_;
};

}  // namespace slackwater
