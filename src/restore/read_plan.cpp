#include "restore/read_plan.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "device/strided_copy.hpp"
#include "restore/box_finder.hpp"
#include "restore/read_problems.hpp"

namespace slackwater {
namespace {

// Runs from here on are placed one by one. Shorter ones are gathered first, which copies them once more but asks the device once.
constexpr std::uint64_t kDirectRunBytes = 16u << 10;

// A tensor that is stored in one piece is one box.
std::vector<StoredBox> boxes_of(const TensorInfo& tensor) {
  return {{.offset = std::vector<std::int64_t>(tensor.shape.size()),
           .shape = tensor.shape,
           .file = tensor.file,
           .file_offset = tensor.offset,
           .size_bytes = tensor.size_bytes}};
}

// The memory of the part of a target that begins at `begin` there.
StridedMemory part_of(const Target& target, std::span<const std::int64_t> begin, std::vector<std::int64_t> shape) {
  StridedMemory memory{static_cast<std::byte*>(target.data), item_bytes(target.dtype), std::move(shape),
                       target.strides};
  if (memory.shape == target.shape) return simplify(std::move(memory));
  if (memory.strides.empty()) {
    memory.strides.resize(target.shape.size());
    std::int64_t stride = 1;
    for (std::size_t d = target.shape.size(); d-- > 0; stride *= target.shape[d]) memory.strides[d] = stride;
  }
  std::int64_t elements = 0;
  for (std::size_t d = 0; d < begin.size(); ++d) elements += begin[d] * memory.strides[d];
  memory.data += elements * static_cast<std::int64_t>(memory.item_bytes);
  return simplify(std::move(memory));
}

}  // namespace

class ReadPlan::Maker {
 public:
  explicit Maker(std::span<const Target> targets) : targets_(targets) {}

