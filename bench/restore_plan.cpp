// What a rank does before it reads its share of 1,000,000 boxes: it parses the text of the index, finds the boxes of
// its targets, and plans the reads. No file is touched.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "benchmarks.hpp"
#include "layout/data_file.hpp"
#include "restore/index_view.hpp"
#include "restore/read_plan.hpp"
#include "version/index.hpp"

namespace slackwater::bench {
namespace {

constexpr std::uint32_t kReaders = 64;  // ranks that restore; one of them plans here
constexpr std::uint64_t kBoxBytes = 4u << 20;

// A state as many ranks saved it: each tensor a grid of boxes, box after box on rank after rank.
struct Grid {
  const char* name;
  std::int64_t tensors, rows, columns;  // of boxes
  std::int64_t box_rows, box_columns;   // of float32
  bool by_columns;                      // how the readers cut it
};

struct Planned {
  double parse_seconds = 0;
  double plan_seconds = 0;
  double index_bytes = 0;
  double boxes = 0;  // with wanted bytes
  double reads = 0;
};

std::vector<IndexEntry> index_entries(const Grid& grid) {
  std::vector<IndexEntry> entries;
  std::uint64_t number = 0;
  for (std::int64_t tensor = 0; tensor < grid.tensors; ++tensor) {
    IndexEntry& entry = entries.emplace_back();
    entry.name = fmt::format("model.layers.{}.weight", tensor);
    entry.dtype = DType::kF32;
    entry.shape = {grid.rows * grid.box_rows, grid.columns * grid.box_columns};
    const std::uint64_t size_bytes = static_cast<std::uint64_t>(grid.box_rows * grid.box_columns) * 4;
    for (std::int64_t row = 0; row < grid.rows; ++row) {
      for (std::int64_t column = 0; column < grid.columns; ++column, ++number) {
        constexpr std::uint64_t kWriters = 16'384;
        entry.shards.push_back({.box_offset = {row * grid.box_rows, column * grid.box_columns},
                                .box_shape = {grid.box_rows, grid.box_columns},
                                .file = data_file(static_cast<std::uint32_t>(number % kWriters), 0),
                                .offset = 4096 + number / kWriters * size_bytes,
                                .size_bytes = size_bytes});
      }
    }
  }
  return entries;
}

// The share of a reader in the middle. Nothing is placed, so the memory needs only an address.
std::vector<Target> share_of(const std::vector<TensorInfo>& tensors, bool by_columns, std::byte* memory) {
  std::vector<Target> targets;
  for (const TensorInfo& tensor : tensors) {
    const std::size_t d = by_columns ? 1 : 0;
    Target& target = targets.emplace_back(
        Target{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .strides = {}, .data = memory});
    target.shard = Shard{.global_shape = tensor.shape, .offset = {0, 0}, .replica_group = {}};
    target.shape[d] = tensor.shape[d] / kReaders;
    target.shard->offset[d] = target.shape[d] * (kReaders / 2);
  }
  return targets;
}

Result<Planned> plan_once(const Grid& grid, const std::string& text) {
  Planned planned{.index_bytes = static_cast<double>(text.size())};
  const Stopwatch parsing;
  SW_ASSIGN(std::vector<IndexEntry> entries, parse_index(text, "index"));
  SW_ASSIGN(const IndexView view, view_index(std::move(entries), 16'384, Viewer{kReaders / 2, kReaders}, "index"));
  planned.parse_seconds = parsing.seconds();

  std::byte memory{};
  const std::vector<Target> targets = share_of(view.tensors, grid.by_columns, &memory);
  std::vector<ReadFile> files;
  for (const FileInfoOnTier& file : view.files) files.push_back({file.name, file.size_bytes, {}});
  const Stopwatch planning;
  SW_ASSIGN(const ReadPlan plan, ReadPlan::make(view.tensors, targets));
  planned.reads = static_cast<double>(plan.units(files, kBoxBytes).size());
  planned.plan_seconds = planning.seconds();
  planned.boxes = static_cast<double>(plan.stored().size());
  return planned;
}

}  // namespace

Result<Report> restore_plan(const Settings& settings) {
  const std::int64_t scale = settings.quick ? 10 : 1;
  const Grid grids[] = {
      {"10,000 tensors in 100 boxes of rows", 10'000 / scale, 100, 1, 64, 1024, false},
      {"the same, wanted by columns", 10'000 / scale, 100, 1, 64, 1024, true},
      {"one tensor in 1,000 x 1,000 boxes", 1, 1000 / scale, 1000, 64, 64, false},
  };
  Report report{.benchmark = "restore_plan",
                .setup = {{"boxes", 1'000'000 / scale}, {"saved_by", 16'384}, {"restored_by", kReaders}},
                .lines = {}};
  for (const Grid& grid : grids) {
    const std::string text = serialize_index(index_entries(grid));
    Line parse{.name = fmt::format("{}: index read", grid.name), .unit = "ms", .samples = {}, .goal = {}};
    Line plan{.name = fmt::format("{}: share planned", grid.name), .unit = "ms", .samples = {}, .goal = {}};
    Planned last;
    for (unsigned run = 0; run < std::max(settings.pairs / 4, 3u); ++run) {
      SW_ASSIGN(last, plan_once(grid, text));
      parse.samples.push_back(last.parse_seconds * 1e3);
      plan.samples.push_back(last.plan_seconds * 1e3);
    }
    report.setup["grids"].push_back(
        {{"what", grid.name}, {"index_bytes", last.index_bytes}, {"boxes_wanted", last.boxes}, {"reads", last.reads}});
    report.lines.push_back(std::move(parse));
    report.lines.push_back(std::move(plan));
  }
  return report;
}

}  // namespace slackwater::bench
