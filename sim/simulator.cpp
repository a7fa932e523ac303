#include "sim/simulator.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/thread.hpp"

namespace slackwater::sim {
namespace {

constexpr int kMaxDevices = 16;

// Joins the threads when the process exits or the library goes; the simulator itself stays.
struct Shutdown {
  Simulator* simulator;
  ~Shutdown() {
    if (simulator->forked()) return;  // its threads are the parent's
    {
      const std::lock_guard lock(simulator->mutex);
      simulator->deinitialized = true;
    }
    simulator->stop();
  }
};

}  // namespace

Simulator& simulator() {
  static Simulator* const instance = new Simulator;
  static const Shutdown at_exit{instance};
  return *instance;
}

bool Simulator::forked() const {
  const pid_t owner = owner_.load(std::memory_order_relaxed);
  return owner != 0 && owner != ::getpid();
}

ThreadState& Simulator::this_thread() const {
  thread_local ThreadState state;
  if (state.generation != generation_) state = ThreadState{.generation = generation_};
  return state;
}

CUresult Simulator::admit(const char* symbol, unsigned needs, Call& call) {
  ++calls[symbol];
  read_settings();
  if ((needs & kInit) != 0) driver_lock.wait(call.lock);
  if (deinitialized) return CUresult::kDeinitialized;
  if (!call.thread.contexts.empty()) call.device = device_of(call.thread.contexts.back());

  CUresult ordered = CUresult::kSuccess;
  for (CallFault& fault : call_faults) {
    if (fault.symbol != symbol || --fault.remaining > 0) continue;
    ordered = fault.code;
    if (fault.sticky && call.device != nullptr) call.device->fail(fault.code);
  }
  std::erase_if(call_faults, [](const CallFault& fault) { return fault.remaining == 0; });
  if (ordered != CUresult::kSuccess) return ordered;

  if ((needs & kInit) != 0 && !initialized) return CUresult::kNotInitialized;
  if ((needs & kContext) == kContext) {
    if (call.thread.contexts.empty()) return CUresult::kInvalidContext;
    if (call.device == nullptr) return CUresult::kContextIsDestroyed;
    if ((needs & kCleanup) == 0 && call.device->failed()) return call.device->error;
  }
  return (needs & kUnsafe) != 0 ? captures.check_unsafe(call.thread) : CUresult::kSuccess;
}

CUresult Simulator::spend(Call& call, int cost, std::uint64_t size_bytes) {
  driver_lock.spend(call.lock, cost, size_bytes);
  return call.device->error;
}

void Simulator::read_settings() {
  if (settings_.has_value()) return;
  const char* const text = std::getenv("SWSIM_CONFIG");
  auto parsed = Settings::parse(text != nullptr ? text : "");
  settings_wrong_ = !parsed.has_value();
  if (settings_wrong_) std::fprintf(stderr, "swsim: SWSIM_CONFIG: %s\n", parsed.error().c_str());
  settings_ = parsed.value_or(Settings());
  settings_->apply_to(*this);
}

void Simulator::make_devices(int count) {
  read_settings();
  if (count <= 0) count = settings_->device_count();
  if (count <= 0) {
    const char* const text = std::getenv("SWSIM_DEVICES");
    count = text != nullptr ? std::atoi(text) : 1;
  }
  devices.clear();
  for (int ordinal = 0; ordinal < std::clamp(count, 0, kMaxDevices); ++ordinal) {
    devices.push_back(std::make_unique<Device>(*this, ordinal));
    settings_->apply_to(*devices.back());
  }
}

CUresult Simulator::init() {
  if (initialized) return CUresult::kSuccess;
  if (settings_wrong_) return CUresult::kInvalidValue;
  if (devices.empty()) make_devices(0);
  if (devices.empty()) return CUresult::kNoDevice;
  if (settings_->highest_device() >= static_cast<int>(devices.size())) {
    std::fprintf(stderr, "swsim: SWSIM_CONFIG: there is no device %d\n", settings_->highest_device());
    return CUresult::kInvalidValue;
  }
  if (!threads_.empty()) return CUresult::kOperatingSystem;  // an earlier call could not start all of them
  try {
    for (const auto& device : devices) {
      const std::string suffix = std::to_string(device->ordinal);
      threads_.push_back(start_thread("sim-d2h-" + suffix, [&d = *device](const auto&) { d.to_host.run(); }));
      threads_.push_back(start_thread("sim-h2d-" + suffix, [&d = *device](const auto&) { d.to_device.run(); }));
      threads_.push_back(start_thread("sim-run-" + suffix, [&d = *device](const auto&) { d.compute.run(); }));
    }
  } catch (const std::system_error&) {
    return CUresult::kOperatingSystem;  // those that run wait for work that never comes
  }
  owner_ = ::getpid();
  initialized = true;
  return CUresult::kSuccess;
}

void Simulator::stop() {
  std::vector<std::jthread> threads;
  {
    const std::lock_guard lock(mutex);
    stopping = true;
    for (const auto& device : devices) device->wake();
    schedule.notify_progress();
    driver_lock.wake();
    threads.swap(threads_);
  }
}

std::uint64_t Simulator::alive() const {
  std::uint64_t contexts = 0;
  for (const auto& device : devices) contexts += device->retained;
  return contexts + streams.size() + events.size() + memory.count() + host.count() + counts.pending;
}

void Simulator::forget_everything() {
  devices.clear();
  graphs.clear();
  graph_execs.clear();
  memory.forget_freed();
  counts = {};
  calls.clear();
  call_faults.clear();
  crash_on_bad_handles = false;
  broken = 0;
  driver_lock.reset();
  settings_.reset();
  initialized = false;
  stopping = false;
  owner_ = 0;
  ++generation_;
}

void Simulator::destroy_context(Call& call, Device& device) {
  schedule.wait_for_device(call, device);
  for (const auto& [handle, stream] : streams) {
    if (stream->device == &device) captures.abandon(*stream);
  }
  for (const auto& [thread, stream] : device.thread_streams) captures.abandon(*stream);
  const auto belongs = [&device](const auto& entry) { return entry.second->device == &device; };
  counts.abandoned += std::erase_if(streams, belongs) + std::erase_if(events, belongs);
  counts.abandoned += memory.free_all_of(device.ordinal) + host.remove_all_of(device.ordinal);
  device.legacy_stream.reset();
  device.thread_streams.clear();
  device.orphans.clear();
  device.context = nullptr;
  device.error = CUresult::kSuccess;
}

std::uint64_t Simulator::free_bytes(const Device& device) const {
  const std::uint64_t total = device.config.memory_bytes;
  return total - std::min(total, memory.used_bytes(device.ordinal) + device.taken_bytes);
}

Device* Simulator::device_at(int ordinal) {
  if (devices.empty() && !initialized) make_devices(0);
  return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices.size() ? devices[ordinal].get() : nullptr;
}

Device* Simulator::device_of(cuda::CUcontext context) {
  for (const auto& device : devices) {
    if (context != nullptr && device->context == context) return device.get();
  }
  return nullptr;
}

StreamPtr Simulator::stream_of(const Call& call, cuda::CUstream handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number == cuda::kStreamLegacy) return call.device->legacy_stream;
  if (number == cuda::kStreamPerThread) {
    StreamPtr& stream = call.device->thread_streams[std::this_thread::get_id()];
    if (stream == nullptr) stream = std::make_shared<Stream>(Stream{.device = call.device});
    return stream;
  }
  const auto found = streams.find(number);
  if (found != streams.end()) return found->second;
  bad_handle(handle);
  return nullptr;
}

EventPtr Simulator::event_of(cuda::CUevent handle) {
  const auto found = events.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found != events.end()) return found->second;
  bad_handle(handle);
  return nullptr;
}

CUresult Simulator::bad_handle(const void* handle) {
  ++counts.invalid_handles;
  if (crash_on_bad_handles && handle != nullptr) {
    (void)::raise(SIGSEGV);  // a handle of the real driver is the address of its object
    std::abort();            // somebody ignores the signal
  }
  return CUresult::kInvalidHandle;
}

}  // namespace slackwater::sim
