#include "bench/lazy/rated_files.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace slackwater::bench {
namespace {

using Instant = std::chrono::steady_clock;

constexpr std::uint64_t kSmallBytes = 256u << 10;

// A link that carries writes one after the other. Small writes (records, manifests) slip in between, as storage does
// with many requests: they take their share of the bandwidth, but wait for nobody. Thread-safe.
class Line {
 public:
  explicit Line(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  // When a write that sets out now has arrived.
  [[nodiscard]] TimePoint send(std::uint64_t size_bytes) {
    const std::lock_guard lock(mutex_);
    const Duration travel(static_cast<std::int64_t>(static_cast<double>(size_bytes) / bytes_per_s_ * 1e9));
    const TimePoint now = Instant::now();
    free_at_ = std::max(free_at_, now) + travel;
    return size_bytes < kSmallBytes ? now + travel : free_at_;
  }

 private:
  const double bytes_per_s_;
  std::mutex mutex_;
  TimePoint free_at_;  // guarded by mutex_
};

class RatedFile final : public File {
 public:
  RatedFile(std::unique_ptr<File> inner, std::shared_ptr<Line> line)
      : inner_(std::move(inner)), line_(std::move(line)) {}

  Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    return inner_->read_at(into, offset);
  }
  Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override {
    const TimePoint arrival = line_->send(bytes.size());
    Status written = inner_->write_at(bytes, offset);
    std::this_thread::sleep_until(arrival);
    return written;
  }
  Status allocate(std::uint64_t size_bytes) override { return inner_->allocate(size_bytes); }
  Status truncate(std::uint64_t size_bytes) override { return inner_->truncate(size_bytes); }
  Status sync_data() override { return inner_->sync_data(); }
  Status sync_all() override { return inner_->sync_all(); }
  Status close() override { return inner_->close(); }
  [[nodiscard]] Result<FileStatus> status() const override { return inner_->status(); }
  [[nodiscard]] bool direct() const override { return inner_->direct(); }
  Status set_direct(bool direct) override { return inner_->set_direct(direct); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }
  [[nodiscard]] int descriptor() const override { return inner_->descriptor(); }

  [[nodiscard]] File& inner() { return *inner_; }

 private:
  std::unique_ptr<File> inner_;
  std::shared_ptr<Line> line_;
};

// Files given to it are RatedFiles of the same file system.
class RatedQueue final : public IoQueue {
 public:
  RatedQueue(std::unique_ptr<IoQueue> inner, std::shared_ptr<Line> line)
      : inner_(std::move(inner)), line_(std::move(line)) {}

  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }
  [[nodiscard]] std::string fallback_reason() const override { return inner_->fallback_reason(); }
  [[nodiscard]] unsigned depth() const override { return inner_->depth(); }
  [[nodiscard]] unsigned in_flight() const override {
    return inner_->in_flight() + static_cast<unsigned>(held_.size());
  }
  Status register_buffer(int index, std::span<std::byte> memory) override {
    return inner_->register_buffer(index, memory);
  }

  Status submit(const IoRequest& request) override {
    if (in_flight() >= depth()) return fail(ErrorKind::kInternal, "the I/O queue is full");
    IoRequest passed = request;
    passed.file = &static_cast<RatedFile*>(request.file)->inner();
    SW_TRY(inner_->submit(passed));
    if (request.op == IoOp::kWrite) arrivals_[request.tag] = line_->send(request.size_bytes);
    return {};
  }

  Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override {
    if (hand_out(completions) > 0) {
      timeout = Duration::zero();
    } else if (!held_.empty()) {
      const TimePoint first = std::ranges::min(held_, {}, &Held::arrival).arrival;
      const Duration left = std::max(Duration::zero(), Duration(first - Instant::now()));
      timeout = std::min(timeout.value_or(left), left);
    }
    completed_.clear();
    Status waited = inner_->wait(completed_, timeout);
    for (IoCompletion& completion : completed_) {
      const auto found = arrivals_.extract(completion.tag);
      held_.push_back({found ? found.mapped() : TimePoint{}, std::move(completion)});
    }
    hand_out(completions);
    return waited;
  }
  void forget(File& file) override { inner_->forget(static_cast<RatedFile&>(file).inner()); }
  void wake() override { inner_->wake(); }

 private:
  struct Held {
    TimePoint arrival;
    IoCompletion completion;
  };

  std::size_t hand_out(std::vector<IoCompletion>& completions) {
    const TimePoint now = Instant::now();
    for (Held& held : held_)
      if (held.arrival <= now) completions.push_back(std::move(held.completion));
    return std::erase_if(held_, [&](const Held& held) { return held.arrival <= now; });
  }

  std::unique_ptr<IoQueue> inner_;
  std::shared_ptr<Line> line_;
  std::unordered_map<std::uint64_t, TimePoint> arrivals_;  // of writes in flight, by tag
  std::vector<Held> held_;                                 // completed, not yet handed out
  std::vector<IoCompletion> completed_;
};

class RatedFileSystem final : public FileSystem {
 public:
  RatedFileSystem(std::unique_ptr<FileSystem> inner, double write_bytes_per_s)
      : inner_(std::move(inner)), line_(std::make_shared<Line>(write_bytes_per_s)) {}

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override {
    SW_ASSIGN(auto file, inner_->open(path, mode, direct));
    return std::make_unique<RatedFile>(std::move(file), line_);
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  Status link(const std::string& from, const std::string& to) override { return inner_->link(from, to); }
  Status unlink(const std::string& path) override { return inner_->unlink(path); }
  Status remove_directory(const std::string& path) override { return inner_->remove_directory(path); }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override { return inner_->list(path); }
  Result<FileStatus> status(const std::string& path) override { return inner_->status(path); }
  Result<std::uint64_t> free_bytes(const std::string& path) override { return inner_->free_bytes(path); }
  Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override { return inner_->try_lock(path); }
  Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    SW_ASSIGN(auto queue, inner_->make_queue(options));
    return std::make_unique<RatedQueue>(std::move(queue), line_);
  }

 private:
  const std::unique_ptr<FileSystem> inner_;
  const std::shared_ptr<Line> line_;
};

}  // namespace

std::unique_ptr<FileSystem> rated_file_system(std::unique_ptr<FileSystem> inner, double write_bytes_per_s) {
  if (write_bytes_per_s <= 0) return inner;
  return std::make_unique<RatedFileSystem>(std::move(inner), write_bytes_per_s);
}

}  // namespace slackwater::bench
