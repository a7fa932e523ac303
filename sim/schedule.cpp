#include "sim/schedule.hpp"

#include <algorithm>
#include <utility>

#include "sim/simulator.hpp"

namespace slackwater::sim {
namespace {

// When a host thread gets to know that the op is done.
TimePoint seen_at(const OpPtr& op) { return op->done_at + Duration(op->device->config.host_latency_ns); }

}  // namespace

OpPtr Schedule::new_op(const Stream& stream, Task task, bool uncounted) {
  auto op = std::make_shared<Op>();
  op->device = stream.device;
  op->engine = task.engine;
  op->work = std::move(task.work);
  op->held = std::move(task.held);
  op->duration = task.duration;
  op->copy_bytes = task.copy_bytes;
  op->pageable = task.pageable;
  op->priority = stream.priority;
  op->stream = stream.id;
  op->backlog = uncounted ? std::make_shared<Backlog>() : stream.backlog;
  ++op->backlog->pending;
  op->sequence = ++next_sequence_;
  op->ready_at = Clock::now();
  ++simulator_.counts.pending;
  return op;
}

void Schedule::wait_for_room(Call& call, const Stream& stream) {
  const std::shared_ptr<Backlog> backlog = stream.backlog;
  const Device& device = *stream.device;
  const auto has_room = [&] {
    const std::uint64_t limit = device.config.queue_limit;
    return limit == 0 || backlog->pending < limit || device.failed() || simulator_.stopping;
  };
  if (has_room()) return;
  ++simulator_.counts.blocked_calls;
  ++backlog->waiting;
  progress_.wait(call.lock, has_room);
  --backlog->waiting;
}

CUresult Schedule::make_room(Call& call, const StreamPtr& stream) {
  if (stream->capture == nullptr) wait_for_room(call, *stream);
  if (stream->capture != nullptr) {  // it may have begun meanwhile
    return stream->capture->invalidated ? CUresult::kStreamCaptureInvalidated : CUresult::kSuccess;
  }
  if (stream->device->failed()) return stream->device->error;
  const bool spoiled = stream->legacy && simulator_.captures.spoil_implicit(*stream->device);
  return spoiled ? CUresult::kStreamCaptureImplicit : CUresult::kSuccess;
}

std::vector<OpPtr> Schedule::last_before(const Stream& stream) const {
  const Device& device = *stream.device;
  std::vector<OpPtr> before{stream.tail};
  if (stream.legacy) {
    for (const auto& [handle, other] : simulator_.streams) {
      if (other->device == &device && other->blocking) before.push_back(other->tail);
    }
    for (const auto& [thread, other] : device.thread_streams) before.push_back(other->tail);
  } else if (stream.blocking) {
    before.push_back(device.legacy_stream->tail);
  }
  return before;
}

CUresult Schedule::enqueue(Call& call, const StreamPtr& stream, std::vector<Task> tasks, OpPtr* queued,
                           OpPtr also_after) {
  if (const CUresult result = make_room(call, stream); result != CUresult::kSuccess) return result;
  if (stream->capture != nullptr) {
    if (!tasks.empty()) stream->captured = stream->capture->graph.add(*stream->device, tasks, stream->captured);
    ++stream->recorded;
    stream->joined = false;
    if (queued != nullptr) queued->reset();
    return CUresult::kSuccess;
  }
  std::vector<OpPtr> before = last_before(*stream);
  before.push_back(std::move(also_after));

  std::vector<OpPtr> ops;
  for (Task& task : tasks) ops.push_back(new_op(*stream, std::move(task)));
  // Later work waits for one op: the only one, or a marker after all of them.
  const OpPtr last = ops.size() == 1 ? ops.front() : new_op(*stream, Task{});
  for (const OpPtr& op : ops) {
    for (const OpPtr& earlier : before) link(earlier, op);
    if (op != last) link(op, last);
  }
  if (ops.empty()) {
    for (const OpPtr& earlier : before) link(earlier, last);
  }
  stream->tail = last;
  if (queued != nullptr) *queued = last;
  for (const OpPtr& op : ops) {
    if (op->missing == 0) launch(op);
  }
  if (ops.empty() && last->missing == 0) complete(last, last->ready_at);
  return CUresult::kSuccess;
}

CUresult Schedule::enqueue_graph(Call& call, const StreamPtr& stream, GraphExec& graph) {
  if (const CUresult result = make_room(call, stream); result != CUresult::kSuccess) return result;
  if (stream->capture != nullptr) {  // would be a child graph, which we do not model
    stream->capture->invalidated = true;
    return CUresult::kStreamCaptureUnsupported;
  }
  std::vector<OpPtr> before = last_before(*stream);
  before.push_back(graph.last);
  const OpPtr last = new_op(*stream, Task{});  // the launch takes one place in the queue
  std::vector<OpPtr> ops;
  for (const GraphNode& node : graph.graph->nodes()) {
    const OpPtr op = new_op(*stream, node.task(), true);
    op->device = node.device;
    for (const std::size_t earlier : node.after) link(ops[earlier], op);
    if (node.after.empty()) {
      for (const OpPtr& earlier : before) link(earlier, op);
    }
    link(op, last);
    ops.push_back(op);
  }
  if (ops.empty()) {
    for (const OpPtr& earlier : before) link(earlier, last);
  }
  stream->tail = last;
  graph.last = last;
  for (const OpPtr& op : ops) {
    if (op->missing == 0) launch(op);
  }
  if (last->missing == 0) complete(last, last->ready_at);
  return CUresult::kSuccess;
}

void Schedule::link(const OpPtr& before, const OpPtr& after) {
  if (before == nullptr || before->done) return;
  before->next.push_back(after);
  ++after->missing;
}

void Schedule::launch(const OpPtr& op) {
  switch (op->engine) {
    case EngineKind::kNone: break;
    case EngineKind::kCompute: op->device->compute.add(op); break;
    case EngineKind::kDeviceToHost: op->device->to_host.add(op); break;
    case EngineKind::kHostToDevice: op->device->to_device.add(op); break;
  }
}

void Schedule::complete(const OpPtr& op, TimePoint at) {
  op->done_at = at;
  std::vector<OpPtr> done{op};
  bool watched = false;
  while (!done.empty()) {
    const OpPtr current = std::move(done.back());
    done.pop_back();
    current->done = true;
    current->work.reset();
    current->held.clear();
    watched |= current->watched;
    --simulator_.counts.pending;
    --current->backlog->pending;
    watched |= current->backlog->waiting > 0;
    for (const OpPtr& next : std::exchange(current->next, {})) {
      next->ready_at = std::max(next->ready_at, current->done_at);
      if (--next->missing > 0) continue;
      if (next->engine == EngineKind::kNone) {
        next->done_at = next->ready_at;
        done.push_back(next);
      } else {
        launch(next);
      }
    }
  }
  if (watched) progress_.notify_all();
}

void Schedule::wait(Call& call, const OpPtr& op, bool spins) {
  if (seen_done(op)) return;
  ++simulator_.counts.host_waits;
  if (spins) ++simulator_.counts.spinning_waits;
  op->watched = true;
  progress_.wait(call.lock, [this, &op] { return op->done || simulator_.stopping; });
  while (!seen_done(op) && !simulator_.stopping) progress_.wait_until(call.lock, seen_at(op));
}

bool Schedule::seen_done(const OpPtr& op) {
  return op == nullptr || (op->done && (op->device->config.host_latency_ns == 0 || Clock::now() >= seen_at(op)));
}

void Schedule::wait_for_device(Call& call, Device& device) {
  std::vector<OpPtr> last = device.orphans;
  for (const auto& [handle, stream] : simulator_.streams) {
    if (stream->device == &device) last.push_back(stream->tail);
  }
  for (const auto& [thread, stream] : device.thread_streams) last.push_back(stream->tail);
  if (device.legacy_stream != nullptr) last.push_back(device.legacy_stream->tail);
  for (const OpPtr& op : last) wait(call, op, true);
}

bool Schedule::idle(const Stream& stream) const {
  const auto over = [](const Stream& other) { return seen_done(other.tail); };
  if (!over(stream)) return false;
  if (!stream.legacy) return true;
  const auto idle_or_unrelated = [&](const auto& entry) {
    return entry.second->device != stream.device || !entry.second->blocking || over(*entry.second);
  };
  return std::ranges::all_of(simulator_.streams, idle_or_unrelated) &&
         std::ranges::all_of(stream.device->thread_streams, idle_or_unrelated);
}

}  // namespace slackwater::sim
