// Index: global tensor name -> dtype, shape, and the boxes that hold it, each with rank, file and offset. Made from the
// layouts, sealed JSON; its digest stands in the manifest. One rank's tensor is one box that is the whole tensor. Of
// several ranks each makes a part, and the leader one index of all (merged_index.hpp).
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
  std::string alias_of;            // no shards then
  std::vector<IndexShard> shards;  // none, too, of a global tensor without elements
};

inline constexpr std::size_t kMaxShards = 4'000'000;  // readers take no more

// Written in one pass without a tree in memory: 100,000 tensors must not cost 100 MB.
[[nodiscard]] std::string serialize_index(const std::vector<IndexEntry>& entries);
[[nodiscard]] Result<std::vector<IndexEntry>> parse_index(std::string_view text, const std::string& path);

}  // namespace slackwater
