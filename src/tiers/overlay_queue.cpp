#include "tiers/overlay_queue.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater {
namespace {

// While several tiers are read at once, each of their queues is waited for in turn. A completion of another tier is
// then seen this late at most.
constexpr std::chrono::milliseconds kTurn{1};

std::unexpected<Error> not_for_writing(const std::string& path) {
  return fail(ErrorKind::kUnsupported, "this view of several tiers is read-only", path);
}

}  // namespace

Status OverlayFile::write_at(std::span<const std::byte>, std::uint64_t) { return not_for_writing(path()); }
Status OverlayFile::allocate(std::uint64_t) { return not_for_writing(path()); }
Status OverlayFile::truncate(std::uint64_t) { return not_for_writing(path()); }
Status OverlayFile::sync_data() { return not_for_writing(path()); }
Status OverlayFile::sync_all() { return not_for_writing(path()); }

OverlayQueue::OverlayQueue(std::unique_ptr<IoQueue> first, Make make) : make_(std::move(make)), first_(first.get()) {
  lanes_[0].queue = std::move(first);
}

unsigned OverlayQueue::in_flight() const {
  unsigned sum = 0;
  for (const auto& [tier, lane] : lanes_) sum += lane.queue->in_flight();
  return sum;
}

// A tier's queue that cannot register a buffer reads into it unregistered.
Status OverlayQueue::register_buffer(int index, std::span<std::byte> memory) {
  Status first;
  bool any = false;
  for (auto& [tier, lane] : lanes_) {
    Status registered = lane.queue->register_buffer(index, memory);
    if (registered) {
      lane.buffers.insert(index);
      any = true;
    } else if (first) {
      first = std::move(registered);
    }
  }
  if (!any) return first;
  buffers_[index] = memory;
  return {};
}

Result<OverlayQueue::Lane*> OverlayQueue::lane(std::size_t tier) {
  if (const auto known = lanes_.find(tier); known != lanes_.end()) return &known->second;
  Lane made;
  SW_ASSIGN(made.queue, make_(tier));
  for (const auto& [index, memory] : buffers_) {
    if (made.queue->register_buffer(index, memory)) made.buffers.insert(index);
  }
  const std::lock_guard lock(mutex_);
  return &lanes_.emplace(tier, std::move(made)).first->second;
}

Status OverlayQueue::submit(const IoRequest& request) {
  auto& file = static_cast<OverlayFile&>(*request.file);
  SW_ASSIGN(Lane* const to, lane(file.tier()));
  IoRequest passed = request;
  passed.file = &file.file();
  if (!to->buffers.contains(request.buffer)) passed.buffer = -1;
  return to->queue->submit(passed);
}

std::vector<IoQueue*> OverlayQueue::busy() const {
  std::vector<IoQueue*> queues;
  for (const auto& [tier, lane] : lanes_) {
    if (lane.queue->in_flight() > 0) queues.push_back(lane.queue.get());
  }
  return queues;
}

Status OverlayQueue::wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout.value_or(Duration::zero());
  const std::size_t before = completions.size();
  const std::vector<IoQueue*> queues = busy();
  if (queues.empty()) return first_->wait(completions, timeout);  // for wake()
  if (queues.size() == 1) return queues.front()->wait(completions, timeout);
  for (;;) {
    for (IoQueue* queue : queues) SW_TRY(queue->wait(completions, Duration::zero()));
    if (completions.size() == before && !woken_) SW_TRY(queues[turn_++ % queues.size()]->wait(completions, kTurn));
    // The queues may have used up a wake() above, so it is noted here as well.
    if (woken_.exchange(false) || completions.size() > before) return {};
    if (timeout && std::chrono::steady_clock::now() >= deadline) return {};
  }
}

void OverlayQueue::forget(File& file) {
  auto& overlaid = static_cast<OverlayFile&>(file);
  const auto known = lanes_.find(overlaid.tier());
  if (known != lanes_.end()) known->second.queue->forget(overlaid.file());
}

void OverlayQueue::wake() {
  woken_ = true;
  const std::lock_guard lock(mutex_);
  for (const auto& [tier, lane] : lanes_) lane.queue->wake();
}

}  // namespace slackwater
