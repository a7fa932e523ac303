// The .metadata file of a torch.distributed.checkpoint (DCP) directory, read without running its pickle: only the
// classes of torch's own metadata are understood. Untrusted input; pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/tree_node.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::formats {

// Where one item lies. Each is an archive of torch.save by itself.
struct DcpPlace {
  std::string file;  // inside the directory
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

struct DcpChunk {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> shape;
  DcpPlace place;
};

struct DcpItem {
  std::string name;                 // flat, with dots
  std::vector<TreeNode> path;       // keys and list indices that lead to it; at least one
  std::optional<DType> dtype;       // none: a plain value
  std::vector<std::int64_t> shape;  // of a tensor
  std::vector<DcpChunk> chunks;     // of a tensor
  std::optional<DcpPlace> value;    // of a plain value
};

[[nodiscard]] Result<std::vector<DcpItem>> parse_dcp_metadata(std::string_view bytes, const std::string& path);

}  // namespace slackwater::formats
