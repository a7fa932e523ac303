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
bool Snapshot::released() const { return impl_->released(); }
bool Snapshot::wait_released(std::optional<std::chrono::milliseconds> timeout) const {
  return impl_->wait_released(timeout);
}
void Snapshot::seal(std::optional<std::string> torn_tensor) { impl_->seal(std::move(torn_tensor)); }
std::optional<Error> Snapshot::error() const { return impl_->error(); }
std::optional<std::string> Snapshot::torn_tensor() const { return impl_->torn_tensor(); }
Progress Snapshot::progress() const { return impl_->progress(); }
SnapshotStats Snapshot::stats() const { return impl_->stats(); }

}  // namespace slackwater
