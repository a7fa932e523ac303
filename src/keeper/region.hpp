// Region: how a trainer and its keeper lay out the memory that they share. A header says how large the slabs are. A
// table has one entry per version: its name, its state, and where its text (staged_version.hpp) is. The slabs follow;
// they are the trainer's pool.
//
//   | header | entry 0 ... entry 3 | text of 0 | ... | text of 3 | slab 0 | slab 1 | ...
//
// The trainer is the only writer. It may be killed between any two stores, so an entry changes state with one release
// store, after everything that the state vouches for: kFilling -> kStaged -> kCommitted, and kEmpty before any of its
// slabs is used for something else. A reader that finds kStaged finds all bytes, their digests, and the texts.
// Texts have room to grow: a page of memory exists only once it is written.
// Owner: the trainer's MemoryTier, or whoever reads. Thread rule: one thread at a time writes; readers are in other
// processes, or come after the trainer is gone. Everything that is read is untrusted, and checked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "keeper/staged_version.hpp"
#include "os/shared_memory.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct RegionShape {
  std::uint64_t slab_bytes = 0;
  std::uint32_t slab_count = 0;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
};

enum class KeptState : std::uint32_t { kEmpty = 0, kFilling = 1, kStaged = 2, kCommitted = 3 };

class Region {
 public:
  static constexpr std::uint32_t kEntries = 4;  // two that are kept, a third with several ranks, one being staged

  [[nodiscard]] static std::uint64_t size_bytes(const RegionShape& shape);
  // Memory that is new, or whose versions are to be forgotten. It must have size_bytes(shape).
  [[nodiscard]] static Result<Region> format(std::shared_ptr<SharedMemory> memory, const RegionShape& shape);
  // kCorrupt: it was not formatted by this release, or the numbers in its header do not fit its size.
  [[nodiscard]] static Result<Region> open(std::shared_ptr<SharedMemory> memory);

  [[nodiscard]] const RegionShape& shape() const { return shape_; }
  [[nodiscard]] const std::shared_ptr<SharedMemory>& memory() const { return memory_; }
  [[nodiscard]] std::span<std::byte> slabs() const;
  [[nodiscard]] std::span<std::byte> slab(std::uint32_t index) const;

  // For the trainer. An id is that of a member of an attempt (Attempt::members).
  [[nodiscard]] std::optional<std::uint32_t> begin(const VersionName& name);  // nullopt: no entry is free
  // kNoSpace: the text is larger than the room for it.
  [[nodiscard]] Status publish(std::uint32_t entry, const StagedVersion& version, const std::string& member);
  void mark_committed(std::uint32_t entry);
  void drop(std::uint32_t entry);
  // `next` is about to claim an attempt that goes on from this version. Until that claim is on disk, the version
  // belongs to `member`, afterwards to `next`. A crash in between does not lose it.
  void set_next_owner(std::uint32_t entry, const std::string& member, const std::string& next);

  // What is in the memory, oldest first. An entry whose text cannot be believed is left out.
  struct Kept {
    std::uint32_t entry = 0;
    KeptState state = KeptState::kEmpty;
    StagedVersion version;
    std::array<std::string, 2> members;  // it is live if the newest attempt lists one of these as this rank
  };
  [[nodiscard]] std::vector<Kept> kept() const;
  // Whether this entry, as kept() listed it, has been there ever since.
  [[nodiscard]] bool holds(std::uint32_t entry, const VersionName& name) const;

 private:
  struct Header;
  struct Entry;

  Region(std::shared_ptr<SharedMemory> memory, const RegionShape& shape) : memory_(std::move(memory)), shape_(shape) {}
  [[nodiscard]] Entry& entry(std::uint32_t index) const;
  [[nodiscard]] std::span<std::byte> text(std::uint32_t index) const;

  std::shared_ptr<SharedMemory> memory_;
  RegionShape shape_;
};

}  // namespace slackwater
