// What a rank has to think about before it reads its share of very many shards. No file is touched.
#include <chrono>
#include <utility>

#include "base/result.hpp"
#include "bench/commit/light_ranks.hpp"
#include "restore/index_view.hpp"
#include "restore/read_plan.hpp"

namespace slackwater::bench {
namespace {

constexpr std::uint64_t kReadBytes = 8u << 20;

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Saved by so many ranks that together they have the shards.
std::string index_of_all(const CommitPlan& plan, std::uint32_t savers) {
  std::vector<IndexEntry> all = light_entries(0, savers, plan.tensors);
  for (std::uint32_t rank = 1; rank < savers; ++rank) {
    std::vector<IndexEntry> part = light_entries(rank, savers, plan.tensors);
    for (std::size_t i = 0; i < part.size(); ++i) all[i].shards.push_back(std::move(part[i].shards.front()));
  }
  return serialize_index(all);
}

// Of a rank in the middle. Nothing is placed, so that the memory only has to have an address.
std::vector<Target> targets_of(const IndexView& view, std::uint32_t ranks, std::byte* memory) {
  std::vector<Target> targets;
  for (const TensorInfo& tensor : view.tensors) {
    const std::int64_t first = tensor.shape[0] * (ranks / 2) / ranks;
    const std::int64_t last = tensor.shape[0] * (ranks / 2 + 1) / ranks;
    targets.push_back({.name = tensor.name,
                       .dtype = tensor.dtype,
                       .shape = {last - first, tensor.shape[1]},
                       .data = memory,
                       .shard = Shard{.global_shape = tensor.shape, .offset = {first, 0}}});
  }
  return targets;
}

}  // namespace

Result<RestorePlanRow> measure_restore_plan(const CommitPlan& plan) {
  const auto savers = static_cast<std::uint32_t>(plan.shards / plan.tensors);
  const std::string text = index_of_all(plan, savers);
  RestorePlanRow row{.shards = std::uint64_t{savers} * plan.tensors, .ranks = plan.restoring};

  auto began = std::chrono::steady_clock::now();
  SW_ASSIGN(std::vector<IndexEntry> entries, parse_index(text, "index"));
  SW_ASSIGN(const IndexView view,
            view_index(std::move(entries), savers, Viewer{plan.restoring / 2, plan.restoring}, "index"));
  row.index_s = seconds_since(began);

  std::byte memory{};
  const std::vector<Target> targets = targets_of(view, plan.restoring, &memory);
  std::vector<ReadFile> files;
  for (const FileInfoOnTier& file : view.files) files.push_back({file.name, file.size_bytes, {}});
  began = std::chrono::steady_clock::now();
  SW_ASSIGN(const ReadPlan reads, ReadPlan::make(view.tensors, targets));
  const std::vector<ReadUnit> units = reads.units(files, kReadBytes);
  row.plan_s = seconds_since(began);
  row.reads = units.size();
  for (const ReadUnit& unit : units) row.size_bytes += unit.size_bytes;
  return row;
}

}  // namespace slackwater::bench
