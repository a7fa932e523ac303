#include "restore/extent_map.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/digest.hpp"
#include "base/units.hpp"

namespace slackwater {

ExtentMap::ExtentMap(std::vector<FileExtent> extents) : extents_(std::move(extents)) {
  std::erase_if(extents_, [](const FileExtent& extent) { return extent.size_bytes == 0; });
  std::ranges::sort(extents_, {},
                    [](const FileExtent& extent) { return std::tuple(extent.file, extent.offset, extent.item); });
}

std::span<const FileExtent> ExtentMap::overlapping(std::uint32_t file, std::uint64_t offset,
                                                   std::uint64_t size_bytes) const {
  const auto ends_before = [&](const FileExtent& extent) {
    return extent.file < file || (extent.file == file && extent.offset + extent.size_bytes <= offset);
  };
  const auto begins_before_end = [&](const FileExtent& extent) {
    return extent.file == file && extent.offset < offset + size_bytes;
  };
  const auto first = std::partition_point(extents_.begin(), extents_.end(), ends_before);
  const auto last = std::partition_point(first, extents_.end(), begins_before_end);
  return {first, last};
}

std::vector<ReadUnit> ExtentMap::plan_units(std::span<const ReadFile> files, std::uint64_t unit_bytes) const {
  std::vector<ReadUnit> units;
  for (const FileExtent& extent : extents_) {
    std::uint64_t begin = round_down(extent.offset, kBlockBytes);
    const std::uint64_t end =
        std::min(round_up(extent.offset + extent.size_bytes, kBlockBytes), files[extent.file].size_bytes);
    if (!units.empty() && units.back().file == extent.file)
      begin = std::max(begin, units.back().offset + units.back().size_bytes);
    while (begin < end) {
      const bool joins = !units.empty() && units.back().file == extent.file &&
                         units.back().offset + units.back().size_bytes == begin && units.back().size_bytes < unit_bytes;
      if (!joins) units.push_back({extent.file, begin, 0});
      ReadUnit& unit = units.back();
      const std::uint64_t taken = std::min(end - begin, unit_bytes - unit.size_bytes);
      unit.size_bytes += taken;
      begin += taken;
    }
  }
  return units;
}

}  // namespace slackwater
