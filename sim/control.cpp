// The control interface (sim_cuda.h): the machine, counters and faults.
#include <cstdio>
#include <string>

#include "sim/sim_cuda.h"
#include "sim/simulator.hpp"

using namespace slackwater::sim;
using slackwater::cuda::CUevent;

namespace {

// Calls `body` with the device, holding the lock. CUDA_ERROR_INVALID_DEVICE if there is no such device.
template <class Body>
int on_device(int ordinal, Body body) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  Device* const device = sim.device_at(ordinal);
  if (device == nullptr) return static_cast<int>(CUresult::kInvalidDevice);
  body(*device);
  return 0;
}

int64_t nanoseconds(TimePoint time) { return std::chrono::duration_cast<Duration>(time.time_since_epoch()).count(); }

}  // namespace

int swsim_configure(int device_count) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  if (sim.initialized) return static_cast<int>(CUresult::kNotPermitted);
  if (device_count <= 0) return static_cast<int>(CUresult::kInvalidValue);
  sim.make_devices(device_count);
  return 0;
}

int swsim_get_config(int device, swsim_device_config* config) {
  return on_device(device, [config](const Device& found) { *config = found.config; });
}

int swsim_set_config(int device, const swsim_device_config* config) {
  return on_device(device, [config](Device& found) {
    found.config = *config;
    simulator().schedule.notify_progress();  // the queue may have room now
  });
}

uint64_t swsim_reset(void) {
  Simulator& sim = simulator();
  {
    const std::lock_guard lock(sim.mutex);
    if (const std::uint64_t alive = sim.alive(); alive > 0) return alive;
  }
  sim.stop();
  const std::lock_guard lock(sim.mutex);
  sim.forget_everything();
  return 0;
}

int swsim_take_memory(int device, uint64_t leave_bytes) {
  return on_device(device, [leave_bytes](Device& found) { found.take_memory(leave_bytes); });
}

int swsim_release_memory(int device) {
  return on_device(device, [](Device& found) { found.taken_bytes = 0; });
}

void swsim_counters(swsim_counts* counts) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  *counts = sim.counts;
  for (const auto& device : sim.devices) {
    counts->contexts += device->context != nullptr ? 1 : 0;
    counts->device_bytes += sim.memory.used_bytes(device->ordinal);
  }
  counts->streams = sim.streams.size();
  counts->events = sim.events.size();
  counts->allocations = sim.memory.count();
  counts->registrations = sim.host.count();
  counts->pinned_bytes = sim.host.pinned_bytes();
}

uint64_t swsim_calls(const char* symbol) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  const auto found = sim.calls.find(std::string_view(symbol));
  return found != sim.calls.end() ? found->second : 0;
}

int swsim_engine(int device, int direction, swsim_engine_stats* stats) {
  return on_device(device, [=](const Device& found) {
    *stats = (direction == SWSIM_D2H ? found.to_host : found.to_device).stats();
  });
}

int64_t swsim_event_time_ns(void* event) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  const EventPtr found = sim.event_of(static_cast<CUevent>(event));
  if (found == nullptr || found->record == nullptr || !found->record->done) return -1;
  return nanoseconds(found->record->done_at);
}

int64_t swsim_now_ns(void) { return nanoseconds(Clock::now()); }

void swsim_fail_call(const char* symbol, uint64_t nth, int code, int sticky) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  if (nth > 0) sim.call_faults.push_back({symbol, nth, static_cast<CUresult>(code), sticky != 0});
}

int swsim_fail_copy(int device, uint64_t nth, int code) {
  return on_device(device, [=](Device& found) {
    if (nth > 0) found.copy_faults.push_back({nth, static_cast<CUresult>(code)});
  });
}

int swsim_stall_copies(int device, int mode) {
  return on_device(device, [=](Device& found) { found.set_stall(mode); });
}

int swsim_wait_begun(int device, int direction, uint64_t copies) {
  Simulator& sim = simulator();
  std::unique_lock lock(sim.mutex);
  Device* const found = sim.device_at(device);
  if (found == nullptr) return static_cast<int>(CUresult::kInvalidDevice);
  CopyEngine& engine = direction == SWSIM_D2H ? found->to_host : found->to_device;
  return static_cast<int>(engine.wait_begun(lock, copies) ? CUresult::kSuccess : CUresult::kNotReady);
}

int swsim_lose_device(int device) {
  return on_device(device, [](Device& found) { found.fail(CUresult::kUnknown); });
}

int swsim_set_cost(int cost, uint64_t call_ns, uint64_t ns_per_mib) {
  if (cost < 0 || cost >= SWSIM_COSTS) return static_cast<int>(CUresult::kInvalidValue);
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  sim.driver_lock.set_cost(cost, {.call_ns = call_ns, .ns_per_mib = ns_per_mib});
  return 0;
}

void swsim_set_driver_lock(int on) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  sim.driver_lock.set_exclusive(on != 0);
}

void swsim_driver_lock(swsim_lock_stats* stats) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  *stats = sim.driver_lock.stats();
}

void swsim_crash_on_bad_handles(int on) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  sim.crash_on_bad_handles = on != 0;
}

void swsim_break(unsigned faults) {
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  sim.broken = faults;
}

int swsim_flip_copies(int device, uint64_t every) {
  return on_device(device, [=](Device& found) {
    found.flip_every = every;
    found.flip_count = 0;
  });
}

int swsim_set(const char* settings) {
  const auto parsed = Settings::parse(settings);
  Simulator& sim = simulator();
  const std::lock_guard lock(sim.mutex);
  if (parsed.has_value() && parsed->device_count() > 0) return static_cast<int>(CUresult::kNotPermitted);
  if (!parsed.has_value()) {
    std::fprintf(stderr, "swsim: swsim_set: %s\n", parsed.error().c_str());
    return static_cast<int>(CUresult::kInvalidValue);
  }
  if (sim.device_at(0) == nullptr) return static_cast<int>(CUresult::kNoDevice);
  if (sim.device_at(parsed->highest_device()) == nullptr && parsed->highest_device() >= 0) {
    return static_cast<int>(CUresult::kInvalidDevice);
  }
  parsed->apply_to(sim);
  for (const auto& device : sim.devices) parsed->apply_to(*device);
  sim.schedule.notify_progress();
  return 0;
}
