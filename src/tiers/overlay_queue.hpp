// OverlayQueue: reads files of several tiers through one queue. Each request goes to the queue of the tier that its
// file is on. That queue is made when the first request for it comes.
// OverlayFile: a file of one of the tiers.
// Owner, thread rule and lifetime: as IoQueue and File.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "os/file_system.hpp"

namespace slackwater {

class OverlayFile final : public File {
 public:
  OverlayFile(std::unique_ptr<File> file, std::size_t tier) : file_(std::move(file)), tier_(tier) {}

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    return file_->read_at(into, offset);
  }
  [[nodiscard]] Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override;
  [[nodiscard]] Status allocate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override;
  [[nodiscard]] Status sync_data() override;
  [[nodiscard]] Status sync_all() override;
  [[nodiscard]] Status close() override { return file_->close(); }
  [[nodiscard]] Result<FileStatus> status() const override { return file_->status(); }
  [[nodiscard]] bool direct() const override { return file_->direct(); }
  [[nodiscard]] Status set_direct(bool direct) override { return file_->set_direct(direct); }
  [[nodiscard]] const std::string& path() const override { return file_->path(); }
  [[nodiscard]] int descriptor() const override { return file_->descriptor(); }

  [[nodiscard]] File& file() { return *file_; }
  [[nodiscard]] std::size_t tier() const { return tier_; }

 private:
  const std::unique_ptr<File> file_;
  const std::size_t tier_;
};

class OverlayQueue final : public IoQueue {
 public:
  using Make = std::function<Result<std::unique_ptr<IoQueue>>(std::size_t tier)>;
  // `first` is the queue of the fastest tier.
  OverlayQueue(std::unique_ptr<IoQueue> first, Make make);

  [[nodiscard]] std::string_view backend() const override { return first_->backend(); }
  [[nodiscard]] std::string fallback_reason() const override { return first_->fallback_reason(); }
  [[nodiscard]] unsigned depth() const override { return first_->depth(); }
  [[nodiscard]] unsigned in_flight() const override;
  [[nodiscard]] Status register_buffer(int index, std::span<std::byte> memory) override;
  [[nodiscard]] Status submit(const IoRequest& request) override;
  [[nodiscard]] Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override;
  void forget(File& file) override;
  void wake() override;

 private:
  struct Lane {
    std::unique_ptr<IoQueue> queue;
    std::set<int> buffers;  // registered with it
  };
  [[nodiscard]] Result<Lane*> lane(std::size_t tier);
  [[nodiscard]] std::vector<IoQueue*> busy() const;

  const Make make_;
  IoQueue* const first_;
  std::map<int, std::span<std::byte>> buffers_;  // registered so far
  std::size_t turn_ = 0;                         // which busy queue waits next
  std::atomic<bool> woken_{false};               // since the last wait() for several queues

  mutable std::mutex mutex_;           // guards the map itself: wake() comes from any thread
  std::map<std::size_t, Lane> lanes_;  // by tier
};

}  // namespace slackwater
