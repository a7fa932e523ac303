#include "formats/archive_file.hpp"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/crc32.hpp"
#include "formats/tree_select.hpp"

namespace slackwater::formats {

Result<ArchivePlan> plan_archive(const TreeNode& value, const std::string& name, const ExportContext& context,
                                 BeyondWeightsOnly& beyond) {
  std::vector<ReadItem> storages;
  std::map<std::string, std::size_t> known;  // storage by the tensor it comes from
  std::uint64_t tensors = 0;
  const FindTensor find_tensor = [&](const std::string& tensor) -> Result<PickledTensor> {
    SW_ASSIGN(ReadItem item, export_item(context.checkpoint, tensor, context.options));
    ++tensors;
    PickledTensor pickled{.storage = storages.size(), .dtype = item.to, .shape = item.shape};
    const auto [place, is_new] = known.try_emplace(item.tensor, storages.size());
    pickled.storage = place->second;
    if (is_new) storages.push_back(std::move(item));
    return pickled;
  };
  PickleWriter pickle;
  SW_TRY(write_value(pickle, value, name, find_tensor, beyond));
  std::vector<std::uint64_t> sizes;
  for (const ReadItem& storage : storages) sizes.push_back(storage.size_bytes());
  return ArchivePlan{TorchArchiveLayout(pickle.finish(), sizes), std::move(storages), tensors};
}

Status write_archives(std::span<const ArchivePlan> archives, const std::string& file, ExportStage& stage,
                      PiecewiseReader& reader) {
  std::vector<ReadItem> items;
  std::vector<std::uint64_t> offsets;  // of the items in the file
  std::uint64_t base = 0;
  for (const ArchivePlan& archive : archives) {
    for (std::size_t i = 0; i < archive.storages.size(); ++i) {
      items.push_back(archive.storages[i]);
      offsets.push_back(base + archive.layout.storage_offset(i));
    }
    base += archive.layout.size_bytes();
  }
  SW_ASSIGN(DurableFile made, stage.create(file, base));
  std::vector<std::uint32_t> crcs(items.size());
  SW_TRY(reader.run(items, [&](std::size_t item, std::uint64_t at, std::span<const std::byte> bytes) {
    crcs[item] = crc32(bytes, crcs[item]);
    return made.file().write_at(bytes, offsets[item] + at);
  }));
  base = 0;
  std::span<const std::uint32_t> left(crcs);
  for (const ArchivePlan& archive : archives) {
    const auto write = [&](std::uint64_t offset, std::string_view bytes) {
      return made.file().write_at(std::as_bytes(std::span(bytes)), base + offset);
    };
    SW_TRY(archive.layout.write_rest(left.first(archive.storages.size()), write));
    left = left.subspan(archive.storages.size());
    base += archive.layout.size_bytes();
  }
  return made.finish();
}

Result<TreeNode> exported_tree(const ExportContext& context) {
  const Checkpoint& checkpoint = context.checkpoint;
  if (!context.options.flat) {
    SW_ASSIGN(const TreeNode state, parse_tree(checkpoint.tree(), checkpoint.version().directory));
    auto selected = select_tree(state, context.options.selected);
    if (selected) return std::move(*selected);
    return fail(ErrorKind::kNotFound,
                fmt::format("nothing of step {} is selected; slackwater show lists names", checkpoint.version().step));
  }
  SW_ASSIGN(const std::vector<ExportItem> items, export_items(checkpoint, context.options, context.report));
  TreeNode state = TreeNode::object();
  for (const ExportItem& item : items) state.add(item.name, TreeNode::tensor(item.source.tensor));
  return state;
}

std::string beyond_note(const BeyondWeightsOnly& beyond) {
  if (beyond.empty()) return {};
  const auto& [name, type] = *beyond.begin();
  return fmt::format(
      "torch.load(weights_only=True) does not take '{}' (a {}){}; leave it out with --exclude, or load the file with "
      "weights_only=False",
      name, type, beyond.size() == 1 ? "" : fmt::format(" and {} other values", beyond.size() - 1));
}

}  // namespace slackwater::formats
