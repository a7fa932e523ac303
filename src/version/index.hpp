// Index: global tensor name -> dtype, shape, and the boxes that hold it, each with file and offset. It is sealed JSON,
// made from the layouts; its digest is in the manifest. With one rank, each tensor is one box. With several, each rank
// makes a part, and the leader merges the parts (ranks/merged_index.hpp). Plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

struct IndexShard {
  std::vector<std::int64_t> box_offset;  // in the global tensor
  std::vector<std::int64_t> box_shape;
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

struct IndexEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::string alias_of;            // if set, there are no shards
  std::vector<IndexShard> shards;  // none if the tensor has no elements
};

inline constexpr std::size_t kMaxShards = 4'000'000;  // readers refuse more

// Written in one pass, without a JSON tree in memory: 100,000 tensors must not cost 100 MB.
[[nodiscard]] std::string serialize_index(const std::vector<IndexEntry>& entries);
[[nodiscard]] Result<std::vector<IndexEntry>> parse_index(std::string_view text, const std::string& path);

}  // namespace slackwater
