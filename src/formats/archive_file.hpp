// ArchivePlan: one value of the tree as an archive of torch.save, and the tensors that its storages come from. A file
// of torch.save is one archive; a .distcp file of DCP is several, one behind the other.
// One thread; plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/export.hpp"
#include "formats/export_stage.hpp"
#include "formats/torch_pickle.hpp"
#include "formats/tree_node.hpp"

namespace slackwater::formats {

struct ArchivePlan {
  TorchArchiveLayout layout;
  std::vector<ReadItem> storages;
  std::uint64_t tensors = 0;  // tied ones too
};

// `name` is that of the value in the state, for messages.
[[nodiscard]] Result<ArchivePlan> plan_archive(const TreeNode& value, const std::string& name,
                                               const ExportContext& context, BeyondWeightsOnly& beyond);

// Writes the archives into one staged file, one behind the other.
[[nodiscard]] Status write_archives(std::span<const ArchivePlan> archives, const std::string& file, ExportStage& stage,
                                    PiecewiseReader& reader);

// What torch.save would be given: the selected part of the state, or (with --map) one dict of tensors by name.
[[nodiscard]] Result<TreeNode> exported_tree(const ExportContext& context);

// A sentence about values that need torch.load(weights_only=False); empty if there are none.
[[nodiscard]] std::string beyond_note(const BeyondWeightsOnly& beyond);

}  // namespace slackwater::formats
