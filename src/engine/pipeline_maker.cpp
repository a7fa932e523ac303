#include "engine/pipeline_maker.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "capture/share_replicas.hpp"
#include "os/available_memory.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

// Tensors or targets.
template <class Places>
std::uint64_t total_bytes(const Places& places) {
  std::uint64_t bytes = 0;
  for (const auto& place : places) bytes += packed_bytes(place.dtype, place.shape).value_or(0);
  return bytes;
}

// The CUDA device that holds most bytes. None: all of them are in host memory.
template <class Places>
std::optional<int> main_device(const Places& places) {
  std::map<int, std::uint64_t> bytes;
  for (const auto& place : places) {
    if (place.device != kHostDevice) bytes[place.device] += packed_bytes(place.dtype, place.shape).value_or(0);
  }
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; });
  if (most == bytes.end()) return std::nullopt;
  return most->first;
}

std::uint64_t slabs_of(const SnapshotLayout& layout, std::uint64_t slab_bytes) {
  std::uint64_t slabs = 0;
  for (const FileLayout& part : layout.parts) slabs += part.chunk_count(slab_bytes);
  return slabs;
}

std::uint32_t slab_count(std::uint64_t slabs) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(slabs, 2, 1u << 20));
}

}  // namespace

std::uint64_t slabs_in_half(std::uint64_t wanted, std::uint64_t available, std::uint64_t attached) {
  return std::min(wanted, std::max(available / 2, std::min(attached, (available + attached) / 2)));
}

// pool=auto: the size of the state, but at most this rank's share of a quarter of the available memory.
std::uint64_t PipelineMaker::slabs_for(std::uint64_t state_slabs) const {
  if (options_.pool_bytes != 0) return options_.pool_bytes / options_.slab_bytes;
  const std::uint64_t available = available_memory_bytes() / options_.local_ranks / options_.slab_bytes;
  // The versions that are kept, and the one that is being copied. They are why the user gives memory away, so half of
  // what is available may go.
  if (shared_.memory)
    return slabs_in_half(state_slabs * (options_.memory_versions + 1), available,
                         shared_.memory->attached_bytes() / options_.slab_bytes);
  return std::min(state_slabs, available / 4);
}

bool PipelineMaker::can_prepare(std::uint64_t slabs) const {
  return !shared_.memory || shared_.memory->can_prepare(slab_count(slabs));
}

Result<std::shared_ptr<Pipeline>> PipelineMaker::make(std::uint64_t slabs, std::optional<int> device, bool foreseen) {
  int numa_node = shared_.devices.numa_node();
  if (device) {
    // Opened here, so that slabs are registered as they are touched. The save() of its tensors reports an Error.
    if (const auto opened = shared_.devices.cuda(*device)) numa_node = (*opened)->numa_node();
  }
  std::uint32_t count = slab_count(slabs);
  const std::shared_ptr<KeptSlabs> kept = shared_.memory ? shared_.memory->memory_for(count) : nullptr;
  if (kept) count = kept->region()->shape().slab_count;  // that of an earlier trainer may be larger
  SW_ASSIGN(std::shared_ptr<Pipeline> pipeline,
            Pipeline::create(*shared_.fs, shared_.devices, options_, count, numa_node, shared_.log, kept));
  const auto slot = shared_.pipeline.lock();
  if (slot->stopped) return fail(shared_.jobs.closed_error());  // close() came first and will not stop this one
  slot->pipeline = pipeline;
  slot->foreseen = foreseen;
  return pipeline;
}

// Every checkpoint would cross from one socket to the other, for as long as the process lives. Touching the pool once
// more costs less. With a memory tier the pages are the keeper's, and would stay where they are.
bool PipelineMaker::far_from(std::optional<int> device, Pipeline& pipeline) const {
  if (!device || shared_.memory) return false;
  const auto opened = shared_.devices.cuda(*device);
  if (!opened) return false;
  const int node = (*opened)->numa_node();
  return node >= 0 && node != pipeline.numa_node() && !pipeline.pool().mostly_on(node).value_or(true);
}

void PipelineMaker::drop(const std::shared_ptr<Pipeline>& pipeline) {
  {
    const auto slot = shared_.pipeline.lock();
    if (slot->stopped) return;
    slot->pipeline.reset();
  }
  pipeline->stop();
}

