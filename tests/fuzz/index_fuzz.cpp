// The index. Input: its text without the closing digest.
#include <set>
#include <string>

#include "fuzz.hpp"
#include "tensor/box.hpp"
#include "tensor/shape.hpp"
#include "version/index.hpp"
#include "version/names.hpp"

namespace slackwater::fuzz {
namespace {

void check_shard(const IndexEntry& entry, const IndexShard& shard) {
  require(stays_in_version(shard.file), "names stay in the directory");
  require(shard.box_offset.size() == entry.shape.size() && shard.box_shape.size() == entry.shape.size(),
          "a box has the dimensions of its tensor");
  for (std::size_t i = 0; i < entry.shape.size(); ++i)
    require(shard.box_offset[i] >= 0 && shard.box_shape[i] >= 0 && shard.box_shape[i] <= entry.shape[i] &&
                shard.box_offset[i] <= entry.shape[i] - shard.box_shape[i],
            "a box lies in its tensor");
  require(packed_bytes(entry.dtype, shard.box_shape) == shard.size_bytes, "the size is that of the box");
  require(shard.offset <= UINT64_MAX - shard.size_bytes, "a shard ends below 2^64");
}

void check(const std::vector<IndexEntry>& entries) {
  std::set<std::string> stored, all;
  for (const IndexEntry& entry : entries) {
    require(all.insert(entry.name).second, "names are unique");
    require(entry.alias_of.empty() || entry.shards.empty(), "a tensor is stored or tied");
    require(!entry.alias_of.empty() || !entry.shards.empty() || volume(entry.shape) == 0, "a tensor is stored or tied");
    if (entry.alias_of.empty()) stored.insert(entry.name);
    for (const IndexShard& shard : entry.shards) check_shard(entry, shard);
  }
  for (const IndexEntry& entry : entries)
    require(entry.alias_of.empty() || stored.contains(entry.alias_of), "a tied tensor leads to a stored one");
}

}  // namespace
}  // namespace slackwater::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  fuzz::round_trip(
      fuzz::text_of(data, size), [](std::string_view text) { return parse_index(text, "index"); },
      [](const std::vector<IndexEntry>& entries) { return serialize_index(entries); }, fuzz::check);
  return 0;
}
