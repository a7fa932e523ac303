// `slackwater_bench commit`: what a commit of many ranks costs, without a cluster. Ranks are light participants in this
// process: they have no tensors and no engine, but say, hear, read and write what a rank does, over the real protocol.
// Plain values; measure_commit() is called on one thread, and starts others.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/verdict.hpp"
#include "cli/json_output.hpp"
#include "slackwater/error.hpp"

namespace slackwater::bench {

struct CommitPlan {
  std::vector<std::uint32_t> ranks{8, 64, 512, 4096, 16384};
  std::uint32_t tensors = 240;  // each split over all ranks; at 16,384 ranks that is just below the limit of an index
  std::uint32_t fan_in = 64;
  std::uint32_t commits = 3;         // at each number of ranks, after the first; the median counts
  std::uint32_t most_at_once = 64;   // ranks, up to which all also act at the same time, each on a thread of its own
  std::uint32_t saves = 12;          // by an engine alone, and by one among `most_at_once`
  std::uint64_t shards = 1'000'000;  // of the checkpoint whose restore is planned
  std::uint32_t restoring = 64;      // ranks

  [[nodiscard]] static CommitPlan quick();
};

enum class Medium : std::uint8_t { kDirectory, kStore };
[[nodiscard]] std::string_view medium_name(Medium medium);

// What a rank hands to and gets from the store for one commit, on average.
struct Traffic {
  double calls = 0;
  double messages = 0;  // values set, and values got
  double bytes = 0;     // of them
};

struct CommitRow {
  Medium medium = Medium::kDirectory;
  std::uint32_t ranks = 0;

  // The way of a decision. Medians, seconds.
  double vote_s = 0;  // a member casts its ballot
  double report_s =
      0;  // group leaders hear their groups, read records, and report, up the tree; 0 where there is one group
  double collect_s = 0;  // the leader does the same, and hears the group leaders
  double merge_s = 0;    // one index out of all parts
  double decide_s = 0;   // index and manifest, written and synced
  double announce_s = 0;
  double learn_s = 0;  // a member hears of it
  [[nodiscard]] double path_s() const {
    return vote_s + report_s + collect_s + merge_s + decide_s + announce_s + learn_s;
  }
  double at_once_s = 0;  // all of it, every rank on a thread of its own; 0 where there are too many

  double total_cpu_s = 0;  // of all ranks
  double member_cpu_s = 0;
  double group_leader_cpu_s = 0;  // of those who hear most
  double leader_cpu_s = 0;

  std::uint64_t index_bytes = 0;
  std::uint64_t manifest_bytes = 0;
  std::uint64_t leader_memory_bytes = 0;  // at the first commit: more than before it began to collect, at most

  // kStore only: the directory carries the same messages as files.
  Traffic member;
  Traffic group_leader;
  Traffic leader;

  // The first commit of a run, in which every rank sends its part of the index; later ones only name it.
  double first_path_s = 0;
  double first_total_cpu_s = 0;
  double first_leader_cpu_s = 0;
  Traffic first_leader;

  // Once a run.
  double join_s = 0;        // a member
  double rendezvous_s = 0;  // rank 0, when all have joined
  double membership_s = 0;  // a member reads who is there
};

struct SaveRow {
  std::uint32_t ranks = 1;
  double save_s = 0;  // inside save(), median
  double cpu_s = 0;   // of the trainer's thread, in it
};

struct RestorePlanRow {
  std::uint64_t shards = 0;
  std::uint32_t ranks = 0;       // that restore
  double index_s = 0;            // to read the index
  double plan_s = 0;             // for the whole of what one rank wants
  std::uint64_t reads = 0;       // pieces it reads
  std::uint64_t size_bytes = 0;  // of them
};

struct CommitFigures {
  CommitPlan plan;
  std::vector<CommitRow> commits;
  std::vector<SaveRow> saves;
  std::vector<RestorePlanRow> restores;
  std::vector<Verdict> verdicts;
};

// `directory`: of its own, empty.
[[nodiscard]] Result<CommitFigures> measure_commit(const std::string& directory, const CommitPlan& plan,
                                                   const std::function<void(const std::string&)>& on_run);
// Parts of it.
[[nodiscard]] Result<CommitRow> measure_ranks(const std::string& directory, const CommitPlan& plan, Medium medium,
                                              std::uint32_t ranks);
[[nodiscard]] Result<RestorePlanRow> measure_restore_plan(const CommitPlan& plan);
[[nodiscard]] Result<SaveRow> measure_saves(const std::string& directory, const CommitPlan& plan, std::uint32_t ranks);

void print_figures(const CommitFigures& figures);
[[nodiscard]] cli::OrderedJson figures_json(const CommitFigures& figures);

}  // namespace slackwater::bench
