#include "bench/commit/light_ranks.hpp"

#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "os/durable.hpp"
#include "ranks/key_value_transport.hpp"
#include "version/index.hpp"

namespace slackwater::bench {
namespace {

constexpr std::int64_t kRowsOfARank = 16;
constexpr std::int64_t kColumns = 4096;
constexpr std::uint64_t kShardBytes = kRowsOfARank * kColumns * 2;
constexpr std::uint64_t kHeaderBytes = 64u << 10;
constexpr std::chrono::minutes kTimeLimit{10};

// What `call` took is added to `cost`.
template <class Call>
auto timed(Cost& cost, const Call& call) {
  const auto began = std::chrono::steady_clock::now();
  const double cpu = thread_cpu_seconds();
  auto result = call();
  cost.cpu_s += thread_cpu_seconds() - cpu;
  cost.wall_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return result;
}

// Calls `act` for each rank, on as many threads as there are cores. The first error ends it.
Status for_each_rank(const std::vector<std::uint32_t>& ranks, std::vector<Cost>& costs,
                     const std::function<Status(std::uint32_t, Cost&)>& act) {
  costs.assign(ranks.size(), {});
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::optional<Error> error;
  const auto work = [&] {
    for (std::size_t at = next++; at < ranks.size(); at = next++) {
      if (Status done = act(ranks[at], costs[at]); !done) {
        std::lock_guard lock(mutex);
        if (!error) error = std::move(done).error();
        next = ranks.size();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 1; i < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++i)
      threads.push_back(start_thread(fmt::format("bench-ranks-{}", i), [&](const std::stop_token&) { work(); }));
    work();
  }
  if (error) return fail(std::move(*error));
  return {};
}

std::uint64_t memory_line(const char* name) {
  std::ifstream lines("/proc/self/status");
  for (std::string word; lines >> word;) {
    if (word != name) continue;
    std::uint64_t kib = 0;
    lines >> kib;
    return kib << 10;
  }
  return 0;
}

// How much more memory the process had since then, at most, than it has now.
class MemoryPeak {
 public:
  MemoryPeak() {
    ::malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";  // begins the high-water mark anew
    before_ = memory_line("VmRSS:");
  }
  [[nodiscard]] std::uint64_t bytes() const {
    const std::uint64_t peak = memory_line("VmHWM:");
    return peak > before_ ? peak - before_ : 0;
  }

 private:
  std::uint64_t before_ = 0;
};

}  // namespace

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Record light_record(const Attempt& attempt, std::uint64_t step, std::uint32_t rank) {
  Record record{.run = attempt.run, .identity = {step, attempt.number, rank, attempt.world}, .files = {}};
  constexpr std::uint64_t kBlocks = 16;
  record.files.push_back({.name = RankFiles::of_world(attempt.world).data(rank, 0),
                          .size_bytes = kBlocks * kBlockBytes,
                          .tensor_count = 1,
                          .block_digests = std::vector<std::uint64_t>(kBlocks, rank)});
  return record;
}

Status write_light_record(FileSystem& fs, const std::string& directory, const Record& record) {
  const std::string text = serialize(record);
  const RankFiles files = RankFiles::of_world(record.identity.world);
  const std::uint32_t rank = record.identity.rank;
  if (const std::string own = files.directory(rank); !own.empty())
    SW_TRY(ensure_directory(fs, fmt::format("{}/{}", directory, own)));
  SW_ASSIGN(auto file, fs.open(fmt::format("{}/{}", directory, files.record(rank)), OpenMode::kCreateExclusive, false));
  SW_TRY(file->write_at(std::as_bytes(std::span(text)), 0));
  return file->close();
}

std::vector<IndexEntry> light_entries(std::uint32_t rank, std::uint32_t ranks, std::uint32_t tensors) {
  std::vector<IndexEntry> entries;
  entries.reserve(tensors);
  for (std::uint32_t i = 0; i < tensors; ++i) {
    entries.push_back({.name = fmt::format("model.layers.{}.self_attn.q_proj.weight", i),
                       .dtype = DType::kBF16,
                       .shape = {kRowsOfARank * ranks, kColumns},
                       .alias_of = {},
                       .shards = {{.box_offset = {kRowsOfARank * rank, 0},
                                   .box_shape = {kRowsOfARank, kColumns},
                                   .file = RankFiles::of_world(ranks).data(rank, 0),
                                   .offset = kHeaderBytes + i * kShardBytes,
                                   .size_bytes = kShardBytes}}});
  }
  return entries;
}

Vote light_vote(const Record& record, IndexPart part) {
  const std::uint32_t rank = record.identity.rank;
  Vote vote;
  vote.records = {run_of(rank, digest128(serialize(record)))};
  vote.index_parts = {std::move(part)};
  vote.size_bytes = record.files.front().size_bytes;
  return vote;
}

LightRanks::LightRanks(FileSystem& fs, const Clock& clock, std::string directory, const CommitPlan& plan, Medium medium,
                       std::uint32_t ranks)
    : fs_(fs),
      clock_(clock),
      directory_(std::move(directory)),
      plan_(plan),
      medium_(medium),
      ranks_(ranks),
      stores_{CountingStore(values_), CountingStore(values_), CountingStore(values_)},
      index_caches_(ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    ids_.push_back(random_id());
    part_texts_.push_back(serialize_index(light_entries(rank, ranks, plan.tensors)));
  }
}

RankRole LightRanks::role_of(std::uint32_t rank) const {
  if (rank == 0) return RankRole::kLeader;
  return rank % plan_.fan_in == 0 ? RankRole::kGroupLeader : RankRole::kMember;
}

std::unique_ptr<RankTransport> LightRanks::make_transport(RankRole role) {
  if (medium_ == Medium::kDirectory) return std::make_unique<KeyValueTransport>(fs_, clock_, directory_);
  return std::make_unique<KeyValueTransport>(stores_[static_cast<std::size_t>(role)], clock_, directory_);
}

RankTransport& LightRanks::transport_of(std::uint32_t rank) const {
  return *transports_[static_cast<std::size_t>(role_of(rank))];
}

Vote LightRanks::vote_of(std::uint32_t rank, std::uint64_t step) const {
  const std::string& text = part_texts_[rank];
  return light_vote(light_record(attempt_, step, rank), {.rank = rank, .digest = digest128(text), .text = text});
}

std::vector<std::vector<std::uint32_t>> LightRanks::by_height() const {
  std::vector<std::vector<std::uint32_t>> ranks(RankTree(0, ranks_, plan_.fan_in).levels());
  for (std::uint32_t rank = 1; rank < ranks_; ++rank)
    ranks[RankTree(rank, ranks_, plan_.fan_in).height()].push_back(rank);
  return ranks;
}

RankTransport::Member LightRanks::member(std::uint32_t rank) const { return {rank, ranks_, ids_[rank], plan_.fan_in}; }

CommitProtocol LightRanks::protocol_of(std::uint32_t rank) const {
  return CommitProtocol({.rank = rank,
                         .world = ranks_,
                         .fan_in = plan_.fan_in,
                         .timeout = kTimeLimit,
                         .files = RankFiles::of_world(ranks_)},
                        transport_of(rank), fs_, clock_);
}

Result<Rendezvous> LightRanks::rendezvous() {
  SW_ASSIGN(versions_, VersionStore::open(fs_, clock_, directory_, Log()));
  const auto at_once = [&] { return Deadline{clock_.now(), {}}; };
  const auto with_time = [&] { return Deadline{clock_.now() + kTimeLimit, {}}; };
  for (const RankRole role : {RankRole::kMember, RankRole::kGroupLeader, RankRole::kLeader})
    transports_[static_cast<std::size_t>(role)] = make_transport(role);

  // A rendezvous that ran out of time goes on where it was: rank 0 opens the session, the others join, and nobody
  // waits.
  static_cast<void>(transport_of(0).rendezvous(member(0), at_once()));
  std::vector<std::uint32_t> others;
  for (std::uint32_t rank = 1; rank < ranks_; ++rank) others.push_back(rank);
  std::vector<Cost> joins;
  SW_TRY(for_each_rank(others, joins, [&](std::uint32_t rank, Cost& cost) -> Status {
    const bool stays = rank == 1 || rank == plan_.fan_in;  // these two go on in the name of all
    const auto own = stays ? nullptr : make_transport(role_of(rank));
    RankTransport& transport = stays ? transport_of(rank) : *own;
    timed(cost, [&] { return transport.rendezvous(member(rank), at_once()); });
    return {};
  }));
  Cost gathered;
  const auto members = timed(gathered, [&] { return transport_of(0).rendezvous(member(0), with_time()); });
  if (!members) return fail(members.error());
  Cost membership;
  for (const std::uint32_t rank : {1u, plan_.fan_in}) {
    if (rank >= ranks_) continue;
    membership = {};
    SW_TRY(timed(membership, [&] { return transport_of(rank).rendezvous(member(rank), with_time()); }));
  }
  SW_ASSIGN(attempt_, versions_->attempt().claim("bench", {}, *members));
  for (CountingStore& store : stores_) static_cast<void>(store.take());
  std::ranges::sort(joins, {}, &Cost::wall_s);
  return Rendezvous{joins[joins.size() / 2].wall_s, gathered.wall_s, membership.wall_s};
}

Result<std::string> LightRanks::prepare(const VersionName& version) {
  SW_ASSIGN(std::string path, versions_->make_version(version.step));
  std::vector<std::uint32_t> all;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) all.push_back(rank);
  std::vector<Cost> ignored;
  SW_TRY(for_each_rank(all, ignored, [&](std::uint32_t rank, Cost&) {
    return write_light_record(fs_, path, light_record(attempt_, version.step, rank));
  }));
  return path;
}

