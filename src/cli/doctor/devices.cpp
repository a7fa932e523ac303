#include "cli/doctor/devices.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/doctor/aligned_buffer.hpp"
#include "cli/doctor/copies.hpp"
#include "cli/doctor/order.hpp"
#include "cli/doctor/thresholds.hpp"
#include "cli/doctor/turns.hpp"
#include "cli/text.hpp"
#include "stage/pool.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr const char* kDevice = "device";
constexpr std::uint64_t kSlabBytes = 8u << 20;
constexpr std::uint64_t kMostPoolBytes = 512ull << 20;
constexpr std::uint64_t kQuickPoolBytes = 32ull << 20;
constexpr std::uint64_t kProbeBytes = 1u << 20;

std::uint64_t pool_bytes_for(const Settings& settings, std::uint64_t usable_bytes) {
  const std::uint64_t wanted = std::min(settings.quick ? kQuickPoolBytes : kMostPoolBytes, usable_bytes / 4);
  return std::max(round_down(wanted, kSlabBytes), 2 * kSlabBytes);
}

Check device_line(std::string name, Verdict verdict = Verdict::kPass, std::string figure = {}) {
  return {.section = kDevice, .name = std::move(name), .verdict = verdict, .figure = std::move(figure)};
}

// One small copy each way.
Status probe(cuda::CudaScratch& scratch, std::chrono::milliseconds time_limit) {
  const auto device = scratch.allocate(kProbeBytes);
  if (!device) return fail(device.error());
  const auto host = scratch.allocate_pinned(2 * kProbeBytes);
  if (!host) return fail(host.error());
  fill_random({*host, kProbeBytes}, 4);
  for (const Status& step : {scratch.upload(*device, *host, kProbeBytes),
                             scratch.download(*host + kProbeBytes, *device, kProbeBytes), scratch.wait(time_limit)})
    if (!step) return step;
  if (std::memcmp(*host, *host + kProbeBytes, kProbeBytes) != 0)
    return fail(ErrorKind::kDevice, "bytes that were copied to the device and back have changed");
  return {};
}

Check register_check(const Settings& settings, cuda::CudaScratch& scratch, std::uint64_t usable_bytes) {
  Check check = device_line(scratch.name() + " register");
  check.threshold = fmt::format("{:.1f} GB/s, slowest {:.0f} ms", kRegisterGbs, kRegisterSlowestMs);
  const std::uint64_t size_bytes = pool_bytes_for(settings, usable_bytes);
  const AlignedBuffer memory(size_bytes);
  fill_random(memory.bytes(), 5);
  double slowest = 0;
  std::vector<std::byte*> registered;
  Status status;
  const Stopwatch all;
  for (std::uint64_t at = 0; status && at < size_bytes; at += kSlabBytes) {
    const Stopwatch one;
    status = scratch.register_host(memory.bytes().subspan(at, kSlabBytes));
    slowest = std::max(slowest, one.seconds() * 1e3);
    if (status) registered.push_back(memory.bytes().data() + at);
  }
  const double gigabytes_per_second = static_cast<double>(size_bytes) / all.seconds() / 1e9;
  for (std::byte* const slab : registered) scratch.unregister_host(slab);
  if (!status) {
    check.verdict = Verdict::kFail;
    check.figure =
        fmt::format("refused after {}: {}", format_bytes(registered.size() * kSlabBytes), status.error().to_string());
    check.remedy = "copies still work, but slowly: raise the memory limits of the container, or set a smaller pool";
    return check;
  }
  check.figure =
      fmt::format("{:.2f} GB/s, slowest call of {} {:.2f} ms", gigabytes_per_second, registered.size(), slowest);
  if (gigabytes_per_second < kRegisterGbs || slowest > kRegisterSlowestMs) {
    check.verdict = Verdict::kWarn;
    check.remedy = "call prepare(state) before training, so that no step waits for the pool";
  }
  return check;
}

}  // namespace

