// What a file to import holds: the tree of a state, and tensors that point into mapped files. One reader for each
// format. All of it is untrusted: kCorrupt and kUnsupported say what is wrong, and where.
// Plain values; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/mapped_file.hpp"
#include "formats/selection.hpp"
#include "formats/tree_node.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::formats {

enum class SourceFormat : std::uint8_t { kTorch, kSafetensors, kDcp };
[[nodiscard]] std::string_view to_string(SourceFormat format);  // "torch.save", "safetensors", "DCP"

// A zip record whose checksum is known.
struct RecordCheck {
  std::string name;  // in the file
  std::string path;
  std::span<const std::byte> bytes;
  std::uint32_t crc = 0;
};

struct ImportSource {
  SourceFormat format = SourceFormat::kTorch;
  TreeNode tree;                // the state: a dict
  std::vector<Tensor> tensors;  // named as in the tree
  std::map<std::string, std::string> metadata;
  std::vector<RecordCheck> checks;
  std::vector<std::unique_ptr<MappedFile>> files;  // hold the memory of the tensors
  std::uint64_t source_bytes = 0;                  // of all files
};

struct SourceOptions {
  Selection selected;
  std::string as;  // the state's key for what the file holds; empty: the file's own dict is the state
};

// Finds out the format: a file of torch.save, a .safetensors file, a .safetensors.index.json, or a directory with an
// index, with .safetensors files, or with the .metadata of DCP.
[[nodiscard]] Result<ImportSource> read_source(const std::string& path, const SourceOptions& options);

// For read_source().
[[nodiscard]] Status read_torch_source(const std::string& path, const SourceOptions& options, ImportSource& source);
[[nodiscard]] Status read_safetensors_source(const std::string& path, const SourceOptions& options,
                                             ImportSource& source);
[[nodiscard]] Status read_dcp_source(const std::string& directory, const SourceOptions& options, ImportSource& source);

// Maps one more file of the source. The pointer stays valid as long as the source.
[[nodiscard]] Result<const MappedFile*> map_file(const std::string& path, ImportSource& source);

}  // namespace slackwater::formats
