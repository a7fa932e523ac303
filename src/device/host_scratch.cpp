#include <cstring>

#include "device/scratch.hpp"

namespace slackwater {
namespace {

class HostScratch final : public Scratch {
 public:
  std::string name() const override { return "host memory"; }
  int device() const override { return kHostDevice; }
  std::vector<StreamRef> streams() const override { return {}; }
  Result<std::byte*> allocate(std::uint64_t size_bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(size_bytes));  // zeroed, and so touched
    return memory_.back().get();
  }
  Result<std::byte*> allocate_pinned(std::uint64_t size_bytes) override { return allocate(size_bytes); }
  void free_all() override { memory_.clear(); }
  Status upload(std::byte* to, const std::byte* from, std::uint64_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
    return {};
  }
  Status update(std::byte* to, const std::byte* from, std::uint64_t size_bytes) override {
    return upload(to, from, size_bytes);
  }
  Status download(std::byte* to, const std::byte* from, std::uint64_t size_bytes) override {
    return upload(to, from, size_bytes);
  }
  Status wait(std::chrono::milliseconds /*timeout*/) override { return {}; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace

std::unique_ptr<Scratch> make_host_scratch() { return std::make_unique<HostScratch>(); }

}  // namespace slackwater
