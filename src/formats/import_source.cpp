#include "formats/import_source.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/tensor_names.hpp"
#include "formats/torch_archive.hpp"

namespace slackwater::formats {
namespace {

namespace stdfs = std::filesystem;

bool starts_with_bytes(std::span<const std::byte> bytes, std::string_view start) {
  return bytes.size() >= start.size() &&
         std::string_view(reinterpret_cast<const char*>(bytes.data()), start.size()) == start;
}

bool is_directory(const std::string& path) {
  std::error_code ignored;
  return stdfs::is_directory(path, ignored);
}

bool exists_in(const std::string& directory, const char* name) {
  std::error_code ignored;
  return stdfs::exists(stdfs::path(directory) / name, ignored);
}

}  // namespace

std::string_view to_string(SourceFormat format) {
  switch (format) {
    case SourceFormat::kTorch: return "torch.save";
    case SourceFormat::kSafetensors: return "safetensors";
    case SourceFormat::kDcp: return "DCP";
  }
  return "?";
}

Result<const MappedFile*> map_file(const std::string& path, ImportSource& source) {
  SW_ASSIGN(MappedFile file, MappedFile::open(path));
  source.source_bytes += file.bytes().size();
  source.files.push_back(std::make_unique<MappedFile>(std::move(file)));
  return source.files.back().get();
}

Status read_torch_source(const std::string& path, const SourceOptions& options, ImportSource& source) {
  SW_ASSIGN(const MappedFile* file, map_file(path, source));
  // Legacy files (before torch 1.6) are a row of pickles that begins with a magic number.
  if (starts_with_bytes(file->bytes(), "\x80\x02\x8a\x0al\xfc\x9c")) {
    return fail(ErrorKind::kUnsupported,
                "the file was written by torch.save before torch 1.6, or without its zip format; load it with "
                "torch.load(weights_only=True) and torch.save it again",
                path);
  }
  SW_ASSIGN(const TorchArchive archive, TorchArchive::open(file->bytes(), path));
  const std::string name = options.as.empty() ? "" : join_name("", name_segment(TreeNode::string(options.as)));
  SW_ASSIGN(auto found, archive.read(name, options.selected, source.tensors));
  for (const ZipRecord& record : archive.data_records())
    source.checks.push_back({std::string(record.name), path, record.bytes, record.crc});
  if (!found) return {};
  if (!options.as.empty()) {
    source.tree = TreeNode::object();
    source.tree.add(options.as, std::move(*found));
    return {};
  }
  const std::string_view tag = found->tag();
  const bool is_dict = found->kind == TreeNode::Kind::kObject &&
                       (tag.empty() || tag == "dict" || tag == "OrderedDict" || tag == "defaultdict");
  if (!is_dict) {
    return fail(ErrorKind::kInvalidArgument, "the top-level object is not a dict; name it with --as NAME", path);
  }
  source.tree = std::move(*found);
  return {};
}

Result<ImportSource> read_source(const std::string& path, const SourceOptions& options) {
  if (options.as.starts_with('$'))
    return fail(ErrorKind::kInvalidArgument, fmt::format("--as '{}': a name must not begin with '$'", options.as));
  ImportSource source;
  if (is_directory(path)) {
    const bool is_dcp = exists_in(path, ".metadata");
    source.format = is_dcp ? SourceFormat::kDcp : SourceFormat::kSafetensors;
    SW_TRY(is_dcp ? read_dcp_source(path, options, source) : read_safetensors_source(path, options, source));
  } else if (path.ends_with(".safetensors") || path.ends_with(".json")) {
    source.format = SourceFormat::kSafetensors;
    SW_TRY(read_safetensors_source(path, options, source));
  } else {
    source.format = SourceFormat::kTorch;
    SW_TRY(read_torch_source(path, options, source));
  }
  if (source.tensors.empty() && source.tree.kind == TreeNode::Kind::kNull) {
    return fail(ErrorKind::kNotFound, "nothing in it is selected; check --only and --exclude", path);
  }
  source.metadata["imported_from"] = fmt::format("{} ({})", path, to_string(source.format));
  return source;
}

}  // namespace slackwater::formats