VisibleGpus visible_gpus(const std::string& sys, const std::string& dev) {
  VisibleGpus gpus;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(sys + "/bus/pci/devices", ignored)) {
    const std::string vendor = read_text(entry.path().string() + "/vendor");
    const std::string kind = read_text(entry.path().string() + "/class");
    const bool display = kind.starts_with("0x03");      // VGA, 3D and other display controllers
    const bool accelerator = kind.starts_with("0x12");  // processing accelerators
    if (vendor.starts_with("0x10de") && (display || accelerator)) ++gpus.nvidia;
    // VGA controllers of AMD are in many laptops, where nobody trains on them.
    if (vendor.starts_with("0x1002") && (accelerator || kind.starts_with("0x0302") || kind.starts_with("0x0380")))
      ++gpus.amd;
  }
  int nodes = 0;
  while (std::filesystem::exists(fmt::format("{}/nvidia{}", dev, nodes), ignored)) ++nodes;
  gpus.nvidia = std::max(gpus.nvidia, nodes);
  return gpus;
}

Check driver_check(const Result<cuda::DriverFacts>& driver, const VisibleGpus& gpus, bool named_by_user) {
  Check check = device_line("driver");
  if (!driver || driver->device_count == 0) {
    const std::string why = driver ? "the driver shows no device (CUDA_VISIBLE_DEVICES?)" : driver.error().to_string();
    if (gpus.nvidia > 0 || named_by_user) {
      check.verdict = Verdict::kFail;
      check.figure = gpus.nvidia > 0 ? fmt::format("{}, but: {}",
                                                   plural(static_cast<std::uint64_t>(gpus.nvidia), "NVIDIA GPU"), why)
                                     : why;
      check.threshold = "a driver that can be used";
      check.remedy = "nvidia-smi must work first; in a container, pass the GPUs on (docker run --gpus all)";
    } else {
      check.verdict = Verdict::kSkip;
      check.figure = gpus.amd > 0 ? "AMD GPUs are not supported yet; training on the CPU is"
                                  : "no NVIDIA GPU and no driver here: fine for training on the CPU";
    }
    return check;
  }
  check.figure = fmt::format("CUDA {}, {}, {}", driver->version, driver->path,
                             plural(static_cast<std::uint64_t>(driver->device_count), "GPU"));
  check.threshold = "all functions";
  for (const cuda::MissingFunction& missing : driver->missing) {
    check.verdict = Verdict::kWarn;
    check.figure += fmt::format("; no {}: {}", missing.symbol, missing.consequence);
    check.remedy = "a driver for CUDA 12.8 or newer has it";
  }
  return check;
}

Check connections_check(const char* value) {
  Check check = device_line("max connections");
  check.threshold = "unset, or more than 1";
  check.figure = fmt::format("CUDA_DEVICE_MAX_CONNECTIONS is {}", value == nullptr ? "not set" : value);
  if (value == nullptr || std::atoi(value) >= kConnectionsWanted) return check;
  check.verdict = Verdict::kWarn;
  check.remedy = "copies may wait behind kernels: unset it, unless Megatron's tensor parallelism needs it";
  return check;
}

// PyTorch 2.9 renamed PYTORCH_CUDA_ALLOC_CONF to PYTORCH_ALLOC_CONF and reads both.
Check allocator_check(const char* alloc_conf, const char* cuda_alloc_conf) {
  Check check = device_line("allocator");
  if (alloc_conf != nullptr && cuda_alloc_conf != nullptr && std::string_view(alloc_conf) != cuda_alloc_conf) {
    check.verdict = Verdict::kWarn;
    check.figure = fmt::format("PYTORCH_ALLOC_CONF={} and PYTORCH_CUDA_ALLOC_CONF={}", alloc_conf, cuda_alloc_conf);
    check.threshold = "one of them";
    check.remedy = "unset PYTORCH_CUDA_ALLOC_CONF";
    return check;
  }
  const char* const settings = alloc_conf != nullptr ? alloc_conf : cuda_alloc_conf;
  check.figure = settings == nullptr ? "PyTorch's defaults" : settings;
  return check;
}

