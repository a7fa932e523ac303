#include "formats/export.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/float_convert.hpp"
#include "formats/tensor_names.hpp"
#include "layout/data_file.hpp"

namespace slackwater::formats {
namespace {

// The name without the rank in front of it; nullopt for a tensor of another rank than 0, or one of our own.
std::optional<std::string_view> exported_name(std::string_view name, std::uint32_t world) {
  if (world > 1) {
    if (const auto rank = rank_of_local_name(name)) {
      if (*rank != 0) return std::nullopt;
      name.remove_prefix(name.find('/') + 1);
    }
  }
  if (name.starts_with("__slackwater")) return std::nullopt;
  return name;
}

ReadItem read_item(const TensorInfo& info, const ExportOptions& options) {
  const bool converts = options.dtype && is_convertible(info.dtype);
  return {.tensor = info.alias_of.empty() ? info.name : info.alias_of,
          .from = info.dtype,
          .to = converts ? *options.dtype : info.dtype,
          .shape = info.shape};
}

}  // namespace

std::string_view to_string(TargetFormat format) {
  switch (format) {
    case TargetFormat::kHuggingFace: return "hf";
    case TargetFormat::kTorch: return "torch";
    case TargetFormat::kDcp: return "dcp";
  }
  return "?";
}

Result<std::vector<ExportItem>> export_items(const Checkpoint& checkpoint, const ExportOptions& options,
                                             Exported& report) {
  const std::uint32_t world = checkpoint.version().world;
  std::map<std::string, ExportItem> items;
  std::uint64_t others = 0;
  for (const TensorInfo& info : checkpoint.tensors()) {
    const auto own = exported_name(info.name, world);
    if (!own) {
      others += rank_of_local_name(info.name).value_or(0) > 0 ? 1 : 0;
      continue;
    }
    if (!options.selected(std::string(*own))) continue;
    std::string name = plain_name(options.map(*own));
    const auto [known, is_new] = items.try_emplace(name, ExportItem{.name = name, .source = read_item(info, options)});
    if (is_new) continue;
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("'{}' and another tensor would both be called '{}'; choose with --only, or use other --map "
                            "rules",
                            info.name, name));
  }
  if (items.empty()) {
    return fail(ErrorKind::kNotFound, fmt::format("no tensor of step {} is selected; slackwater show lists their names",
                                                  checkpoint.version().step));
  }
  if (others > 0)
    report.notes.push_back(fmt::format("{} tensors belong to single ranks; those of rank 0 are exported", others));
  std::vector<ExportItem> sorted;
  for (auto& [name, item] : items) sorted.push_back(std::move(item));
  return sorted;
}

Result<ReadItem> export_item(const Checkpoint& checkpoint, const std::string& name, const ExportOptions& options) {
  const TensorInfo* info = nullptr;
  if (checkpoint.version().world > 1) info = checkpoint.find(local_name(0, name));
  if (info == nullptr) info = checkpoint.find(name);
  if (info == nullptr) {
    return fail(ErrorKind::kCorrupt,
                fmt::format("the tree of the checkpoint names the tensor '{}', which no file holds", name));
  }
  return read_item(*info, options);
}

Result<Exported> export_checkpoint(FileSystem& fs, Checkpoint& checkpoint, const std::string& to,
                                   const ExportOptions& options, const ExportProgress& progress) {
  Exported report;
  std::uint64_t done = 0;
  std::uint64_t total = 0;  // an upper bound until it is known what is written
  for (const TensorInfo& info : checkpoint.tensors())
    if (const auto own = exported_name(info.name, checkpoint.version().world))
      if (info.alias_of.empty() && options.selected(std::string(*own))) total += info.size_bytes;
  PiecewiseReader reader(checkpoint, [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(std::min(done, total), total);
  });
  const ExportContext context{fs, checkpoint, to, options, reader, report};
  switch (options.format) {
    case TargetFormat::kHuggingFace: SW_TRY(export_hugging_face(context)); break;
    case TargetFormat::kTorch: SW_TRY(export_torch(context)); break;
    case TargetFormat::kDcp: SW_TRY(export_dcp(context)); break;
  }
  return report;
}

}  // namespace slackwater::formats
