// Tables and JSON of `slackwater_bench lazy`.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "bench/command.hpp"
#include "bench/lazy/measure.hpp"
#include "cli/text.hpp"

namespace slackwater::bench {
namespace {

using cli::OrderedJson;
using cli::plural;
using cli::Table;
using enum Table::Align;

std::string number(double value) {
  if (value == 0) return "0";
  if (std::abs(value) >= 100) return fmt::format("{:.0f}", value);
  if (std::abs(value) >= 1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}

std::string percent(double share) { return fmt::format("{:.2f} %", share * 100); }

// Which of the paper's systems a way stands beside.
std::optional<PaperSystem> beside(Way way) {
  switch (way) {
    case Way::kNone: return std::nullopt;
    case Way::kBlocking: return PaperSystem::kDeepSpeed;
    case Way::kCopyThenFlush: return PaperSystem::kAsyncCopy;
    case Way::kChunked: return PaperSystem::kTorchSnapshot;
    case Way::kLazyHostFence:
    case Way::kLazyDeviceFence: return PaperSystem::kDataStates;
  }
  return std::nullopt;
}

std::string scale_text(const Scale& scale) {
  return fmt::format("bytes and bandwidths 1/{:g} of the paper's, all times 1/{:g} (and the bytes 1/{:g} once more)",
                     scale.bytes, scale.time, scale.time);
}

void print_blocked(const LazyFigures& figures) {
  fmt::print("\n(a) Blocked time per checkpoint, one at every iteration, 5 iterations; {}.\n",
             scale_text(figures.plan.blocked_scale));
  for (const DiskSpeed disk : kDisks) {
    fmt::print("\n    {}\n", disk_name(disk));
    Table table({kLeft, kLeft, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
    table.add({"model", "strategy", "blocked s", "paper", "GB/s", "paper", "iteration s", "paper", "CPU"});
    for (const BlockedRow& row : figures.blocked) {
      if (row.disk != disk) continue;
      const PaperSystem system = *beside(row.way);
      const auto index = static_cast<std::size_t>(system);
      table.add({std::string(row.model->name), std::string(way_name(row.way)), number(row.median_blocked_s),
                 number(row.model->paper_blocked_s(system)), number(row.gb_per_s()), number(row.model->gb_per_s[index]),
                 number(row.iteration_s), number(row.model->iteration_s[index]), percent(row.cpu_share)});
    }
    table.print(stdout, "    ");
  }
  fmt::print(
      "\n    blocked: inside save(), plus the time the update began late; median of all checkpoints. GB/s: checkpoint "
      "of all GPUs / "
      "blocked time.\n    CPU: CPU time of save() and fence() on the trainer's thread / iteration, at the scale of the "
      "run "
      "(at the paper's: 1/{:g} of it).\n    While everything waited for {:.1f} s the whole process used {:.1f} ms of "
      "CPU; waits that "
      "would spin: {}.\n",
      figures.plan.blocked_scale.time, figures.spin.waited_s, figures.spin.cpu_s * 1e3, figures.spin.spinning_waits);
}

const TrainRow* find_row(const LazyFigures& figures, std::string_view model, DiskSpeed disk, Way way, unsigned every) {
  const auto found = std::ranges::find_if(figures.train, [&](const TrainRow& row) {
    return row.model->name == model && row.way == way && row.every == every && (row.disk == disk || every == 0);
  });
  return found == figures.train.end() ? nullptr : &*found;
}

void print_training(const LazyFigures& figures) {
  const LazyPlan& plan = figures.plan;
  fmt::print(
      "\n(b) {} iterations, seconds (in brackets: the paper, {} iterations); {}.\n    Up to {} runs at once, each on a "
      "GPU "
      "of its own; a checkpoint at every iteration with the device fence alone, median of {}.\n",
      plan.run_iterations, kPaperIterations, scale_text(plan.run_scale), plan.runs_at_once, plan.repeats);
  for (const std::string_view name : plan.run_models) {
    const TrainRow* plain = find_row(figures, name, DiskSpeed::kOfThisMachine, Way::kNone, 0);
    const PaperModel& model = paper_model(name);
    for (const DiskSpeed disk : kDisks) {
      fmt::print("\n    {}, {}; without checkpoints {} s; a checkpoint every so many iterations:\n", name,
                 disk_name(disk), number(plain->train_s));
      std::vector<Table::Align> columns{kLeft};
      std::vector<std::string> head{"strategy"};
      for (const unsigned every : plan.intervals) {
        columns.push_back(kRight);
        head.push_back(fmt::format("{}", every));
      }
      Table table(columns);
      table.add(head);
      for (const Way way :
           {Way::kBlocking, Way::kCopyThenFlush, Way::kChunked, Way::kLazyHostFence, Way::kLazyDeviceFence}) {
        std::vector<std::string> cells{std::string(way_name(way))};
        const auto& paper = model.runs->seconds[static_cast<std::size_t>(*beside(way))];
        for (const unsigned every : plan.intervals) {
          const TrainRow* row = find_row(figures, name, disk, way, every);
          const auto at = static_cast<std::size_t>(std::ranges::find(kPaperIntervals, every) - kPaperIntervals.begin());
          cells.push_back(fmt::format("{} ({:.0f})", row == nullptr ? "-" : number(row->train_s), paper[at]));
        }
        table.add(std::move(cells));
      }
      table.print(stdout, "    ");
    }
  }
}

void print_pool(const LazyFigures& figures) {
  fmt::print(
      "\n(c) Blocked time per checkpoint by the size of the pool, lazy with device fence, {}; {}.\n"
      "    predicted: (state - pool) / bandwidth - (forward + backward)\n",
      disk_name(DiskSpeed::kPaper), scale_text(figures.plan.pool_scale));
  Table table({kLeft, kRight, kRight, kRight, kRight});
  table.add({"model", "every", "pool / state", "blocked s", "predicted s"});
  for (const PoolRow& row : figures.pool) {
    table.add({std::string(row.model->name), fmt::format("{}", row.every), fmt::format("{:g}", row.pool_share),
               number(row.median_blocked_s), number(row.predicted_s)});
  }
  table.print(stdout, "    ");
}

void print_verdicts(const LazyFigures& figures) {
  if (figures.verdicts.empty()) return;
  fmt::print("\nGoals\n");
  Table table({kLeft, kRight, kRight, kLeft});
  for (const Verdict& verdict : figures.verdicts) {
    table.add({verdict.what, fmt::format("{:.4g}", verdict.measured), fmt::format("<= {:g}", verdict.limit),
               verdict.met() ? "met" : "MISSED"});
  }
  table.print(stdout, "    ");
}

OrderedJson scale_json(const Scale& scale) { return {{"bytes", scale.bytes}, {"time", scale.time}}; }

std::string_view disk_key(DiskSpeed disk) { return disk == DiskSpeed::kPaper ? "paper" : "this_machine"; }

OrderedJson blocked_json(const BlockedRow& row) {
  const PaperSystem system = *beside(row.way);
  return {{"model", row.model->name},
          {"disk", disk_key(row.disk)},
          {"strategy", way_key(row.way)},
          {"state_bytes", row.state_bytes},
          {"blocked_s", row.median_blocked_s},
          {"blocked_samples_s", row.blocked_s},
          {"gb_per_s", row.gb_per_s()},
          {"iteration_s", row.iteration_s},
          {"cpu_share", row.cpu_share},
          {"calls_share", row.calls_share},
          {"checkpoints_compared", row.compared},
          {"host_fences", row.host_fences},
          {"device_fences", row.device_fences},
          {"committed_after_s", row.committed_s},
          {"paper",
           {{"blocked_s", row.model->paper_blocked_s(system)},
            {"gb_per_s", row.model->gb_per_s[static_cast<std::size_t>(system)]},
            {"iteration_s", row.model->iteration_s[static_cast<std::size_t>(system)]}}}};
}

OrderedJson train_json(const TrainRow& row) {
  OrderedJson json{{"model", row.model->name},
                   {"disk", disk_key(row.disk)},
                   {"strategy", way_key(row.way)},
                   {"every", row.every},
                   {"train_s", row.train_s},
                   {"complete_s", row.complete_s},
                   {"checkpoint_bytes", row.checkpoint_bytes},
                   {"checkpoints_compared", row.compared}};
  if (const auto system = beside(row.way)) {
    const auto at = static_cast<std::size_t>(std::ranges::find(kPaperIntervals, row.every) - kPaperIntervals.begin());
    json["paper_s"] = row.model->runs->seconds[static_cast<std::size_t>(*system)][at];
  }
  return json;
}

}  // namespace

void print_figures(const LazyFigures& figures) {
  fmt::print(
      "Real engine and real disk, simulated GPU: forward, backward and update are timed work on it, and the update "
      "rewrites the state.\n"
      "Models of other systems are models: their strategy on the same calls, without checksums, syncs or a commit.\n"
      "Models, sizes per GPU and times of the paper (DataStates-LLM, HPDC'24); figures below are scaled back to its "
      "size.\n");
  if (!figures.blocked.empty()) print_blocked(figures);
  if (!figures.train.empty()) print_training(figures);
  if (!figures.pool.empty()) print_pool(figures);
  print_verdicts(figures);
  fmt::print(
      "\n{} of the engine were read back and compared with the state of before the update: every byte is right.\n",
      plural(figures.compared, "checkpoint"));
  if (figures.late_runs > 0) {
    fmt::print(
        "In {} of {} the simulated GPU fell far behind its own clock, because others were using the machine: do not "
        "trust these "
        "figures, run them again when it is quiet.\n",
        figures.late_runs, plural(figures.runs, "run"));
  }
}

OrderedJson figures_json(const LazyFigures& figures) {
  OrderedJson json{{"bench", "lazy"},
                   {"iterations", figures.plan.run_iterations},
                   {"checkpoints_compared", figures.compared},
                   {"runs", figures.runs},
                   {"late_runs", figures.late_runs},
                   {"scale",
                    {{"a", scale_json(figures.plan.blocked_scale)},
                     {"b", scale_json(figures.plan.run_scale)},
                     {"c", scale_json(figures.plan.pool_scale)}}},
                   {"blocked", OrderedJson::array()},
                   {"train", OrderedJson::array()},
                   {"pool", OrderedJson::array()},
                   {"spin",
                    {{"waited_s", figures.spin.waited_s},
                     {"cpu_s", figures.spin.cpu_s},
                     {"spinning_waits", figures.spin.spinning_waits}}},
                   {"verdicts", verdicts_json(figures.verdicts)}};
  for (const BlockedRow& row : figures.blocked) json["blocked"].push_back(blocked_json(row));
  for (const TrainRow& row : figures.train) json["train"].push_back(train_json(row));
  for (const PoolRow& row : figures.pool) {
    json["pool"].push_back({{"model", row.model->name},
                            {"every", row.every},
                            {"pool_share", row.pool_share},
                            {"blocked_s", row.median_blocked_s},
                            {"predicted_s", row.predicted_s},
                            {"checkpoints_compared", row.compared}});
  }
  return json;
}

}  // namespace slackwater::bench
