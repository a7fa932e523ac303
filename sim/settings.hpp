// Settings: what SWSIM_CONFIG or swsim_set says, a text such as "d2h_bytes_per_s=2000000000,broken=ignore_waits".
// README.md lists the keys. "key@1" means device 1 only; without it, a setting of a device is meant for all of them.
// Thread rule: apply_to() with Simulator::mutex held. Lifetime: a value; it keeps nothing of the text.
#pragma once

#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace slackwater::sim {

struct Device;
class Simulator;

class Settings {
 public:
  // The error is one sentence: what is wrong, and what would be right.
  [[nodiscard]] static std::expected<Settings, std::string> parse(std::string_view text);

  [[nodiscard]] int device_count() const { return device_count_; }  // 0: not said
  [[nodiscard]] int highest_device() const { return highest_device_; }  // that a key names; -1: none does
  void apply_to(Simulator& sim) const;                              // what belongs to no device
  void apply_to(Device& device) const;

 private:
  // Each returns false if the key is not one of its own. A wrong value is an error.
  [[nodiscard]] std::expected<bool, std::string> add_config(std::string_view key, std::optional<int> device,
                                                            std::string_view value);
  [[nodiscard]] std::expected<bool, std::string> add_device_fault(std::string_view key, std::optional<int> device,
                                                                  std::string_view value);
  [[nodiscard]] std::expected<bool, std::string> add_global(std::string_view key, std::string_view value);

  struct DeviceSetting {
    std::optional<int> ordinal;  // empty: all devices
    std::function<void(Device&)> set;
  };
  int device_count_ = 0;
  int highest_device_ = -1;
  std::vector<std::function<void(Simulator&)>> global_;
  std::vector<DeviceSetting> configs_;  // before the others: memory_bytes decides what leave_bytes means
  std::vector<DeviceSetting> device_faults_;
};

}  // namespace slackwater::sim
