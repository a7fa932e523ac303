#include "engine/snapshot_impl.hpp"
#include "slackwater/engine.hpp"

namespace slackwater {

Snapshot::Snapshot(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::uint64_t Snapshot::step() const { return impl_->step(); }
Status Snapshot::fence() { return impl_->fence({}); }
Status Snapshot::fence(std::span<const StreamRef> streams) { return impl_->fence(streams); }
Status Snapshot::wait(Level level, std::optional<std::chrono::milliseconds> timeout) {
  return impl_->wait(level, timeout);
}
bool Snapshot::released() const { return impl_->wait_released(std::chrono::milliseconds(0)); }
bool Snapshot::wait_released(std::optional<std::chrono::milliseconds> timeout) const {
  return impl_->wait_released(timeout);
}
std::vector<std::uint32_t> Snapshot::at_once_tensors() const { return impl_->at_once_tensors(); }

void Snapshot::seal(std::vector<std::string> torn_tensors, const std::vector<std::string>& freed_tensors) {
  impl_->seal(std::move(torn_tensors), freed_tensors);
}
std::optional<Error> Snapshot::error() const { return impl_->error(); }
std::vector<std::string> Snapshot::torn_tensors() const { return impl_->torn_tensors(); }
Progress Snapshot::progress() const { return impl_->progress(); }
std::string Snapshot::part() const { return impl_->part(); }
SnapshotStats Snapshot::stats() const { return impl_->stats(); }

}  // namespace slackwater
