#include "engine/snapshot_verdict.hpp"

#include <functional>
#include <set>

#include <fmt/format.h>

namespace slackwater {

bool SnapshotVerdict::fail(Error error) {
  if (error_ || deciding_) return false;
  error_ = std::move(error);
  return true;
}

void SnapshotVerdict::fail_torn(std::vector<std::string> tensors, Error error) {
  sealed_ = true;
  static_cast<void>(fail(std::move(error)));
  // The engine and the caller check in different ways, so each may find tensors that the other does not.
  if (!error_ || error_->kind != ErrorKind::kTorn) return;
  const std::set<std::string, std::less<>> known(torn_tensors_.begin(), torn_tensors_.end());
  for (std::string& tensor : tensors)
    if (!known.contains(tensor)) torn_tensors_.push_back(std::move(tensor));
}

void SnapshotVerdict::conclude(const Status& outcome) {
  if (!outcome && !error_) error_ = outcome.error();
}

Error torn_error(const std::vector<std::string>& tensors) {
  const bool one = tensors.size() == 1;
  return Error{
      .kind = ErrorKind::kTorn,
      .message = fmt::format("tensor '{}'{} written to between save() and the fence; call fence() before "
                             "writing to {} (captured inside save() from now on)",
                             tensors.at(0), one ? " was" : fmt::format(" and {} more were", tensors.size() - 1),
                             one ? "it" : "them"),
      .path = {},
      .tensor = tensors.front()};
}

Error freed_error(const std::vector<std::string>& tensors) {
  const bool one = tensors.size() == 1;
  return Error{.kind = ErrorKind::kTorn,
               .message = fmt::format(
                   "the memory of tensor '{}'{} was freed or moved between save() and the fence; call "
                   "fence(host=True) before freeing, resizing or offloading {}",
                   tensors.at(0), one ? "" : fmt::format(" and of {} more", tensors.size() - 1), one ? "it" : "them"),
               .path = {},
               .tensor = tensors.front()};
}

}  // namespace slackwater
