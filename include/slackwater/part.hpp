// Parts: a version whose ranks somebody else coordinates, such as torch.distributed.checkpoint. That coordinator
// gathers and broadcasts already, so the ranks of Slackwater do not vote a second time:
//
//   coordinator:  begin()  ->  a place, on disk                 (claims the attempt, makes the version's directory)
//   every rank:   find_place(), Engine::save() with State::part  ->  Snapshot::part(), a text
//   coordinator:  commit() with the texts of all ranks           (index, then the manifest: the one decision)
//
// A version without commit() is invisible. The next begin() in its directory removes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "slackwater/error.hpp"
#include "slackwater/options.hpp"

namespace slackwater {

// Where the part of one rank belongs.
struct PartPlace {
  std::string root;  // the checkpoint directory
  std::string run;   // of the attempt that was claimed for this version
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
};

// The version that a coordinator has begun in this directory, as this rank sees it. Call it after begin() has returned
// on the coordinator. kNotFound: there is none. kInvalidArgument: the version has fewer ranks.
[[nodiscard]] Result<PartPlace> find_place(const std::string& root, std::uint32_t rank);

// Begins and commits a version for the program that coordinates its ranks.
// Thread rule: one thread at a time. Lifetime: holds the directory's lock. Without commit(), the destructor leaves the
// version undecided, so nobody can see it.
class PartCommitter {
 public:
  // Makes the directory if only its last component is missing, and takes the lock. kBusy: another writer holds it.
  // kInvalidArgument: it holds checkpoints of a run of another name. Those are never replaced.
  [[nodiscard]] static Result<PartCommitter> open(const std::string& root, const std::string& run_name,
                                                  LogSink log = {});

  // Whether the directory holds a live version. commit() replaces it.
  [[nodiscard]] bool has_version() const;

  // Claims an attempt for this many ranks and makes the directory of the version. If the directory holds a later step,
  // the version gets that step, so that it is the newest once it is committed.
  [[nodiscard]] Result<PartPlace> begin(std::uint64_t step, std::uint32_t world);

  // Makes the version visible. `parts` has Snapshot::part() of every rank, in any order. What was there before is
  // removed afterwards, except for pinned versions. Trouble with that is only logged.
  [[nodiscard]] Status commit(std::span<const std::string> parts);

  PartCommitter(PartCommitter&&) noexcept;
  PartCommitter& operator=(PartCommitter&&) noexcept;
  ~PartCommitter();

  struct Impl;  // src/engine
  explicit PartCommitter(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
