// Exports one version to a format that other tools read: a Hugging Face set of safetensors files, a file of torch.save,
// or a directory of torch.distributed.checkpoint. Reads are verified, memory is bounded, and a crash leaves nothing
// that looks complete.
// Thread rule: one thread. Takes no lock on the checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/piecewise_reader.hpp"
#include "formats/selection.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"

namespace slackwater::formats {

enum class TargetFormat : std::uint8_t { kHuggingFace, kTorch, kDcp };
[[nodiscard]] std::string_view to_string(TargetFormat format);  // "hf", "torch", "dcp"

struct ExportOptions {
  TargetFormat format = TargetFormat::kHuggingFace;
  Selection selected;
  NameMap map;
  bool flat =
      false;  // torch and DCP: one dict of tensors by their (mapped) names, instead of the state as it was saved
  std::optional<DType> dtype;  // of floating-point tensors; none: as they are
  std::uint64_t shard_bytes = 5'000'000'000;
  bool force = false;  // replace what an earlier export left there
};

struct ExportedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
};

struct Exported {
  std::vector<ExportedFile> files;
  std::uint64_t tensors = 0;
  std::uint64_t size_bytes = 0;    // of the tensors, as written
  std::vector<std::string> notes;  // sentences for the user
};

using ExportProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

[[nodiscard]] Result<Exported> export_checkpoint(FileSystem& fs, Checkpoint& checkpoint, const std::string& to,
                                                 const ExportOptions& options, const ExportProgress& progress = {});

// For export_checkpoint():

// The selected tensors under their new names, sorted by these. Of tensors that belong to single ranks, those of rank 0.
struct ExportItem {
  std::string name;
  ReadItem source;
};
[[nodiscard]] Result<std::vector<ExportItem>> export_items(const Checkpoint& checkpoint, const ExportOptions& options,
                                                           Exported& report);
// A tensor by its name in the tree. Tied tensors have the same `source.tensor`.
[[nodiscard]] Result<ReadItem> export_item(const Checkpoint& checkpoint, const std::string& name,
                                           const ExportOptions& options);

struct ExportContext {
  FileSystem& fs;
  Checkpoint& checkpoint;
  const std::string& to;
  const ExportOptions& options;
  PiecewiseReader& reader;
  Exported& report;
};
[[nodiscard]] Status export_hugging_face(const ExportContext& context);
[[nodiscard]] Status export_torch(const ExportContext& context);
[[nodiscard]] Status export_dcp(const ExportContext& context);

}  // namespace slackwater::formats