Check gpu_check(const std::string& name, const cuda::DeviceFacts& facts) {
  Check check = device_line(name);
  check.figure = fmt::format("{}, {}, compute capability {}", facts.model, format_bytes(facts.total_bytes),
                             facts.compute_capability);
  if (facts.numa_node >= 0) check.figure += fmt::format(", NUMA node {}", facts.numa_node);
  return check;
}

Check copy_engines_check(const std::string& name, int copy_engines) {
  Check check = device_line(name + " copy engines");
  check.figure = fmt::format("{}", copy_engines);
  check.threshold = fmt::format("{}", kCopyEnginesWanted);
  if (copy_engines >= kCopyEnginesWanted) return check;
  check.verdict = Verdict::kWarn;
  check.remedy = "this GPU cannot copy both ways at once: saving slows the uploads of training down";
  return check;
}

Check free_memory_check(const std::string& name, const cuda::DeviceFacts& facts) {
  Check check = device_line(name + " free memory");
  check.figure = fmt::format("{} of {}", format_bytes(facts.free_bytes), format_bytes(facts.total_bytes));
  check.threshold = fmt::format("{} for these checks; saving itself needs none", format_bytes(kDeviceMemoryNeeded));
  if (facts.free_bytes >= kDeviceMemoryNeeded) return check;
  check.verdict = Verdict::kFail;
  check.remedy = "another process holds it: nvidia-smi";
  return check;
}

Check touch_check(const Settings& settings, std::uint64_t usable_bytes) {
  Check check = device_line("pool touch");
  check.threshold = fmt::format("{:.1f} GB/s, {:.0f} % on huge pages", kTouchGbs, kHugePart * 100);
  const std::uint64_t size_bytes = pool_bytes_for(settings, usable_bytes);
  // A thread has touched its slab since it reported the one before.
  std::mutex mutex;
  std::vector<std::pair<std::thread::id, double>> threads;  // guarded by mutex: when each reported last
  double slowest = 0;                                       // guarded by mutex
  const Stopwatch watch;
  const auto touched = [&](int, std::span<std::byte>) {
    const std::lock_guard lock(mutex);
    const double now = watch.seconds();
    auto mine = std::ranges::find(threads, std::this_thread::get_id(), &std::pair<std::thread::id, double>::first);
    if (mine == threads.end()) mine = threads.insert(threads.end(), {std::this_thread::get_id(), 0});
    slowest = std::max(slowest, now - std::exchange(mine->second, now));
  };
  auto pool = Pool::create(kSlabBytes, static_cast<std::uint32_t>(size_bytes / kSlabBytes), touched, -1,
                           {.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 4u)});
  if (!pool) {
    check.verdict = Verdict::kFail;
    check.figure = pool.error().to_string();
    check.remedy = "free memory, or raise the limit on it (ulimit -v)";
    return check;
  }
  (*pool)->wait_touched();
  const double gigabytes_per_second = static_cast<double>(size_bytes) / watch.seconds() / 1e9;
  const auto begin = reinterpret_cast<std::uintptr_t>((*pool)->memory().data());
  const double huge = static_cast<double>(huge_page_bytes(read_text("/proc/self/smaps"), begin, begin + size_bytes)) /
                      static_cast<double>(size_bytes);
  const std::lock_guard lock(mutex);
  check.figure = fmt::format("{:.2f} GB/s with {}, slowest slab {:.1f} ms, {:.0f} % on huge pages",
                             gigabytes_per_second, plural(threads.size(), "thread"), slowest * 1e3, huge * 100);
  if (huge < kHugePart) {
    check.verdict = Verdict::kWarn;
    check.remedy =
        "huge pages are off, or slow to make here, and writes are slower without: "
        "echo 1 > /proc/sys/vm/compact_memory";
  }
  if (gigabytes_per_second < kTouchGbs) {
    check.verdict = Verdict::kWarn;
    check.remedy = "call prepare(state) before training, so that no step waits for the pool";
  }
  return check;
}