// As Engine::Impl::decide_for_all().
Status LightRanks::lead(const VersionName& version, const std::string& path, Vote own, CommitCosts& costs) {
  CommitProtocol protocol = protocol_of(0);
  SW_ASSIGN(Vote votes,
            timed(costs.collect, [&] { return protocol.vote(version, path, std::move(own), index_caches_[0], {}); }));
  if (!votes.failures.empty()) return fail(ErrorKind::kAborted, describe(votes.failures), path);
  SW_ASSIGN(const auto index, timed(costs.merge, [&] {
              return index_caches_[0].merge(version.attempt, std::move(votes.index_parts), Scope::kEverybody);
            }));
  SW_ASSIGN(std::vector<RecordReference> records, references(votes, RankFiles::of_world(ranks_), path));
  Manifest manifest{.required_features = {kGlobalTensorsFeature},
                    .run = attempt_.run,
                    .step = version.step,
                    .attempt = version.attempt,
                    .world = ranks_,
                    .records = std::move(records),
                    .index_digest = index->digest,
                    .size_bytes = votes.size_bytes,
                    .tensor_count = index->tensor_count};
  const auto write = [&]() -> Status {
    SW_TRY(versions_->write_index(version, index->text));
    SW_TRY(versions_->decide(manifest));
    return {};
  };
  SW_TRY(timed(costs.decide, write));
  index_caches_[0].committed();
  costs.index_bytes = index->text.size();
  costs.manifest_bytes = serialize(manifest).size();
  return timed(costs.announce, [&] { return protocol.announce(version, {}); });
}

