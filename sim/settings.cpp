#include "sim/settings.hpp"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <utility>

#include <fmt/format.h>

#include "sim/simulator.hpp"

namespace slackwater::sim {
namespace {

constexpr std::string_view kKnownKeys =
    "devices, memory_bytes, d2h_bytes_per_s, h2d_bytes_per_s, d2d_bytes_per_s, pageable_bytes_per_s, copy_latency_ns, "
    "numa_node, copy_priorities, queue_limit, host_latency_ns, leave_bytes, fail_copy, stall, lose_device, "
    "flip_copies, fail_call, broken, crash_on_bad_handles, driver_lock, register_cost, host_alloc_cost, "
    "device_alloc_cost, stream_cost, event_cost";

constexpr std::pair<std::string_view, std::uint64_t swsim_device_config::*> kSizes[] = {
    {"memory_bytes", &swsim_device_config::memory_bytes},
    {"d2h_bytes_per_s", &swsim_device_config::d2h_bytes_per_s},
    {"h2d_bytes_per_s", &swsim_device_config::h2d_bytes_per_s},
    {"d2d_bytes_per_s", &swsim_device_config::d2d_bytes_per_s},
    {"pageable_bytes_per_s", &swsim_device_config::pageable_bytes_per_s},
    {"copy_latency_ns", &swsim_device_config::copy_latency_ns},
    {"queue_limit", &swsim_device_config::queue_limit},
    {"host_latency_ns", &swsim_device_config::host_latency_ns},
};

constexpr std::pair<std::string_view, std::int32_t swsim_device_config::*> kNumbers[] = {
    {"numa_node", &swsim_device_config::numa_node},
    {"copy_priorities", &swsim_device_config::copy_priorities},
};

constexpr std::pair<std::string_view, int> kCosts[] = {
    {"register_cost", SWSIM_COST_REGISTER},
    {"host_alloc_cost", SWSIM_COST_HOST_ALLOC},
    {"device_alloc_cost", SWSIM_COST_DEVICE_ALLOC},
    {"stream_cost", SWSIM_COST_STREAM},
    {"event_cost", SWSIM_COST_EVENT},
};

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <std::integral Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::unexpected<std::string> wrong_value(std::string_view key, std::string_view value, std::string_view right) {
  return std::unexpected(fmt::format("'{}' is not a value of {}; write {}", value, key, right));
}

}  // namespace

std::expected<Settings, std::string> Settings::parse(std::string_view text) {
  Settings settings;
  for (const std::string_view entry : split(text, ',')) {
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) return std::unexpected(fmt::format("'{}' is not key=value", entry));
    std::string_view key = entry.substr(0, equals);
    const std::string_view value = entry.substr(equals + 1);
    std::optional<int> device;
    if (const std::size_t at = key.find('@'); at != std::string_view::npos) {
      device = number<int>(key.substr(at + 1));
      if (!device.has_value()) return std::unexpected(fmt::format("'{}' does not end with a device's number", key));
      key = key.substr(0, at);
      settings.highest_device_ = std::max(settings.highest_device_, *device);
    }
    std::expected<bool, std::string> known = settings.add_config(key, device, value);
    if (known.has_value() && !*known) known = settings.add_device_fault(key, device, value);
    if (known.has_value() && !*known && !device.has_value()) known = settings.add_global(key, value);
    if (!known.has_value()) return std::unexpected(known.error());
    if (!*known) {
      return std::unexpected(fmt::format("unknown key '{}'; the keys are: {}", entry.substr(0, equals), kKnownKeys));
    }
  }
  return settings;
}

std::expected<bool, std::string> Settings::add_config(std::string_view key, std::optional<int> device,
                                                      std::string_view value) {
  for (const auto& [name, member] : kSizes) {
    if (name != key) continue;
    const auto size = number<std::uint64_t>(value);
    if (!size.has_value()) return wrong_value(key, value, "a whole number, without a unit");
    configs_.push_back({device, [member, size](Device& found) { found.config.*member = *size; }});
    return true;
  }
  for (const auto& [name, member] : kNumbers) {
    if (name != key) continue;
    const auto small = number<std::int32_t>(value);
    if (!small.has_value()) return wrong_value(key, value, "a whole number");
    configs_.push_back({device, [member, small](Device& found) { found.config.*member = *small; }});
    return true;
  }
  return false;
}