int driver_checks(const Settings& settings, const MachineFiles& files, const Emit& emit) {
  const auto driver = cuda::inspect_driver(settings.cuda_driver);
  Check check = driver_check(driver, visible_gpus(files.sys, "/dev"), settings.cuda_driver_given);
  const bool usable = check.verdict == Verdict::kPass || check.verdict == Verdict::kWarn;
  emit(std::move(check));
  if (!usable) {
    emit(no_copy_turns_check("no GPU that can be used: see the line about the driver"));
    return 0;
  }
  emit(connections_check(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")));
  emit(allocator_check(std::getenv("PYTORCH_ALLOC_CONF"), std::getenv("PYTORCH_CUDA_ALLOC_CONF")));
  return driver->device_count;
}

void gpu_checks(const Settings& settings, int ordinal, std::uint64_t usable_host_bytes, const Emit& emit) {
  const std::string name = fmt::format("cuda:{}", ordinal);
  const auto give_up = [&](const char* what, const Error& error) {
    Check check = device_line(fmt::format("{} {}", name, what), Verdict::kFail, error.to_string());
    check.remedy = "nvidia-smi -q and dmesg show its state; a reset may help: nvidia-smi -r";
    emit(std::move(check));
    emit({.section = "copies", .name = name, .verdict = Verdict::kSkip, .figure = "this GPU cannot be used now"});
  };
  auto opened = cuda::CudaScratch::open(settings.cuda_driver, ordinal);
  if (!opened) return give_up("context", opened.error());
  cuda::CudaScratch* const scratch = opened->release();  // never destroyed: that could wait for a device that hangs
  const auto facts = scratch->facts();
  if (!facts) return give_up("facts", facts.error());
  emit(gpu_check(name, *facts));
  emit(copy_engines_check(name, facts->copy_engines));
  Check free_memory = free_memory_check(name, *facts);
  const bool room = free_memory.verdict == Verdict::kPass;
  emit(std::move(free_memory));
  if (!room) {
    emit({.section = "copies", .name = name, .verdict = Verdict::kSkip, .figure = "too little of its memory is free"});
    return;
  }
  if (const Status works = probe(*scratch, Settings::short_time_limit()); !works)
    return give_up("copy and back", works.error());
  scratch->free_all();

  const std::uint64_t most_bytes = std::min(facts->free_bytes / 4, usable_host_bytes / 8);
  const auto driver = cuda::inspect_driver(settings.cuda_driver);
  const double turns_seconds = std::clamp(kTurnsSeconds / (driver ? std::max(driver->device_count, 1) : 1),
                                          kTurnsSecondsLeast, kTurnsSecondsMost);
  const std::vector<std::function<void(const Emit&)>> checks{
      [&](const Emit& to) { to(register_check(settings, *scratch, usable_host_bytes)); },
      [&](const Emit& to) { to(batches_check(settings, *scratch)); },
      [&](const Emit& to) { to(rounds_check(settings, *scratch)); },
      [&](const Emit& to) { to(missing_fence_check(settings, *scratch)); },
      [&](const Emit& to) { to(full_device_check(settings, *scratch)); },
      [&](const Emit& to) { copy_checks(settings, *scratch, most_bytes, to); },
      [&](const Emit& to) { to(copy_turns_check(settings, *scratch, most_bytes, turns_seconds)); },
  };
  for (const auto& run : checks) {
    bool healthy = true;
    run([&](Check check) {
      healthy = healthy && check.verdict != Verdict::kFail;
      emit(std::move(check));
    });
    // A device that hangs or is lost fails everything that follows. Freeing its memory could hang, too.
    if (!healthy) {
      const Status works = probe(*scratch, Settings::short_time_limit());
      if (!works) return give_up("copy and back", works.error());
    }
    scratch->free_all();
  }
}

}  // namespace slackwater::cli::doctor
