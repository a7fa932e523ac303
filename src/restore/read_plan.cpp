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
#include "tensor/box.hpp"

namespace slackwater {
namespace {

// Longer runs are placed one by one. Shorter ones are gathered first: that copies them once more, but asks the device
// only once.
constexpr std::uint64_t kDirectRunBytes = 16u << 10;
constexpr std::size_t kProblemsNamed = 5;

std::string typed(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{}[{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

// Why these bytes cannot go into this target; nullopt if they can. `saved`: null if there is no such tensor.
std::optional<Error> target_problem(const TensorInfo* saved, const Target& target) {
  const auto problem = [&](ErrorKind kind, std::string message) {
    return Error{kind, std::move(message), {}, 0, false, target.name};
  };
  if (saved == nullptr)
    return problem(ErrorKind::kMismatch, fmt::format("tensor '{}' is not in the checkpoint", target.name));
  const std::vector<std::int64_t>& whole = target.shard ? target.shard->global_shape : target.shape;
  if (saved->dtype != target.dtype || saved->shape != whole)
    return problem(
        ErrorKind::kMismatch,
        fmt::format("tensor '{}' was saved as {}, but {} {}", target.name, typed(saved->dtype, saved->shape),
                    target.shard ? "is wanted as a box of" : "is to be restored into", typed(target.dtype, whole)));
  if (target.shard && !fits({target.shard->offset, target.shape}, whole))
    return problem(ErrorKind::kInvalidArgument,
                   fmt::format("the target for tensor '{}' is a box of shape [{}] at [{}], which does not lie in [{}]",
                               target.name, fmt::join(target.shape, ", "), fmt::join(target.shard->offset, ", "),
                               fmt::join(whole, ", ")));
  if (!target.strides.empty() && target.strides.size() != target.shape.size())
    return problem(ErrorKind::kInvalidArgument,
                   fmt::format("the target for tensor '{}' has {} strides for {} dimensions", target.name,
                               target.strides.size(), target.shape.size()));
  if (std::ranges::find(target.shape, 0) != target.shape.end()) return std::nullopt;
  if (target.data == nullptr)
    return problem(ErrorKind::kInvalidArgument, fmt::format("the target for tensor '{}' has no memory", target.name));
  for (std::size_t i = 0; i < target.strides.size(); ++i)
    if (target.strides[i] == 0 && target.shape[i] > 1)
      return problem(
          ErrorKind::kInvalidArgument,
          fmt::format("the elements of the target for tensor '{}' share memory (stride 0); give it memory of its own",
                      target.name));
  return std::nullopt;
}

// All targets are checked before one is refused: the kind of the first problem, and the words of the first few.
Status refuse(const std::vector<Error>& problems) {
  if (problems.empty()) return {};
  Error error = problems.front();
  for (std::size_t i = 1; i < std::min(problems.size(), kProblemsNamed); ++i)
    error.message += "; " + problems[i].message;
  if (problems.size() > kProblemsNamed) error.message += fmt::format("; and {} more", problems.size() - kProblemsNamed);
  return fail(std::move(error));
}

// A tensor stored in one piece, as a single box.
std::vector<StoredBox> boxes_of(const TensorInfo& tensor) {
  return {{.offset = std::vector<std::int64_t>(tensor.shape.size()),
           .shape = tensor.shape,
           .file = tensor.file,
           .file_offset = tensor.offset,
           .size_bytes = tensor.size_bytes}};
}

// The memory of a part of a target, which begins at `begin` in it.
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
    std::vector<Error> problems;
    for (const Target& target : targets_) {
      saved.push_back(find_tensor(tensors, target.name));
      if (auto problem = target_problem(saved.back(), target)) problems.push_back(std::move(*problem));
      plan_.device_.push_back(target.device);
      plan_.names_.push_back(target.name);
    }
    SW_TRY(refuse(problems));

    // Group the targets by tensor, so that its boxes are sorted once for all of them.
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

  // Plans to copy `common`, the overlap of a stored box and a target. Returns where it lies in the target.
  Box add(std::uint32_t index, std::span<const std::int64_t> offset, const StoredBox& box, const Box& common) {
    const Target& target = targets_[index];
    const auto relative_to = [&](std::span<const std::int64_t> origin) {
      std::vector<std::int64_t> begin = common.offset;
      for (std::size_t d = 0; d < begin.size(); ++d) begin[d] -= origin[d];
      return begin;
    };
    extents_.push_back({box.file, static_cast<std::uint32_t>(plan_.slices_.size()), box.file_offset, box.size_bytes});
    plan_.slices_.add(box.shape, relative_to(box.offset), common.shape, item_bytes(target.dtype));
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
        false,
        tensor.name};
  }

  // A header has been checked for overlaps, an index has not.
  Status check_disjoint() const {
    const FileExtent* before = nullptr;
    for (const FileExtent& extent : plan_.stored()) {
      const bool same = before != nullptr && before->file == extent.file && before->offset == extent.offset &&
                        before->size_bytes == extent.size_bytes;
      if (before != nullptr && before->file == extent.file && !same &&
          before->offset + before->size_bytes > extent.offset)
        return fail(ErrorKind::kCorrupt,
                    fmt::format("the index lets tensors '{}' and '{}' overlap at byte {} of the same file",
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
    const std::uint64_t size = slices_.size_bytes(box.item);
    for (std::uint64_t packed = 0; packed < size;) {
      // From the next wanted byte to the last one in its block; if all of them lie together, to the very last one.
      const std::uint64_t begin = box.offset + slices_.place_of(box.item, packed);
      const bool together = slices_.run_bytes(box.item) == size;
      packed =
          together ? size : slices_.bytes_before(box.item, round_down(begin, kBlockBytes) + kBlockBytes - box.offset);
      const std::uint64_t end = box.offset + slices_.place_of(box.item, packed - 1) + 1;
      wanted.push_back({box.file, box.item, begin, end - begin});
    }
  }
  return ExtentMap(std::move(wanted)).plan_units(files, unit_bytes);
}

ReadPlan::Pieces ReadPlan::pieces(const ReadUnit& unit, std::span<const std::byte> bytes) const {
  Pieces result;
  for (const FileExtent& box : stored_.overlapping(unit.file, unit.offset, unit.size_bytes)) {
    const std::uint64_t unit_end = unit.offset + unit.size_bytes;
    std::uint64_t packed = unit.offset > box.offset ? slices_.bytes_before(box.item, unit.offset - box.offset) : 0;
    const std::uint64_t packed_end = slices_.bytes_before(box.item, std::min(box.size_bytes, unit_end - box.offset));
    if (packed == packed_end) continue;
    const StridedMemory& memory = memory_[box.item];
    std::vector<CopyPiece>& list = result.on[device_[target_[box.item]]];
    const std::uint64_t run = slices_.run_bytes(box.item);
    if (run < kDirectRunBytes && run < packed_end - packed) {
      std::vector<std::byte>& gathered = result.gathered.emplace_back(packed_end - packed);
      const auto box_address = reinterpret_cast<std::uintptr_t>(bytes.data()) + box.offset - unit.offset;
      pack(slices_.view(box.item, box_address), packed, gathered.size(), gathered.data());
      list.push_back({&memory, packed, gathered.size(), gathered.data()});
      continue;
    }
    while (packed < packed_end) {
      const std::uint64_t size = std::min(run - packed % run, packed_end - packed);
      // CopyPiece serves both directions; copying from the host leaves these bytes as they are.
      std::byte* host =
          const_cast<std::byte*>(bytes.data()) + (box.offset + slices_.place_of(box.item, packed) - unit.offset);
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
