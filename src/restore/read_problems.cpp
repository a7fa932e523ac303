#include "restore/read_problems.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tensor/box.hpp"

namespace slackwater {
namespace {

constexpr std::size_t kProblemsNamed = 5;

std::string typed(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{}[{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

std::optional<Error> target_problem(const TensorInfo* saved, const Target& target) {
  const auto problem = [](ErrorKind kind, std::string message) {
    return Error{kind, std::move(message), {}, 0, false};
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

}  // namespace

void ReadProblems::look_at(const TensorInfo* saved, const Target& target) {
  std::optional<Error> problem = target_problem(saved, target);
  if (!problem) return;
  texts_.push_back(problem->message);
  if (!first_) first_ = std::move(problem);
}

Status ReadProblems::verdict() const {
  if (!first_) return {};
  Error error = *first_;
  const std::size_t shown = std::min(texts_.size(), kProblemsNamed);
  error.message =
      fmt::format("{}", fmt::join(texts_.begin(), texts_.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
  if (shown < texts_.size()) error.message += fmt::format("; and {} more", texts_.size() - shown);
  return fail(std::move(error));
}

}  // namespace slackwater
