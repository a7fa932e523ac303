#include "bench/commit/measure.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "bench/commit/light_ranks.hpp"
#include "bench/statistics.hpp"

namespace slackwater::bench {
namespace {

// The goals of issue 5.
constexpr std::uint32_t kGoalRanks = 64;
constexpr double kGoalCommitS = 0.050;
constexpr double kNoFaster = 1.25;  // than it may grow: two runs of the same differ by so much

double middle_of(const std::vector<Cost>& costs, double Cost::* part) {
  if (costs.empty()) return 0;
  std::vector<double> values;
  values.reserve(costs.size());
  for (const Cost& cost : costs) values.push_back(cost.*part);
  return median(std::move(values));
}

double sum_of(const std::vector<Cost>& costs) {
  double sum = 0;
  for (const Cost& cost : costs) sum += cost.cpu_s;
  return sum;
}

double sum_of(const std::vector<std::vector<Cost>>& by_height) {
  double sum = 0;
  for (const std::vector<Cost>& costs : by_height) sum += sum_of(costs);
  return sum;
}

double leader_cpu(const CommitCosts& costs) {
  return costs.collect.cpu_s + costs.merge.cpu_s + costs.decide.cpu_s + costs.announce.cpu_s;
}

// Of several commits, the median of each figure.
void summarise(const std::vector<CommitCosts>& commits, CommitRow& row) {
  const auto of_all = [&](const auto& figure) {
    std::vector<double> values;
    for (const CommitCosts& costs : commits) values.push_back(static_cast<double>(figure(costs)));
    return median(std::move(values));
  };
  row.vote_s = of_all([](const CommitCosts& costs) { return middle_of(costs.votes, &Cost::wall_s); });
  row.report_s = of_all([](const CommitCosts& costs) {
    double way = 0;  // one after the other, up the tree
    for (const std::vector<Cost>& reports : costs.reports) way += middle_of(reports, &Cost::wall_s);
    return way;
  });
  row.collect_s = of_all([](const CommitCosts& costs) { return costs.collect.wall_s; });
  row.merge_s = of_all([](const CommitCosts& costs) { return costs.merge.wall_s; });
  row.decide_s = of_all([](const CommitCosts& costs) { return costs.decide.wall_s; });
  row.announce_s = of_all([](const CommitCosts& costs) { return costs.announce.wall_s; });
  row.learn_s = of_all([](const CommitCosts& costs) { return middle_of(costs.learned, &Cost::wall_s); });
  row.member_cpu_s = of_all([](const CommitCosts& costs) {
    return middle_of(costs.votes, &Cost::cpu_s) + middle_of(costs.learned, &Cost::cpu_s);
  });
  row.group_leader_cpu_s = of_all([](const CommitCosts& costs) {
    double most = 0;
    for (std::size_t i = 0; i < costs.reports.size(); ++i)
      most = std::max(most, middle_of(costs.reports[i], &Cost::cpu_s) + middle_of(costs.forwarded[i], &Cost::cpu_s));
    return most;
  });
  row.leader_cpu_s = of_all(leader_cpu);
  row.total_cpu_s = of_all([](const CommitCosts& costs) {
    return sum_of(costs.votes) + sum_of(costs.reports) + sum_of(costs.learned) + sum_of(costs.forwarded) +
           leader_cpu(costs);
  });
}

const CommitRow* row_of(const CommitFigures& figures, Medium medium, std::uint32_t ranks) {
  const auto found = std::ranges::find_if(
      figures.commits, [&](const CommitRow& row) { return row.medium == medium && row.ranks == ranks; });
  return found == figures.commits.end() ? nullptr : &*found;
}

// From `few` ranks to `many`.
void judge_growth(CommitFigures& figures, Medium medium, std::uint32_t few, std::uint32_t many) {
  const CommitRow* small = row_of(figures, medium, few);
  const CommitRow* large = row_of(figures, medium, many);
  if (small == nullptr || large == nullptr || few >= many) return;
  const double n = static_cast<double>(many) / few;
  const double log_n = std::log2(static_cast<double>(many)) / std::log2(static_cast<double>(few));
  const auto judge = [&](const char* what, double before, double after, double may_grow) {
    if (before <= 0) return;
    figures.verdicts.push_back({fmt::format("{}, {} to {} ranks: {}", medium_name(medium), few, many, what),
                                after / before, may_grow * kNoFaster});
  };
  judge("CPU of all ranks grows, at most as N", small->total_cpu_s, large->total_cpu_s, n);
  judge("CPU of all ranks at the first commit grows, at most as N", small->first_total_cpu_s, large->first_total_cpu_s,
        n);
  judge("CPU of a member grows, at most as log N", small->member_cpu_s, large->member_cpu_s, log_n);
  judge("CPU of a group leader grows, at most as log N", small->group_leader_cpu_s, large->group_leader_cpu_s, log_n);
  judge("messages of a member grow, at most as log N", small->member.messages, large->member.messages, log_n);
  judge("messages of a group leader grow, at most as log N", small->group_leader.messages, large->group_leader.messages,
        log_n);
  judge("messages of the leader grow, at most as log N", small->leader.messages, large->leader.messages, log_n);
}

void judge(CommitFigures& figures) {
  for (const Medium medium : {Medium::kDirectory, Medium::kStore}) {
    if (const CommitRow* row = row_of(figures, medium, kGoalRanks)) {
      figures.verdicts.push_back(
          {fmt::format("{}, {} ranks: seconds until the last rank knows, all at once", medium_name(medium), kGoalRanks),
           row->at_once_s, kGoalCommitS});
    }
    // Where there are several groups: before that a rank has no group leaders to hear.
    const auto [few, many] = std::ranges::minmax(figures.plan.ranks);
    judge_growth(figures, medium, std::max(few, 8 * figures.plan.fan_in), many);
  }
  if (figures.saves.size() == 2) {
    figures.verdicts.push_back({fmt::format("seconds that save() takes longer among {} ranks", figures.saves[1].ranks),
                                figures.saves[1].save_s - figures.saves[0].save_s, 0.0005});
  }
}

}  // namespace

CommitPlan CommitPlan::quick() {
  CommitPlan plan;
  plan.ranks = {4, 32};
  plan.tensors = 20;
  plan.fan_in = 8;
  plan.commits = 1;
  plan.most_at_once = 8;
  plan.saves = 3;
  plan.shards = 10'000;
  plan.restoring = 4;
  return plan;
}

std::string_view medium_name(Medium medium) {
  switch (medium) {
    case Medium::kDirectory: return "directory";
    case Medium::kStore: return "store";
  }
  return "unknown";
}

Result<CommitRow> measure_ranks(const std::string& directory, const CommitPlan& plan, Medium medium,
                                std::uint32_t ranks) {
  const auto fs = make_posix_file_system();
  const SystemClock clock;
  LightRanks light(*fs, clock, directory, plan, medium, ranks);
  CommitRow row{.medium = medium, .ranks = ranks};
  SW_ASSIGN(const Rendezvous rendezvous, light.rendezvous());
  row.join_s = rendezvous.join_s;
  row.rendezvous_s = rendezvous.rendezvous_s;
  row.membership_s = rendezvous.membership_s;

  std::uint64_t step = 0;
  SW_ASSIGN(const CommitCosts first, light.commit(++step));
  row.index_bytes = first.index_bytes;
  row.manifest_bytes = first.manifest_bytes;
  row.leader_memory_bytes = first.leader_memory_bytes;
  row.first_leader = light.take_traffic(RankRole::kLeader);
  static_cast<void>(light.take_traffic(RankRole::kGroupLeader));
  static_cast<void>(light.take_traffic(RankRole::kMember));
  summarise({first}, row);
  row.first_path_s = row.path_s();
  row.first_total_cpu_s = row.total_cpu_s;
  row.first_leader_cpu_s = row.leader_cpu_s;

  std::vector<CommitCosts> commits;
  for (std::uint32_t i = 0; i < plan.commits; ++i) {
    SW_ASSIGN(CommitCosts costs, light.commit(++step));
    commits.push_back(std::move(costs));
    row.member = light.take_traffic(RankRole::kMember);
    row.group_leader = light.take_traffic(RankRole::kGroupLeader);
    row.leader = light.take_traffic(RankRole::kLeader);
  }
  summarise(commits, row);
  if (ranks <= plan.most_at_once) {
    std::vector<double> seconds;
    for (std::uint32_t i = 0; i < plan.commits * 3; ++i) {
      SW_ASSIGN(const double taken, light.commit_at_once(++step));
      seconds.push_back(taken);
    }
    row.at_once_s = median(std::move(seconds));
  }
  return row;
}

Result<CommitFigures> measure_commit(const std::string& directory, const CommitPlan& plan,
                                     const std::function<void(const std::string&)>& on_run) {
  CommitFigures figures{.plan = plan, .commits = {}, .saves = {}, .restores = {}, .verdicts = {}};
  // A place for each, which goes with the whole: file systems are slow to make files where many were just removed.
  auto place = [&, number = 0]() mutable { return fmt::format("{}/run-{}", directory, ++number); };
  for (const std::uint32_t ranks : plan.ranks) {
    for (const Medium medium : {Medium::kDirectory, Medium::kStore}) {
      on_run(fmt::format("{} ranks, {}", ranks, medium_name(medium)));
      SW_ASSIGN(CommitRow row, measure_ranks(place(), plan, medium, ranks));
      figures.commits.push_back(row);
    }
  }
  for (const std::uint32_t ranks : {1u, plan.most_at_once}) {
    on_run(fmt::format("save() as one of {}", ranks));
    SW_ASSIGN(const SaveRow row, measure_saves(place(), plan, ranks));
    figures.saves.push_back(row);
  }
  on_run("the plan to restore");
  SW_ASSIGN(const RestorePlanRow restore, measure_restore_plan(plan));
  figures.restores.push_back(restore);
  judge(figures);
  return figures;
}

}  // namespace slackwater::bench