void PipelineMaker::at_open() {
  if (options_.pool_bytes == 0) return;  // auto: the size follows from the first state
  const std::vector<int> active = shared_.devices.active_cuda_devices();
  if (active.empty()) return;
  // Errors are not reported here: the save() of a tensor on that device will report them.
  if (!shared_.devices.cuda(active.front())) return;
  const std::lock_guard lock(mutex_);
  if (can_prepare(slabs_for(0))) static_cast<void>(make(slabs_for(0), active.front(), false));
}

Status PipelineMaker::prepare(State state) {
  SW_TRY(shared_.jobs.usable());
  SW_TRY(check_state(state));
  const std::optional<int> device = main_device(state.tensors);
  if (device) SW_TRY(shared_.devices.cuda(*device));
  try {
    ReplicaShares shares;  // as save() does: other ranks write the rest
    shares.study(state);
    state.tensors = shares.take(std::move(state.tensors));
    SW_ASSIGN(const SnapshotLayout layout,
              plan_layout(state, {.step = 0, .attempt = 0, .rank = options_.rank, .world = options_.world},
                          kMaxHeaderBytes, shared_.files.directory(options_.rank)));
    const std::lock_guard lock(mutex_);
    if (shared_.pipeline.lock()->pipeline) return {};
    const std::uint64_t slabs = slabs_for(slabs_of(layout, options_.slab_bytes));
    if (!can_prepare(slabs)) return {};
    SW_TRY(make(slabs, device, true));
    shared_.pipeline.lock()->skips_steps = true;
    return {};
  } catch (const std::exception& trouble) {  // no memory, no more threads
    return fail(ErrorKind::kOutOfMemory, fmt::format("the pool could not be prepared: {}", trouble.what()));
  }
}

void PipelineMaker::foresee(std::span<const Target> targets) {
  const std::uint64_t state_slabs = total_bytes(targets) / options_.slab_bytes + 1;
  try {
    const std::lock_guard lock(mutex_);
    if (shared_.pipeline.lock()->pipeline) return;
    const std::uint64_t slabs = slabs_for(state_slabs);
    if (!can_prepare(slabs)) return;
    if (const auto made = make(slabs, main_device(targets), true); !made)
      shared_.log.info("the pool is not prepared by this restore: {}", made.error().to_string());
  } catch (const std::exception& trouble) {
    shared_.log.info("the pool is not prepared by this restore: {}", trouble.what());
  }
}

Result<std::shared_ptr<Pipeline>> PipelineMaker::for_save(const State& state, const SnapshotLayout& layout) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Pipeline> pipeline;
  bool foreseen = false;
  {
    const auto slot = shared_.pipeline.lock();
    pipeline = slot->pipeline;
    foreseen = std::exchange(slot->foreseen, false);
    slot->skips_steps = false;
  }
  if (pipeline && !foreseen) return pipeline;
  std::uint64_t slabs = slabs_for(slabs_of(layout, options_.slab_bytes));
  const std::optional<int> device = main_device(state.tensors);
  if (pipeline) {
    // A pool that is a little too small costs less than touching all of it again.
    const std::uint64_t have = pipeline->pool().slab_count();
    const bool large_enough = options_.pool_bytes != 0 || slabs <= have + have / 8;
    if (large_enough && !far_from(device, *pipeline)) return pipeline;
    shared_.log.info("the pool of {} was prepared for {}, and is made again", format_bytes(pipeline->pool_bytes()),
                     large_enough ? "memory that is far from the GPU" : "a smaller state");
    drop(pipeline);
    pipeline.reset();
    slabs = std::max(slabs, have);
  }
  SW_ASSIGN(pipeline, make(slabs, device, false));
  shared_.log.info("the pool has {} for a state of {}; files are written with {}", format_bytes(pipeline->pool_bytes()),
                   format_bytes(layout.size_bytes), pipeline->writer().backend());
  return pipeline;
}

Result<bool> PipelineMaker::wait_touched(std::chrono::milliseconds timeout) {
  SW_TRY(shared_.jobs.usable());
  const std::shared_ptr<Pipeline> pipeline = shared_.pipeline.lock()->pipeline;
  return pipeline && pipeline->pool().wait_touched_for(timeout);
}

}  // namespace slackwater
