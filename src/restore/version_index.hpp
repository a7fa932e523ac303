// What a reader of several ranks' version sees by its index alone, without a look into the files. Nobody vouches for what an index
// says: what cannot be is refused by name. Free functions; results are plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commit/index.hpp"
#include "commit/manifest.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// Whose eyes a version is looked at with.
struct Viewer {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;  // of the run that reads, which may not be the one that saved
};

// The text of the index, its digest compared with the manifest's. kNotFound if it is missing.
[[nodiscard]] Result<std::string> read_index(FileSystem& fs, const std::string& directory, const Manifest& manifest);

struct IndexView {
  std::vector<FileInfoOnTier> files;  // those that hold tensors, by rank; sizes up to the end of their last tensor
  std::vector<TensorInfo> tensors;    // sorted by name
  bool left_out = false;              // tensors of single ranks, because the viewer's run has another number of ranks
};

// No viewer: all tensors under the names of the index. Else the global ones, and of the rank-local ones his own under their own names,
// if his run has as many ranks as the one that saved. What one rank alone saved is whole, and for everybody.
[[nodiscard]] Result<IndexView> view_index(std::vector<IndexEntry> entries, std::uint32_t world,
                                           const std::optional<Viewer>& viewer, const std::string& path);

// A tensor whose one box is all of it is whole; `size_bytes` is that of all boxes together. False if it has more than 2^63 bytes.
[[nodiscard]] bool settle_boxes(TensorInfo& tensor);

// kCorrupt, naming the tensor that two places claim to hold. Needs them sorted by name.
[[nodiscard]] Status check_unique(const std::vector<TensorInfo>& tensors, const std::vector<FileInfoOnTier>& files,
                                  const std::string& path);

}  // namespace slackwater
