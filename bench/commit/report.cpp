// Tables and JSON of `slackwater_bench commit`.
#include <fmt/format.h>

#include "base/units.hpp"
#include "bench/command.hpp"
#include "bench/commit/measure.hpp"
#include "cli/text.hpp"

namespace slackwater::bench {
namespace {

using cli::OrderedJson;
using cli::Table;

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return ms >= 100 ? fmt::format("{:.0f}", ms) : fmt::format("{:.2f}", ms);
}

std::string thousands(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::ptrdiff_t at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

void print_path(const CommitFigures& figures) {
  using enum Table::Align;
  fmt::print(
      "(a) The way of a decision, ms: each call alone, median; {} tensors split over all ranks, groups of {}.\n\n",
      figures.plan.tensors, figures.plan.fan_in);
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
  table.add({"medium", "ranks", "vote", "report", "collect", "merge", "decide", "announce", "learn", "in all",
             "at once", "the first"});
  for (const CommitRow& row : figures.commits) {
    table.add({std::string(medium_name(row.medium)), thousands(row.ranks), milliseconds(row.vote_s),
               row.report_s > 0 ? milliseconds(row.report_s) : "-", milliseconds(row.collect_s),
               milliseconds(row.merge_s), milliseconds(row.decide_s), milliseconds(row.announce_s),
               milliseconds(row.learn_s), milliseconds(row.path_s()),
               row.at_once_s > 0 ? milliseconds(row.at_once_s) : "-", milliseconds(row.first_path_s)});
  }
  table.print(stdout, "    ");
  fmt::print(
      "\n    vote: a member casts its ballot. report: group leaders hear their groups, read records, report, level by "
      "level. collect: the leader does the same.\n"
      "    merge: one index of all parts. decide: index and manifest, written and synced. learn: a member hears of "
      "it.\n"
      "    at once: measured from the votes until the last rank knows, a thread for each rank. the first: of a run, in "
      "all; its ballots carry the index.\n");
}

void print_cost(const CommitFigures& figures) {
  using enum Table::Align;
  fmt::print("\n(b) What it costs: CPU in ms (in brackets: the first commit of a run), memory and files.\n\n");
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
  table.add({"medium", "ranks", "a member", "a group leader", "the leader", "all ranks", "index", "manifest",
             "leader memory"});
  const auto both = [](double usual_s, double first_s) {
    return fmt::format("{} ({})", milliseconds(usual_s), milliseconds(first_s));
  };
  for (const CommitRow& row : figures.commits) {
    table.add({std::string(medium_name(row.medium)), thousands(row.ranks), milliseconds(row.member_cpu_s),
               row.group_leader_cpu_s > 0 ? milliseconds(row.group_leader_cpu_s) : "-",
               both(row.leader_cpu_s, row.first_leader_cpu_s), both(row.total_cpu_s, row.first_total_cpu_s),
               format_bytes(row.index_bytes), format_bytes(row.manifest_bytes), format_bytes(row.leader_memory_bytes)});
  }
  table.print(stdout, "    ");
}

std::string traffic_text(const Traffic& traffic) {
  if (traffic.calls == 0) return "-";
  return fmt::format("{:.1f} / {:.1f} / {}", traffic.messages, traffic.calls,
                     format_bytes(static_cast<std::uint64_t>(traffic.bytes)));
}

void print_traffic(const CommitFigures& figures) {
  using enum Table::Align;
  fmt::print(
      "\n(c) Messages / calls / bytes a rank and commit over the store; as files in a directory they are the same "
      "messages.\n    The last three: once a run, ms.\n\n");
  Table table({kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
  table.add({"ranks", "a member", "a group leader", "the leader", "at the first commit", "join", "gather",
             "read the membership"});
  for (const CommitRow& row : figures.commits) {
    if (row.medium != Medium::kStore) continue;
    table.add({thousands(row.ranks), traffic_text(row.member), traffic_text(row.group_leader), traffic_text(row.leader),
               traffic_text(row.first_leader), milliseconds(row.join_s), milliseconds(row.rendezvous_s),
               milliseconds(row.membership_s)});
  }
  table.print(stdout, "    ");
}

void print_trainer(const CommitFigures& figures) {
  fmt::print("\n(d) The trainer's thread: save() of 64 tensors, 16 MiB.\n\n");
  for (const SaveRow& row : figures.saves)
    fmt::print("    as one of {:>3}: {} ms, of that {} ms of CPU\n", row.ranks, milliseconds(row.save_s),
               milliseconds(row.cpu_s));
  fmt::print("    save() says nothing to other ranks and waits for none: that is for sw-plan and sw-commit.\n");
}

void print_restores(const CommitFigures& figures) {
  fmt::print("\n(e) The plan to restore.\n\n");
  for (const RestorePlanRow& row : figures.restores)
    fmt::print("    {} shards on {} ranks: index read in {}, one rank's plan of {} reads ({}) made in {}\n",
               thousands(static_cast<double>(row.shards)), row.ranks, format_seconds(row.index_s),
               thousands(static_cast<double>(row.reads)), format_bytes(row.size_bytes), format_seconds(row.plan_s));
}

OrderedJson traffic_json(const Traffic& traffic) {
  return {{"messages", traffic.messages}, {"calls", traffic.calls}, {"bytes", traffic.bytes}};
}

OrderedJson commit_json(const CommitRow& row) {
  OrderedJson json{{"medium", medium_name(row.medium)},
                   {"ranks", row.ranks},
                   {"vote_s", row.vote_s},
                   {"report_s", row.report_s},
                   {"collect_s", row.collect_s},
                   {"merge_s", row.merge_s},
                   {"decide_s", row.decide_s},
                   {"announce_s", row.announce_s},
                   {"learn_s", row.learn_s},
                   {"path_s", row.path_s()},
                   {"at_once_s", row.at_once_s},
                   {"first_path_s", row.first_path_s},
                   {"first_total_cpu_s", row.first_total_cpu_s},
                   {"first_leader_cpu_s", row.first_leader_cpu_s},
                   {"total_cpu_s", row.total_cpu_s},
                   {"member_cpu_s", row.member_cpu_s},
                   {"group_leader_cpu_s", row.group_leader_cpu_s},
                   {"leader_cpu_s", row.leader_cpu_s},
                   {"index_bytes", row.index_bytes},
                   {"manifest_bytes", row.manifest_bytes},
                   {"leader_memory_bytes", row.leader_memory_bytes},
                   {"join_s", row.join_s},
                   {"rendezvous_s", row.rendezvous_s},
                   {"membership_s", row.membership_s}};
  if (row.medium == Medium::kStore) {
    json["member"] = traffic_json(row.member);
    json["group_leader"] = traffic_json(row.group_leader);
    json["leader"] = traffic_json(row.leader);
    json["first_leader"] = traffic_json(row.first_leader);
  }
  return json;
}

}  // namespace

void print_figures(const CommitFigures& figures) {
  fmt::print(
      "Light participants in one process, the real protocol, a real directory. What a rank writes for its own part is "
      "not "
      "counted.\n\n");
  print_path(figures);
  print_cost(figures);
  print_traffic(figures);
  print_trainer(figures);
  if (!figures.restores.empty()) print_restores(figures);
  if (figures.verdicts.empty()) return;
  using enum Table::Align;
  fmt::print("\nGoals\n\n");
  Table table({kLeft, kLeft, kRight, kRight});
  for (const Verdict& verdict : figures.verdicts) {
    table.add({verdict.met() ? "met" : "MISSED", verdict.what, fmt::format("{:.3g}", verdict.measured),
               fmt::format("(at most {:.3g})", verdict.limit)});
  }
  table.print(stdout, "    ");
}

OrderedJson figures_json(const CommitFigures& figures) {
  OrderedJson json{{"bench", "commit"},
                   {"tensors", figures.plan.tensors},
                   {"fan_in", figures.plan.fan_in},
                   {"commits", OrderedJson::array()},
                   {"saves", OrderedJson::array()},
                   {"restores", OrderedJson::array()},
                   {"verdicts", verdicts_json(figures.verdicts)}};
  for (const CommitRow& row : figures.commits) json["commits"].push_back(commit_json(row));
  for (const SaveRow& row : figures.saves)
    json["saves"].push_back({{"ranks", row.ranks}, {"save_s", row.save_s}, {"cpu_s", row.cpu_s}});
  for (const RestorePlanRow& row : figures.restores) {
    json["restores"].push_back({{"shards", row.shards},
                                {"ranks", row.ranks},
                                {"index_s", row.index_s},
                                {"plan_s", row.plan_s},
                                {"reads", row.reads},
                                {"size_bytes", row.size_bytes}});
  }
  return json;
}

}  // namespace slackwater::bench
