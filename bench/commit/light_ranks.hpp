// LightRanks: N ranks of one run, played in one process one after the other on a few threads, over a real rank
// transport and a real directory. Three rank transports stand for all processes, one for each role: messages name their
// rank, so that what goes over the medium is what N processes send. Owned by one measurement. Thread rule: one thread,
// which starts others.
// Lifetime: file system and directory outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/commit/counting_store.hpp"
#include "bench/commit/measure.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "ranks/commit_protocol.hpp"
#include "ranks/merged_index.hpp"
#include "version/index.hpp"
#include "version/version_store.hpp"

namespace slackwater::bench {

enum class RankRole : std::uint8_t { kMember, kGroupLeader, kLeader };
inline constexpr std::size_t kRoles = 3;

[[nodiscard]] double thread_cpu_seconds();  // of the calling thread

// What one call took.
struct Cost {
  double wall_s = 0;
  double cpu_s = 0;
};

struct Rendezvous {
  double join_s = 0;
  double rendezvous_s = 0;
  double membership_s = 0;
};

// One commit, seconds of each call.
struct CommitCosts {
  std::vector<Cost> votes;
  std::vector<std::vector<Cost>> reports;  // by the height of who makes them
  Cost collect, merge, decide, announce;
  std::vector<Cost> learned;                 // by members
  std::vector<std::vector<Cost>> forwarded;  // by group leaders, as reports: they clear away what their group said
  std::uint64_t index_bytes = 0;
  std::uint64_t manifest_bytes = 0;
  std::uint64_t leader_memory_bytes = 0;
};

// A rank's part of the index: a share of each tensor.
[[nodiscard]] std::vector<IndexEntry> light_entries(std::uint32_t rank, std::uint32_t ranks, std::uint32_t tensors);
[[nodiscard]] Vote light_vote(const Record& record, IndexPart part);
[[nodiscard]] Record light_record(const Attempt& attempt, std::uint64_t step, std::uint32_t rank);
// Not durable: that is a part of the writes, which are not what is measured.
[[nodiscard]] Status write_light_record(FileSystem& fs, const std::string& directory, const Record& record);

class LightRanks {
 public:
  LightRanks(FileSystem& fs, const Clock& clock, std::string directory, const CommitPlan& plan, Medium medium,
             std::uint32_t ranks);

  [[nodiscard]] Result<Rendezvous> rendezvous();
  // Each in its turn. Steps grow.
  [[nodiscard]] Result<CommitCosts> commit(std::uint64_t step);
  // All at the same time: seconds until the last one knows.
  [[nodiscard]] Result<double> commit_at_once(std::uint64_t step);
  // Of all ranks of the role since the last call.
  [[nodiscard]] Traffic take_traffic(RankRole role);

 private:
  [[nodiscard]] RankRole role_of(std::uint32_t rank) const;
  [[nodiscard]] RankTransport& transport_of(std::uint32_t rank) const;
  [[nodiscard]] CommitProtocol protocol_of(std::uint32_t rank) const;
  // Ranks but the leader, by height: those who hear nobody first.
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> by_height() const;
  [[nodiscard]] std::unique_ptr<RankTransport> make_transport(RankRole role);
  [[nodiscard]] RankTransport::Member member(std::uint32_t rank) const;
  [[nodiscard]] Vote vote_of(std::uint32_t rank, std::uint64_t step) const;
  // The version's directory, with everybody's record.
  [[nodiscard]] Result<std::string> prepare(const VersionName& version);
  [[nodiscard]] Status lead(const VersionName& version, const std::string& path, Vote own, CommitCosts& costs);
  [[nodiscard]] Status learn(std::uint32_t rank, const VersionName& version);

  FileSystem& fs_;
  const Clock& clock_;
  const std::string directory_;
  const CommitPlan& plan_;
  const Medium medium_;
  const std::uint32_t ranks_;
  std::vector<std::string> ids_;

  MemoryStore values_;
  std::array<CountingStore, kRoles> stores_;
  std::array<std::unique_ptr<RankTransport>, kRoles> transports_;
  std::unique_ptr<VersionStore> versions_;
  Attempt attempt_;
  std::vector<IndexCache> index_caches_;  // by rank
  std::vector<std::string> part_texts_;   // by rank
};

}  // namespace slackwater::bench
