#include <filesystem>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/archive_file.hpp"
#include "formats/export.hpp"
#include "formats/export_stage.hpp"

namespace slackwater::formats {

Status export_torch(const ExportContext& context) {
  const std::filesystem::path target(context.to);
  const std::string name = target.filename().string();
  const std::string directory = target.has_parent_path() ? target.parent_path().string() : ".";
  std::error_code ignored;
  if (name.empty() || std::filesystem::is_directory(target, ignored)) {
    return fail(ErrorKind::kInvalidArgument, "this is a directory; name the file to write, such as model.pt",
                context.to);
  }
  SW_ASSIGN(const TreeNode state, exported_tree(context));
  BeyondWeightsOnly beyond;
  SW_ASSIGN(const ArchivePlan archive, plan_archive(state, "", context, beyond));
  SW_ASSIGN(const auto stage, ExportStage::open(context.fs, directory, fmt::format(".{}.slackwater-export", name)));
  SW_ASSIGN(const auto old, stage->existing([&](std::string_view one) { return one == name; }));
  if (!old.empty() && !context.options.force)
    return fail(ErrorKind::kAlreadyExists, "the file exists already; --force replaces it", context.to);
  SW_TRY(write_archives({&archive, 1}, name, *stage, context.reader));
  SW_TRY(stage->publish({name}));
  context.report.files.push_back({name, archive.layout.size_bytes()});
  context.report.tensors = archive.tensors;
  for (const ReadItem& storage : archive.storages) context.report.size_bytes += storage.size_bytes();
  if (std::string note = beyond_note(beyond); !note.empty()) context.report.notes.push_back(std::move(note));
  return {};
}

}  // namespace slackwater::formats