std::expected<bool, std::string> Settings::add_device_fault(std::string_view key, std::optional<int> device,
                                                            std::string_view value) {
  const auto add = [&](std::function<void(Device&)> set) {
    device_faults_.push_back({device, std::move(set)});
    return true;
  };
  if (key == "leave_bytes" || key == "flip_copies") {
    const auto size = number<std::uint64_t>(value);
    if (!size.has_value()) return wrong_value(key, value, "a whole number, without a unit");
    if (key == "leave_bytes") return add([size](Device& found) { found.take_memory(*size); });
    return add([size](Device& found) { found.flip_every = *size; });
  }
  if (key == "fail_copy") {
    const auto parts = split(value, ':');
    const auto nth = number<std::uint64_t>(parts[0]);
    const auto code = parts.size() == 2 ? number<unsigned>(parts[1]) : std::nullopt;
    if (!code.has_value() || nth.value_or(0) == 0) return wrong_value(key, value, "nth:code, with nth from 1");
    return add([=](Device& found) { found.copy_faults.push_back({*nth, static_cast<CUresult>(*code)}); });
  }
  if (key == "stall") {
    constexpr std::pair<std::string_view, int> kModes[] = {
        {"off", SWSIM_STALL_OFF}, {"on", SWSIM_STALL_ON}, {"halfway", SWSIM_STALL_HALFWAY}};
    for (const auto& [name, mode] : kModes) {
      if (name == value) return add([mode](Device& found) { found.set_stall(mode); });
    }
    return wrong_value(key, value, "off, on or halfway");
  }
  if (key == "lose_device") {
    if (value != "1") return wrong_value(key, value, "1");
    return add([](Device& found) { found.fail(CUresult::kUnknown); });
  }
  return false;
}

std::expected<bool, std::string> Settings::add_global(std::string_view key, std::string_view value) {
  if (key == "devices") {
    device_count_ = number<int>(value).value_or(0);
    if (device_count_ <= 0) return wrong_value(key, value, "a number from 1");
    return true;
  }
  if (key == "fail_call") {
    const auto parts = split(value, ':');
    constexpr std::string_view kRight = "symbol:nth:code:sticky, with nth from 1 and sticky 0 or 1";
    if (parts.size() < 3 || parts.size() > 4) return wrong_value(key, value, kRight);
    const auto nth = number<std::uint64_t>(parts[1]);
    const auto code = number<unsigned>(parts[2]);
    const auto sticky = number<unsigned>(parts.size() == 4 ? parts[3] : "0");
    if (nth.value_or(0) == 0 || !code.has_value() || sticky.value_or(2) > 1) return wrong_value(key, value, kRight);
    const Simulator::CallFault fault{std::string(parts[0]), *nth, static_cast<CUresult>(*code), *sticky == 1};
    global_.emplace_back([fault](Simulator& sim) { sim.call_faults.push_back(fault); });
    return true;
  }
  if (key == "broken") {
    unsigned faults = 0;
    for (const std::string_view name : split(value, '+')) {
      if (name == "ignore_waits") {
        faults |= SWSIM_IGNORE_WAITS;
      } else if (name == "wrong_batches") {
        faults |= SWSIM_WRONG_BATCHES;
      } else if (name != "nothing") {
        return wrong_value(key, value, "nothing, ignore_waits, wrong_batches, or several joined by +");
      }
    }
    global_.emplace_back([faults](Simulator& sim) { sim.broken = faults; });
    return true;
  }
  if (key == "crash_on_bad_handles" || key == "driver_lock") {
    if (value != "0" && value != "1") return wrong_value(key, value, "0 or 1");
    const bool on = value == "1";
    if (key == "driver_lock") {
      global_.emplace_back([on](Simulator& sim) { sim.driver_lock.set_exclusive(on); });
    } else {
      global_.emplace_back([on](Simulator& sim) { sim.crash_on_bad_handles = on; });
    }
    return true;
  }
  for (const auto& [name, cost] : kCosts) {
    if (name != key) continue;
    const auto parts = split(value, ':');
    const auto call_ns = number<std::uint64_t>(parts[0]);
    const auto ns_per_mib = number<std::uint64_t>(parts.size() == 2 ? parts[1] : "0");
    if (!call_ns.has_value() || !ns_per_mib.has_value() || parts.size() > 2) {
      return wrong_value(key, value, "ns per call, or ns per call:ns per MiB");
    }
    global_.emplace_back([cost, call_ns, ns_per_mib](Simulator& sim) {
      sim.driver_lock.set_cost(cost, {.call_ns = *call_ns, .ns_per_mib = *ns_per_mib});
    });
    return true;
  }
  return false;
}

void Settings::apply_to(Simulator& sim) const {
  for (const auto& set : global_) set(sim);
}

void Settings::apply_to(Device& device) const {
  for (const auto* settings : {&configs_, &device_faults_}) {
    for (const DeviceSetting& setting : *settings) {
      if (setting.ordinal.value_or(device.ordinal) == device.ordinal) setting.set(device);
    }
  }
}

}  // namespace slackwater::sim
