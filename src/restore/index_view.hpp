// What a reader sees of a version of several ranks by its index alone, without opening the files. An index is untrusted
// input: what cannot be true is refused, with the tensor's name. Free functions; results are plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"
#include "version/index.hpp"
#include "version/manifest.hpp"

namespace slackwater {

// The rank that reads, and the size of its run.
struct Viewer {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;  // of the run that reads; the run that saved may have had another
};

// The text of the index, after its digest matched the manifest's. kNotFound if it is missing.
[[nodiscard]] Result<std::string> read_index(FileSystem& fs, const std::string& directory, const Manifest& manifest);

struct IndexView {
  std::vector<FileInfoOnTier> files;  // those that hold tensors, by rank; sizes up to the last tensor's end
  std::vector<TensorInfo> tensors;    // sorted by name
  bool left_out = false;              // rank-local tensors were left out: the viewer's run has another world
};

// Without a viewer: all tensors, under their names in the index. A viewer sees the global ones and, if its run has as
// many ranks as the one that saved, its own rank-local ones under their plain names. What a single rank saved is for
// everyone.
[[nodiscard]] Result<IndexView> view_index(std::vector<IndexEntry> entries, std::uint32_t world,
                                           const std::optional<Viewer>& viewer, const std::string& path);

// Collapses a single full-size box into a plain tensor, and sets size_bytes. False if it has more than 2^63 bytes.
[[nodiscard]] bool settle_boxes(TensorInfo& tensor);

// kCorrupt if two places claim to hold the same tensor. Needs the tensors sorted by name.
[[nodiscard]] Status check_unique(const std::vector<TensorInfo>& tensors, const std::vector<FileInfoOnTier>& files,
                                  const std::string& path);

}  // namespace slackwater
