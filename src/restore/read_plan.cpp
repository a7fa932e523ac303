#include "restore/read_plan.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace slackwater {
namespace {

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{}[{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

std::optional<Error> target_problem(const TensorInfo* saved, const Target& target) {
  const auto problem = [](ErrorKind kind, std::string message) {
    return Error{kind, std::move(message), {}, 0, false};
  };
  if (saved == nullptr)
    return problem(ErrorKind::kMismatch, fmt::format("tensor '{}' is not in the checkpoint", target.name));
  if (saved->dtype != target.dtype || saved->shape != target.shape)
    return problem(ErrorKind::kMismatch,
                   fmt::format("tensor '{}' was saved as {}, but is to be restored into {}", target.name,
                               describe(saved->dtype, saved->shape), describe(target.dtype, target.shape)));
  if (!target.strides.empty() && target.strides.size() != target.shape.size())
    return problem(ErrorKind::kInvalidArgument,
                   fmt::format("the target for tensor '{}' has {} strides for {} dimensions", target.name,
                               target.strides.size(), target.shape.size()));
  if (saved->size_bytes == 0) return std::nullopt;
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

}  // namespace

const TensorInfo* find_tensor(std::span<const TensorInfo> tensors, std::string_view name) {
  const auto found = std::ranges::lower_bound(tensors, name, {},
                                              [](const TensorInfo& tensor) { return std::string_view(tensor.name); });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

Result<ReadPlan> ReadPlan::make(std::span<const TensorInfo> tensors, std::span<const Target> targets) {
  constexpr std::size_t kProblemsNamed = 5;
  ReadPlan plan;
  plan.memory_.reserve(targets.size());
  plan.names_.reserve(targets.size());
  std::vector<FileExtent> extents;
  extents.reserve(targets.size());
  std::optional<Error> first;
  std::vector<std::string> problems;
  for (const Target& target : targets) {
    const TensorInfo* saved = find_tensor(tensors, target.name);
    if (std::optional<Error> problem = target_problem(saved, target)) {
      problems.push_back(problem->message);
      if (!first) first = std::move(problem);
      continue;
    }
    extents.push_back({saved->file, static_cast<std::uint32_t>(plan.memory_.size()), saved->offset, saved->size_bytes});
    plan.memory_.push_back(
        simplify({static_cast<std::byte*>(target.data), item_bytes(target.dtype), target.shape, target.strides}));
    plan.device_.push_back(target.device);
    plan.names_.push_back(target.name);
  }
  if (first) {
    const std::size_t shown = std::min(problems.size(), kProblemsNamed);
    first->message =
        fmt::format("{}", fmt::join(problems.begin(), problems.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
    if (shown < problems.size()) first->message += fmt::format("; and {} more", problems.size() - shown);
    return fail(std::move(*first));
  }
  plan.extents_ = ExtentMap(std::move(extents));
  return plan;
}

std::vector<int> ReadPlan::devices() const {
  std::set<int> found(device_.begin(), device_.end());
  found.erase(kHostDevice);
  return {found.begin(), found.end()};
}

ReadPlan::DevicePieces ReadPlan::pieces(const ReadUnit& unit, std::span<const std::byte> bytes) const {
  DevicePieces result;
  for (const FileExtent& extent : extents_.overlapping(unit.file, unit.offset, unit.size_bytes)) {
    const std::uint64_t begin = std::max(extent.offset, unit.offset);
    const std::uint64_t end = std::min(extent.offset + extent.size_bytes, unit.offset + unit.size_bytes);
    // CopyPiece serves both directions; copying from the host leaves these bytes as they are.
    std::byte* host = const_cast<std::byte*>(bytes.data()) + (begin - unit.offset);
    result[device_[extent.item]].push_back({&memory_[extent.item], begin - extent.offset, end - begin, host});
  }
  return result;
}

std::vector<std::string> ReadPlan::names(std::uint32_t file, std::uint64_t offset, std::uint64_t size_bytes) const {
  std::vector<std::string> result;
  for (const FileExtent& extent : extents_.overlapping(file, offset, size_bytes)) result.push_back(names_[extent.item]);
  std::ranges::sort(result);
  result.erase(std::ranges::unique(result).begin(), result.end());
  return result;
}

}  // namespace slackwater
