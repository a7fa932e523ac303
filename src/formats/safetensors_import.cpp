#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "base/json.hpp"
#include "base/result.hpp"
#include "formats/import_source.hpp"
#include "formats/tensor_names.hpp"
#include "layout/safetensors_header.hpp"

namespace slackwater::formats {
namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kMaxIndexBytes = 100'000'000;

struct Weights {
  std::vector<std::string> files;             // paths
  std::map<std::string, std::string> wanted;  // by tensor: the path of its file. Empty: all tensors of all files
};

// The weight_map of model.safetensors.index.json.
Result<Weights> read_weight_map(const std::string& path, ImportSource& source) {
  SW_ASSIGN(const MappedFile* file, map_file(path, source));
  if (file->bytes().size() > kMaxIndexBytes) return fail(ErrorKind::kCorrupt, "the index is larger than 100 MB", path);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  SW_ASSIGN(const Json index, parse_json(text, path));
  SW_ASSIGN(const Json* map, json_object(index, "weight_map", path));
  const std::string directory = stdfs::path(path).parent_path().string();
  Weights weights;
  for (const auto& [name, value] : map->items()) {
    // A name with a slash could lead out of the directory.
    if (!value.is_string() || value.get_ref<const std::string&>().find('/') != std::string::npos)
      return fail(ErrorKind::kCorrupt, fmt::format("the index names no file beside it for tensor '{}'", name), path);
    std::string where = (stdfs::path(directory) / value.get_ref<const std::string&>()).string();
    weights.files.push_back(where);
    weights.wanted.emplace(name, std::move(where));
  }
  std::ranges::sort(weights.files);
  weights.files.erase(std::unique(weights.files.begin(), weights.files.end()), weights.files.end());
  return weights;
}

// What a directory holds: a set with an index, or files that make a set by themselves.
Result<Weights> find_weights(const std::string& directory, ImportSource& source) {
  std::vector<std::string> indexes;
  Weights weights;
  std::error_code error;
  for (stdfs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().string();
    if (name.ends_with(".safetensors.index.json")) indexes.push_back(name);
    if (name.ends_with(".safetensors")) weights.files.push_back(name);
  }
  if (error) return fail(ErrorKind::kIo, fmt::format("cannot list the directory: {}", error.message()), directory);
  if (indexes.size() > 1) {
    std::ranges::sort(indexes);
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("there are {} indexes; name one of them, such as {}", indexes.size(), indexes[0]),
                directory);
  }
  if (!indexes.empty()) return read_weight_map(indexes[0], source);
  std::ranges::sort(weights.files);
  if (weights.files.empty()) {
    return fail(ErrorKind::kNotFound,
                "there is nothing to import: no .safetensors file and no .metadata of DCP; name a file of torch.save "
                "itself",
                directory);
  }
  return weights;
}

struct FoundTensors {
  std::map<std::string, Tensor> by_name;
  std::map<std::string, std::string> metadata;
};

Status read_file(const std::string& path, const Weights& weights, ImportSource& source, FoundTensors& found) {
  SW_ASSIGN(const MappedFile* file, map_file(path, source));
  const std::span<const std::byte> bytes = file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  SW_ASSIGN(const std::uint64_t header_size, header_bytes(text.substr(0, 8), bytes.size(), path));
  SW_ASSIGN(ParsedHeader header, parse_header(text.substr(8, header_size), bytes.size(), path));
  if (header.has_identity) {
    return fail(ErrorKind::kUnsupported,
                "this file is a part of a Slackwater checkpoint already; use the checkpoint's directory as it is",
                path);
  }
  for (TensorInfo& info : header.tensors) {
    const auto expected = weights.wanted.find(info.name);
    if (!weights.wanted.empty() && (expected == weights.wanted.end() || expected->second != path)) continue;
    Tensor tensor{.name = info.name, .dtype = info.dtype, .shape = std::move(info.shape)};
    if (info.size_bytes > 0) tensor.data = bytes.data() + info.offset;
    if (!found.by_name.emplace(info.name, std::move(tensor)).second)
      return fail(ErrorKind::kCorrupt, fmt::format("tensor '{}' is in two files", info.name), path);
  }
  found.metadata.merge(header.metadata);
  return {};
}

}  // namespace

Status read_safetensors_source(const std::string& path, const SourceOptions& options, ImportSource& source) {
  std::error_code ignored;
  Weights weights;
  if (stdfs::is_directory(path, ignored)) {
    SW_ASSIGN(weights, find_weights(path, source));
  } else if (path.ends_with(".json")) {
    SW_ASSIGN(weights, read_weight_map(path, source));
  } else {
    weights.files = {path};
  }
  FoundTensors found;
  for (const std::string& file : weights.files) SW_TRY(read_file(file, weights, source, found));
  for (const auto& [name, file] : weights.wanted) {
    if (!found.by_name.contains(name))
      return fail(ErrorKind::kCorrupt, fmt::format("the index names tensor '{}', which this file does not hold", name),
                  file);
  }
  // A state_dict(): one dict of tensors.
  std::vector<TreeNode> keys;
  for (const auto& [name, tensor] : found.by_name) keys.push_back(TreeNode::string(name));
  const std::string prefix = options.as.empty() ? "" : join_name("", name_segment(TreeNode::string(options.as)));
  const std::vector<std::string> names = child_names(prefix, keys, [] { return false; });
  TreeNode state = TreeNode::object();
  std::size_t index = 0;
  for (auto& [name, tensor] : found.by_name) {
    tensor.name = names[index++];
    if (!options.selected(tensor.name)) continue;
    if (name.starts_with('$'))
      return fail(ErrorKind::kUnsupported, fmt::format("the tensor name '{}' begins with '$'; rename it", name), path);
    state.add(name, TreeNode::tensor(tensor.name));
    source.tensors.push_back(std::move(tensor));
  }
  source.metadata.merge(found.metadata);
  if (source.tensors.empty() && !found.by_name.empty()) return {};
  if (options.as.empty()) {
    source.tree = std::move(state);
  } else {
    source.tree = TreeNode::object();
    source.tree.add(options.as, std::move(state));
  }
  return {};
}

}  // namespace slackwater::formats