Status LightRanks::learn(std::uint32_t rank, const VersionName& version) {
  CommitProtocol protocol = protocol_of(rank);
  SW_ASSIGN(const auto outcome, protocol.await_outcome(version, {}));
  if (!outcome || outcome->error) return fail(ErrorKind::kInternal, "a rank did not hear of the commit", directory_);
  protocol.forget(version);
  index_caches_[rank].committed();
  return {};
}

Result<CommitCosts> LightRanks::commit(std::uint64_t step) {
  const VersionName version{step, attempt_.number};
  SW_ASSIGN(const std::string path, prepare(version));
  const std::vector<std::vector<std::uint32_t>> ranks = by_height();
  const auto cast = [&](std::uint32_t rank, Cost& cost) -> Status {
    CommitProtocol protocol = protocol_of(rank);
    Vote vote = vote_of(rank, step);
    SW_TRY(timed(cost, [&] { return protocol.vote(version, path, std::move(vote), index_caches_[rank], {}); }));
    return {};
  };
  const auto hear = [&](std::uint32_t rank, Cost& cost) -> Status {
    return timed(cost, [&] { return learn(rank, version); });
  };
  CommitCosts costs;
  SW_TRY(for_each_rank(ranks.front(), costs.votes, cast));
  for (std::size_t height = 1; height < ranks.size(); ++height)
    SW_TRY(for_each_rank(ranks[height], costs.reports.emplace_back(), cast));
  Vote own = vote_of(0, step);
  const MemoryPeak peak;
  SW_TRY(lead(version, path, std::move(own), costs));
  costs.leader_memory_bytes = peak.bytes();
  SW_TRY(for_each_rank(ranks.front(), costs.learned, hear));
  for (std::size_t height = 1; height < ranks.size(); ++height)
    SW_TRY(for_each_rank(ranks[height], costs.forwarded.emplace_back(), hear));
  return costs;
}

Result<double> LightRanks::commit_at_once(std::uint64_t step) {
  const VersionName version{step, attempt_.number};
  SW_ASSIGN(const std::string path, prepare(version));
  std::vector<Vote> votes;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) votes.push_back(vote_of(rank, step));

  std::latch ready(ranks_);
  std::mutex mutex;
  std::optional<Error> error;
  std::chrono::steady_clock::time_point began;
  const auto act = [&](std::uint32_t rank) -> Status {
    if (rank == 0) {
      CommitCosts ignored;
      return lead(version, path, std::move(votes[0]), ignored);
    }
    CommitProtocol protocol = protocol_of(rank);
    SW_TRY(protocol.vote(version, path, std::move(votes[rank]), index_caches_[rank], {}));
    return learn(rank, version);
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 1; rank < ranks_; ++rank) {
      threads.push_back(start_thread(fmt::format("bench-rank-{}", rank), [&, rank](const std::stop_token&) {
        ready.arrive_and_wait();
        if (Status done = act(rank); !done) {
          std::lock_guard lock(mutex);
          if (!error) error = std::move(done).error();
        }
      }));
    }
    ready.arrive_and_wait();
    began = std::chrono::steady_clock::now();
    if (Status done = act(0); !done) {
      std::lock_guard lock(mutex);
      if (!error) error = std::move(done).error();
    }
  }
  if (error) return fail(std::move(*error));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

Traffic LightRanks::take_traffic(RankRole role) {
  const CountingStore::Counts counts = stores_[static_cast<std::size_t>(role)].take();
  const std::uint32_t group_leaders = (ranks_ - 1) / plan_.fan_in;
  const std::uint32_t of_role = role == RankRole::kLeader        ? 1
                                : role == RankRole::kGroupLeader ? std::max(group_leaders, 1u)
                                                                 : std::max(ranks_ - 1 - group_leaders, 1u);
  const auto each = [&](std::uint64_t all) { return static_cast<double>(all) / of_role; };
  return {each(counts.calls), each(counts.values), each(counts.bytes)};
}

}  // namespace slackwater::bench
