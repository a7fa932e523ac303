// Table and JSON of `slackwater_bench backlog`.
#include <fmt/format.h>

#include "bench/backlog/measure.hpp"
#include "bench/command.hpp"
#include "cli/text.hpp"

namespace slackwater::bench {
namespace {

using cli::OrderedJson;
using cli::Table;
using enum Table::Align;

std::string microseconds(double seconds) { return fmt::format("{:.0f}", seconds * 1e6); }
std::string ratio(double value) { return fmt::format(fmt::runtime(value < 100 ? "{:.1f}" : "{:.0f}"), value); }
double mib(std::uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }
double micros(std::chrono::nanoseconds time) { return std::chrono::duration<double, std::micro>(time).count(); }

OrderedJson waits_json(const std::optional<Waits>& waits) {
  if (!waits) return nullptr;
  return {{"count", waits->count}, {"p50_s", waits->p50_s}, {"p99_s", waits->p99_s}, {"max_s", waits->max_s}};
}

}  // namespace

void print_figures(const BacklogFigures& figures) {
  const BacklogPlan& plan = figures.plan;
  fmt::print(
      "A state of {:.3g} GB leaves a simulated GPU at {:g} GB/s. Meanwhile the trainer copies 4 bytes to the host\n"
      "every few ms, as loss.item() does. The run moves 1/{:g} of the bytes ({:.0f} MB) and is {:g} times slower:\n"
      "figures are scaled back. Each copy takes the copy engine {:g} us besides its bytes. A small copy takes\n"
      "{:g} us more: the call, and the wait for its end. Small copies are timed on the simulated clock. The time\n"
      "until all is staged is this machine's, so delays of its threads count 1/{:g}.\n\n",
      plan.state_bytes / 1e9, plan.bytes_per_s / 1e9, plan.scale, static_cast<double>(figures.state_bytes) / 1e6,
      plan.slow, micros(plan.engine_time), micros(plan.call_time), plan.slow);
  Table table({kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
  table.add({"ahead MiB", "turn MiB", "small copies", "p50 us", "p99 us", "max us", "p99 / idle", "staged ms",
             "/ all at once"});
  const auto add = [&](std::string ahead, std::string turn, const std::optional<Waits>& waits, std::string staged,
                       std::string of_reference) {
    if (!waits) return table.add({ahead, turn, "0", "-", "-", "-", "-", staged, of_reference});
    table.add({ahead, turn, fmt::format("{}", waits->count), microseconds(waits->p50_s), microseconds(waits->p99_s),
               microseconds(waits->max_s), ratio(waits->p99_s / figures.idle.p50_s), staged, of_reference});
  };
  add("idle", "", figures.idle, "", "");
  for (const BacklogRow& row : figures.rows) {
    const BacklogSetting& setting = row.setting;
    add(setting.copies_ahead_bytes == 0 ? "all at once" : fmt::format("{:g}", mib(setting.copies_ahead_bytes)),
        setting.copy_turn_bytes == 0 ? "-" : fmt::format("{:g}", mib(setting.copy_turn_bytes)), row.waits,
        fmt::format("{:.1f}", row.median_staged_s * 1e3), fmt::format("{:.3f}", row.median_of_reference));
  }
  table.print(stdout, "    ");
  fmt::print(
      "\n    ahead: copies_ahead, what is queued before the fence. turn: copy_turn, what leaves before the trainer's\n"
      "    copies may pass; -: all on one stream. p99 / idle: of the median when nothing else is copied.\n");
  if (!figures.verdicts.empty()) {
    fmt::print("\nGoals, with the defaults ({})\n", setting_text(default_setting()));
    Table goals({kLeft, kRight, kRight, kLeft});
    for (const Verdict& verdict : figures.verdicts) {
      goals.add({verdict.what, fmt::format("{:.4g}", verdict.measured), fmt::format("<= {:g}", verdict.limit),
                 verdict.met() ? "met" : "MISSED"});
    }
    goals.print(stdout, "    ");
  }
  fmt::print(
      "\n{} were read back and compared: every byte is right.\n"
      "Small copies that were not counted, because the machine held the trainer up: {}.\n",
      cli::plural(figures.compared, "checkpoint"), figures.held_up);
}

OrderedJson figures_json(const BacklogFigures& figures) {
  const BacklogPlan& plan = figures.plan;
  OrderedJson json{{"bench", "backlog"},
                   {"scale", plan.scale},
                   {"slow", plan.slow},
                   {"state_bytes", plan.state_bytes},
                   {"bytes_per_s", plan.bytes_per_s},
                   {"run_bytes", figures.state_bytes},
                   {"engine_s", micros(plan.engine_time) / 1e6},
                   {"call_s", micros(plan.call_time) / 1e6},
                   {"idle", waits_json(figures.idle)},
                   {"rows", OrderedJson::array()},
                   {"checkpoints_compared", figures.compared},
                   {"held_up", figures.held_up},
                   {"verdicts", verdicts_json(figures.verdicts)}};
  for (const BacklogRow& row : figures.rows) {
    json["rows"].push_back({{"copies_ahead_bytes", row.setting.copies_ahead_bytes},
                            {"copy_turn_bytes", row.setting.copy_turn_bytes},
                            {"small_copies", waits_json(row.waits)},
                            {"staged_s", row.median_staged_s},
                            {"staged_samples_s", row.staged_s},
                            {"of_reference", row.median_of_reference}});
  }
  return json;
}

}  // namespace slackwater::bench
