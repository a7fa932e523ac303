// A version staged in a region, as a trainer of one rank stages it. For tests of what a keeper does with it.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "keeper/keeper_client.hpp"
#include "keeper/region.hpp"
#include "support/bytes.hpp"
#include "version/attempt.hpp"
#include "version/index.hpp"
#include "version/manifest.hpp"
#include "version/record.hpp"

namespace slackwater::test {

inline constexpr RegionShape kSmallShape{.slab_bytes = 1u << 20, .slab_count = 4, .rank = 0, .world = 1};

// New memory, mapped twice: as the trainer has it, and as a keeper reads it.
struct SharedRegion {
  explicit SharedRegion(const RegionShape& shape = kSmallShape)
      : memory(make_shared_memory("test", Region::size_bytes(shape)).value()),
        trainer(Region::format(SharedMemory::map(memory, SharedMemory::Access::kWrite).value(), shape).value()),
        reader(Region::open(SharedMemory::map(memory, SharedMemory::Access::kRead).value()).value()) {}
  UniqueFd memory;
  Region trainer;
  Region reader;
};

// One file of one slab and a half, in the slabs 2 and 0. Its bytes follow from the step.
[[nodiscard]] inline StagedVersion stage(Region& region, const VersionName& name, const std::string& run = "run") {
  constexpr std::uint64_t kSize = (1u << 20) + (1u << 19);
  Bytes bytes(kSize);
  fill_pattern(bytes, name.step);
  const std::vector<std::uint32_t> slabs{2, 0};
  FileRecord file{.name = "rank-00000.safetensors", .size_bytes = kSize, .tensor_count = 0, .block_digests = {}};
  for (std::uint64_t at = 0, i = 0; at < kSize; at += kBlockBytes, ++i) {
    const auto block = std::span<const std::byte>(bytes).subspan(at, std::min(kBlockBytes, kSize - at));
    std::ranges::copy(block, region.slab(slabs[i]).begin());
    file.block_digests.push_back(digest64(block));
  }
  const Record record{
      .run = run, .identity = {.step = name.step, .attempt = name.attempt, .rank = 0, .world = 1}, .files = {file}};
  StagedVersion version{.name = name, .files = {{file.name, kSize, slabs}}, .record = serialize(record)};
  version.index = serialize_index({});
  Manifest manifest{.run = run, .step = name.step, .attempt = name.attempt};
  manifest.records = {{0, "rank-00000.record", digest128(version.record)}};
  manifest.index_digest = digest128(version.index);
  manifest.size_bytes = kSize;
  version.manifest = serialize(manifest);
  return version;
}

struct LeftBehind {
  std::string member = "me";
  std::uint32_t world = 1;
  bool committed = false;
};
// A trainer attaches, stages this version and is gone.
inline void stage_and_leave(const KeeperSettings& settings, const VersionName& name, const std::string& run,
                            const LeftBehind& left = {}) {
  const auto trainer = KeeperClient::attach(settings).value().value();
  RegionShape shape = kSmallShape;
  shape.world = left.world;
  auto region = Region::format(trainer->make_memory(Region::size_bytes(shape)).value(), shape).value();
  StagedVersion version = stage(region, name, run);
  version.world = left.world;
  const std::uint32_t entry = region.begin(name).value();
  if (!region.publish(entry, version, left.member)) throw std::runtime_error("the version was not staged");
  if (left.committed) region.mark_committed(entry);
}

}  // namespace slackwater::test