  Result<ReadPlan> make(std::span<const TensorInfo> tensors) {
    std::vector<const TensorInfo*> saved;
    ReadProblems problems;
    for (const Target& target : targets_) {
      saved.push_back(find_tensor(tensors, target.name));
      problems.look_at(saved.back(), target);
      plan_.device_.push_back(target.device);
      plan_.names_.push_back(target.name);
    }
    SW_TRY(problems.verdict());

    // Targets of one tensor one after the other: its boxes are put in order once for all of them.
    std::vector<std::uint32_t> order(targets_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::sort(order, {}, [&](std::uint32_t target) { return std::pair(saved[target], target); });
    for (auto first = order.begin(); first != order.end();) {
      const auto last = std::find_if(first, order.end(), [&](auto target) { return saved[target] != saved[*first]; });
      SW_TRY(add_targets(*saved[*first], {first, last}));
      first = last;
    }
    plan_.stored_ = ExtentMap(std::move(extents_));
    SW_TRY(check_disjoint());
    return std::move(plan_);
  }

 private:
  Status add_targets(const TensorInfo& tensor, std::span<const std::uint32_t> targets) {
    if (tensor.size_bytes == 0) return {};
    const std::vector<StoredBox> whole = tensor.boxes.empty() ? boxes_of(tensor) : std::vector<StoredBox>();
    const BoxFinder boxes(whole.empty() ? std::span(tensor.boxes) : std::span(whole), targets.size());
    for (const std::uint32_t index : targets) {
      const Target& target = targets_[index];
      const std::vector<std::int64_t> offset =
          target.shard ? target.shard->offset : std::vector<std::int64_t>(target.shape.size());
      std::vector<Box> parts;  // of the target
      boxes.find({offset, target.shape},
                 [&](const StoredBox& box, const Box& common) { parts.push_back(add(index, offset, box, common)); });
      if (parts.size() == 1 && parts[0].shape == target.shape) continue;
      std::vector<BoxView> views;
      for (const Box& part : parts) views.push_back(part.view());
      if (const auto fault = check_tiling(target.shape, views)) return fail(describe(tensor, offset, *fault));
    }
    return {};
  }

  // Takes what both have in common from the box to the target; where that is in the target.
  Box add(std::uint32_t index, std::span<const std::int64_t> offset, const StoredBox& box, const Box& common) {
    const Target& target = targets_[index];
    const auto relative_to = [&](std::span<const std::int64_t> origin) {
      std::vector<std::int64_t> begin = common.offset;
      for (std::size_t d = 0; d < begin.size(); ++d) begin[d] -= origin[d];
      return begin;
    };
    extents_.push_back({box.file, static_cast<std::uint32_t>(plan_.cutouts_.size()), box.file_offset, box.size_bytes});
    plan_.cutouts_.add(box.shape, relative_to(box.offset), common.shape, item_bytes(target.dtype));
    Box part{relative_to(offset), common.shape};
    plan_.memory_.push_back(part_of(target, part.offset, common.shape));
    plan_.target_.push_back(index);
    return part;
  }

  static Error describe(const TensorInfo& tensor, std::span<const std::int64_t> offset, TilingFault fault) {
    for (std::size_t d = 0; d < offset.size(); ++d) fault.region.offset[d] += offset[d];
    return {
        ErrorKind::kCorrupt,
        fmt::format("the boxes that tensor '{}' was saved in do not cover it exactly: {} {}", tensor.name,
                    fault.both ? "more than one of them holds" : "none of them holds", to_string(fault.region.view())),
        {},
        0,
        false};
  }

  // A checked header promises it, an index does not.
  Status check_disjoint() const {
    const FileExtent* before = nullptr;
    for (const FileExtent& extent : plan_.stored()) {
      const bool same = before != nullptr && before->file == extent.file && before->offset == extent.offset &&
                        before->size_bytes == extent.size_bytes;
      if (before != nullptr && before->file == extent.file && !same &&
          before->offset + before->size_bytes > extent.offset)
        return fail(ErrorKind::kCorrupt,
                    fmt::format("the index places tensors '{}' and '{}' upon each other, at byte {} of the same file",
                                plan_.name_of(*before), plan_.name_of(extent), extent.offset));
      before = &extent;
    }
    return {};
  }

  const std::span<const Target> targets_;
  ReadPlan plan_;
  std::vector<FileExtent> extents_;
};

const TensorInfo* find_tensor(std::span<const TensorInfo> tensors, std::string_view name) {
  const auto found = std::ranges::lower_bound(tensors, name, {},
                                              [](const TensorInfo& tensor) { return std::string_view(tensor.name); });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

Result<ReadPlan> ReadPlan::make(std::span<const TensorInfo> tensors, std::span<const Target> targets) {
  return Maker(targets).make(tensors);
}

std::vector<int> ReadPlan::devices() const {
  std::set<int> found(device_.begin(), device_.end());
  found.erase(kHostDevice);
  return {found.begin(), found.end()};
}

std::vector<ReadUnit> ReadPlan::units(std::span<const ReadFile> files, std::uint64_t unit_bytes) const {
  std::vector<FileExtent> wanted;
  wanted.reserve(stored().size());
  for (const FileExtent& box : stored()) {
    const std::uint64_t size = cutouts_.size_bytes(box.item);
    for (std::uint64_t packed = 0; packed < size;) {
      // From the next wanted byte to the last one in its block, or, where all lie together, to the last of all.
      const std::uint64_t begin = box.offset + cutouts_.place_of(box.item, packed);
      const bool together = cutouts_.run_bytes(box.item) == size;
      packed =
          together ? size : cutouts_.bytes_before(box.item, round_down(begin, kBlockBytes) + kBlockBytes - box.offset);
      const std::uint64_t end = box.offset + cutouts_.place_of(box.item, packed - 1) + 1;
      wanted.push_back({box.file, box.item, begin, end - begin});
    }
  }
  return ExtentMap(std::move(wanted)).plan_units(files, unit_bytes);
}

ReadPlan::Pieces ReadPlan::pieces(const ReadUnit& unit, std::span<const std::byte> bytes) const {
  Pieces result;
  for (const FileExtent& box : stored_.overlapping(unit.file, unit.offset, unit.size_bytes)) {
    const std::uint64_t unit_end = unit.offset + unit.size_bytes;
    std::uint64_t packed = unit.offset > box.offset ? cutouts_.bytes_before(box.item, unit.offset - box.offset) : 0;
    const std::uint64_t packed_end = cutouts_.bytes_before(box.item, std::min(box.size_bytes, unit_end - box.offset));
    if (packed == packed_end) continue;
    const StridedMemory& memory = memory_[box.item];
    std::vector<CopyPiece>& list = result.on[device_[target_[box.item]]];
    const std::uint64_t run = cutouts_.run_bytes(box.item);
    if (run < kDirectRunBytes && run < packed_end - packed) {
      std::vector<std::byte>& gathered = result.gathered.emplace_back(packed_end - packed);
      const auto box_address = reinterpret_cast<std::uintptr_t>(bytes.data()) + box.offset - unit.offset;
      pack(cutouts_.view(box.item, box_address), packed, gathered.size(), gathered.data());
      list.push_back({&memory, packed, gathered.size(), gathered.data()});
      continue;
    }
    while (packed < packed_end) {
      const std::uint64_t size = std::min(run - packed % run, packed_end - packed);
      // CopyPiece serves both directions; copying from the host leaves these bytes as they are.
      std::byte* host =
          const_cast<std::byte*>(bytes.data()) + (box.offset + cutouts_.place_of(box.item, packed) - unit.offset);
      list.push_back({&memory, packed, size, host});
      packed += size;
    }
  }
  return result;
}

std::vector<std::string> ReadPlan::names(std::uint32_t file, std::uint64_t offset, std::uint64_t size_bytes) const {
  std::vector<std::string> result;
  for (const FileExtent& extent : stored_.overlapping(file, offset, size_bytes)) result.push_back(name_of(extent));
  std::ranges::sort(result);
  result.erase(std::ranges::unique(result).begin(), result.end());
  return result;
}

}  // namespace slackwater
