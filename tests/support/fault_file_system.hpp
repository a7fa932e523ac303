// FaultFileSystem: a FileSystem for tests that passes everything on to another one, counts calls, fails those it was
// told to fail with the errno it was given, delays some, lets some hang, and can hold queued writes back. (Short
// transfers and EINTR are below this interface: tests/unit/os/transfer_test.cpp. Power cuts:
// power_cut_file_system.hpp.)
//
//   FaultFileSystem fs(*real);
//   fs.fail(FsCall::kSyncData, EIO);                          // the next one
//   fs.fail(FsCall::kQueueWrite, ENOSPC, {.nth = 3});         // the third from now
//   fs.fail(FsCall::kLink, EIO, {.times = kAlways, .path = "manifest"});
//   fs.hang(FsCall::kSyncData);                               // until fs.release_hung(); a disk that does not answer
//   fs.delay(FsCall::kSyncData, 20ms, {.times = kAlways});    // a slow one
//   fs.raise(FsCall::kList);                                  // memory has run out
//
// Failing calls do nothing but fail, except that close() does close (as the kernel does). Thread-safe, as FileSystem
// must be.
// Lifetime: the wrapped file system and this one outlive the Files and queues made.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "os/file_system.hpp"

namespace slackwater::test {

enum class FsCall : std::uint8_t {
  kOpen,
  kMakeDirectory,
  kSyncDirectory,
  kLink,
  kUnlink,
  kRemoveDirectory,
  kList,
  kStatus,
  kIdentity,
  kFreeBytes,
  kTryLock,
  kMakeQueue,
  kReadAt,
  kWriteAt,
  kAllocate,
  kTruncate,
  kSyncData,
  kSyncAll,
  kClose,
  kFileStatus,
  kSetDirect,
  kQueueRead,
  kQueueWrite,
  kRegisterBuffer,
};
inline constexpr std::uint64_t kAlways = std::numeric_limits<std::uint64_t>::max();

struct FaultWhen {
  std::uint64_t nth = 1;    // the first call to fail, counted from now; only calls that match `path` count
  std::uint64_t times = 1;  // how many fail
  std::string path;         // only calls whose path contains this
};

// What the file system, its files and its queues share.
class FaultPlan {
 public:
  void fail(FsCall call, int sys_errno, FaultWhen when) {
    const std::lock_guard lock(mutex_);
    faults_.push_back({.call = call, .sys_errno = sys_errno, .when = std::move(when)});
  }
  void delay(FsCall call, Duration delay, FaultWhen when) {
    const std::lock_guard lock(mutex_);
    faults_.push_back({.call = call, .delay = delay, .when = std::move(when)});
  }
  void hang(FsCall call, FaultWhen when) {
    const std::lock_guard lock(mutex_);
    faults_.push_back({.call = call, .hangs = true, .when = std::move(when)});
  }
  void raise(FsCall call, FaultWhen when) {
    const std::lock_guard lock(mutex_);
    faults_.push_back({.call = call, .raises = true, .when = std::move(when)});
  }
  // `next`: what hangs after that, set in the same moment.
  void release_hung(std::optional<std::pair<FsCall, FaultWhen>> next = {}) {
    const std::lock_guard lock(mutex_);
    std::erase_if(faults_, [](const Fault& fault) { return fault.hangs; });
    if (next) faults_.push_back({.call = next->first, .hangs = true, .when = std::move(next->second)});
    ++releases_;
    hung_changed_.notify_all();
  }
  void wait_hung(std::uint64_t calls) {
    std::unique_lock lock(mutex_);
    hung_changed_.wait(lock, [&] { return hung_ >= calls; });
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    faults_.clear();
  }
  [[nodiscard]] std::uint64_t count(FsCall call) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint64_t>(std::ranges::count(calls_, call));
  }
  [[nodiscard]] std::vector<FsCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

  void watch(FsCall call, std::string path) {
    const std::lock_guard lock(mutex_);
    watched_.emplace(call, std::move(path));
    watched_calls_ = 0;
  }
  [[nodiscard]] std::uint64_t watched_calls() const {
    const std::lock_guard lock(mutex_);
    return watched_calls_;
  }

  void fail_each_read_once(int sys_errno) {
    const std::lock_guard lock(mutex_);
    flaky_errno_ = sys_errno;
  }

  // Notes the call; an Error if it is to fail. Returns late if it is to be slow, or not at all.
  [[nodiscard]] Status meet(FsCall call, const std::string& path, bool reads = false) {
    std::unique_lock lock(mutex_);
    calls_.push_back(call);
    if (watched_ && watched_->first == call && path.find(watched_->second) != std::string::npos) ++watched_calls_;
    reads |= call == FsCall::kList || call == FsCall::kStatus || call == FsCall::kReadAt ||
             call == FsCall::kFileStatus || call == FsCall::kQueueRead;
    if (reads && flaky_errno_ != 0 && failed_once_.insert({call, path}).second)
      return slackwater::fail(error_from_errno(flaky_errno_, "injected fault", path));
    for (Fault& fault : faults_) {
      if (fault.call != call || path.find(fault.when.path) == std::string::npos) continue;
      if (fault.when.nth > 1) {
        --fault.when.nth;
        continue;
      }
      if (fault.when.times == 0) continue;
      if (fault.when.times != kAlways) --fault.when.times;
      if (fault.raises) throw std::bad_alloc();
      if (fault.hangs) {
        ++hung_;
        hung_changed_.notify_all();
        hung_changed_.wait(lock, [this, seen = releases_] { return releases_ != seen; });
        return {};
      }
      if (fault.delay > Duration::zero()) {
        const Duration delay = fault.delay;
        lock.unlock();
        std::this_thread::sleep_for(delay);
        return {};
      }
      return slackwater::fail(error_from_errno(fault.sys_errno, "injected fault", path));
    }
    return {};
  }

  // Of all queues.
  void begin_transfer() { ++in_flight_; }
  void end_transfers(std::size_t count) { in_flight_ -= count; }
  void note_set_direct() { set_direct_in_flight_ = std::max(set_direct_in_flight_.load(), in_flight_.load()); }
  [[nodiscard]] std::uint64_t set_direct_in_flight() const { return set_direct_in_flight_; }

  void hold_writes(bool hold) {
    const std::lock_guard lock(mutex_);
    holding_ = hold;
    if (hold) return;
    for (IoQueue* queue : queues_) queue->wake();  // the held ones go on in its next wait()
  }
  void let_pass(std::uint64_t writes) {
    const std::lock_guard lock(mutex_);
    may_pass_ += writes;
    for (IoQueue* queue : queues_) queue->wake();
  }
  // Whether one held write may go on now.
  [[nodiscard]] bool passes() {
    const std::lock_guard lock(mutex_);
    if (!holding_) return true;
    if (may_pass_ == 0) return false;
    --may_pass_;
    return true;
  }
  void add_queue(IoQueue* queue) {
    const std::lock_guard lock(mutex_);
    queues_.push_back(queue);
  }
  void remove_queue(IoQueue* queue) {
    const std::lock_guard lock(mutex_);
    std::erase(queues_, queue);
  }
  [[nodiscard]] bool holding() const {
    const std::lock_guard lock(mutex_);
    return holding_;
  }
  void add_held() {
    const std::lock_guard lock(mutex_);
    ++held_;
    held_changed_.notify_all();
  }
  void wait_held(std::uint64_t writes) {
    std::unique_lock lock(mutex_);
    held_changed_.wait(lock, [&] { return held_ >= writes; });
  }
  [[nodiscard]] std::uint64_t held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }

 private:
  struct Fault {
    FsCall call;
    int sys_errno = 0;
    Duration delay = Duration::zero();
    bool hangs = false;
    bool raises = false;
    FaultWhen when;
  };
  mutable std::mutex mutex_;
  std::condition_variable held_changed_;
  std::condition_variable hung_changed_;
  std::vector<Fault> faults_;  // guarded by mutex_, as all below
  std::vector<FsCall> calls_;
  std::optional<std::pair<FsCall, std::string>> watched_;
  std::uint64_t watched_calls_ = 0;
  int flaky_errno_ = 0;
  std::set<std::pair<FsCall, std::string>> failed_once_;
  bool holding_ = false;
  std::uint64_t may_pass_ = 0;  // writes, while holding
  std::uint64_t held_ = 0;      // writes ever held back
  std::uint64_t hung_ = 0;      // calls that ever hung
  std::uint64_t releases_ = 0;
  std::vector<IoQueue*> queues_;                         // alive
  std::atomic<std::uint64_t> in_flight_ = 0;             // not guarded
  std::atomic<std::uint64_t> set_direct_in_flight_ = 0;  // not guarded
};

class FaultFile final : public File {
 public:
  FaultFile(std::unique_ptr<File> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    if (Status met = meet(FsCall::kReadAt); !met) return slackwater::fail(met.error());
    return inner_->read_at(into, offset);
  }
  [[nodiscard]] Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override {
    if (Status met = meet(FsCall::kWriteAt); !met) return met;
    return inner_->write_at(bytes, offset);
  }
  [[nodiscard]] Status allocate(std::uint64_t size_bytes) override {
    if (Status met = meet(FsCall::kAllocate); !met) return met;
    return inner_->allocate(size_bytes);
  }
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override {
    if (Status met = meet(FsCall::kTruncate); !met) return met;
    return inner_->truncate(size_bytes);
  }
  [[nodiscard]] Status sync_data() override {
    if (Status met = meet(FsCall::kSyncData); !met) return met;
    return inner_->sync_data();
  }
  [[nodiscard]] Status sync_all() override {
    if (Status met = meet(FsCall::kSyncAll); !met) return met;
    return inner_->sync_all();
  }
  [[nodiscard]] Status close() override {
    Status met = meet(FsCall::kClose);
    Status closed = inner_->close();
    return met ? closed : met;
  }
  [[nodiscard]] Result<FileStatus> status() const override {
    if (Status met = meet(FsCall::kFileStatus); !met) return slackwater::fail(met.error());
    return inner_->status();
  }
  [[nodiscard]] Status set_direct(bool direct) override {
    plan_->note_set_direct();
    if (Status met = meet(FsCall::kSetDirect); !met) return met;
    return inner_->set_direct(direct);
  }
  [[nodiscard]] bool direct() const override { return inner_->direct(); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }
  [[nodiscard]] int descriptor() const override { return inner_->descriptor(); }

  [[nodiscard]] File& inner() { return *inner_; }

 private:
  [[nodiscard]] Status meet(FsCall call) const { return plan_->meet(call, inner_->path()); }

  std::unique_ptr<File> inner_;
  std::shared_ptr<FaultPlan> plan_;
};

// Files given to it are FaultFiles, as made by the same FaultFileSystem.
class FaultQueue final : public IoQueue {
 public:
  FaultQueue(std::unique_ptr<IoQueue> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {
    plan_->add_queue(inner_.get());
  }
  ~FaultQueue() override { plan_->remove_queue(inner_.get()); }  // held writes are dropped

  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }
  [[nodiscard]] std::string fallback_reason() const override { return inner_->fallback_reason(); }
  [[nodiscard]] unsigned depth() const override { return inner_->depth(); }
  [[nodiscard]] unsigned in_flight() const override {
    return inner_->in_flight() + static_cast<unsigned>(held_.size() + failed_.size());
  }
  [[nodiscard]] Status register_buffer(int index, std::span<std::byte> memory) override {
    if (Status met = plan_->meet(FsCall::kRegisterBuffer, {}); !met) return met;
    return inner_->register_buffer(index, memory);
  }
  [[nodiscard]] Status submit(const IoRequest& request) override {
    if (in_flight() >= depth()) return slackwater::fail(ErrorKind::kInternal, "the I/O queue is full");
    const bool write = request.op == IoOp::kWrite;
    const Status met = plan_->meet(write ? FsCall::kQueueWrite : FsCall::kQueueRead, request.file->path());
    plan_->begin_transfer();
    if (!met) {
      failed_.push_back({request.tag, slackwater::fail(met.error())});
      return {};
    }
    IoRequest passed = request;
    passed.file = &static_cast<FaultFile*>(request.file)->inner();
    if (write && plan_->holding()) {
      held_.push_back(passed);
      plan_->add_held();
      return {};
    }
    return inner_->submit(passed);
  }
  [[nodiscard]] Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override {
    while (!held_.empty() && plan_->passes()) {
      const IoRequest request = held_.front();
      held_.erase(held_.begin());
      if (Status passed = inner_->submit(request); !passed)
        failed_.push_back({request.tag, slackwater::fail(passed.error())});
    }
    // Failures come alone, before all that is under way.
    const std::size_t before = completions.size();
    for (IoCompletion& completion : failed_) completions.push_back(std::move(completion));
    const Status waited = failed_.empty() ? inner_->wait(completions, timeout) : Status();
    failed_.clear();
    plan_->end_transfers(completions.size() - before);
    return waited;
  }
  void forget(File& file) override { inner_->forget(static_cast<FaultFile&>(file).inner()); }
  void wake() override { inner_->wake(); }

 private:
  std::unique_ptr<IoQueue> inner_;
  std::shared_ptr<FaultPlan> plan_;
  std::vector<IoRequest> held_;       // not yet given to inner_
  std::vector<IoCompletion> failed_;  // not yet returned
};

class FaultFileSystem final : public FileSystem {
 public:
  explicit FaultFileSystem(FileSystem& inner) : inner_(inner) {}

  // What free_bytes() says from now on.
  void set_free_bytes(std::uint64_t size_bytes) { claimed_free_bytes_ = size_bytes; }
  void fail(FsCall call, int sys_errno, FaultWhen when = {}) { plan_->fail(call, sys_errno, std::move(when)); }
  void delay(FsCall call, Duration delay, FaultWhen when = {}) { plan_->delay(call, delay, std::move(when)); }
  void hang(FsCall call, FaultWhen when = {}) { plan_->hang(call, std::move(when)); }
  // A call that ends with std::bad_alloc.
  void raise(FsCall call, FaultWhen when = {}) { plan_->raise(call, std::move(when)); }
  void release_hung() { plan_->release_hung(); }
  void release_hung_until(FsCall call, FaultWhen when = {}) { plan_->release_hung(std::pair(call, std::move(when))); }
  // Returns when that many calls have hung in all.
  void wait_hung(std::uint64_t calls) { plan_->wait_hung(calls); }
  void clear_faults() { plan_->clear(); }
  // From now on, every call that only reads fails with this errno the first time it meets a path. Later calls work.
  void fail_each_read_once(int sys_errno) { plan_->fail_each_read_once(sys_errno); }
  [[nodiscard]] std::uint64_t count(FsCall call) const { return plan_->count(call); }
  // From now on, instead of those watched before: calls of this kind whose path contains this.
  void watch(FsCall call, std::string path) { plan_->watch(call, std::move(path)); }
  [[nodiscard]] std::uint64_t watched_calls() const { return plan_->watched_calls(); }
  // The most transfers that queues had under way when O_DIRECT was turned on or off.
  [[nodiscard]] std::uint64_t set_direct_in_flight() const { return plan_->set_direct_in_flight(); }
  [[nodiscard]] std::vector<FsCall> calls() const { return plan_->calls(); }  // all so far, failed ones too, in order

  // From now on writes given to queues do not complete, until released.
  void hold_writes() { plan_->hold_writes(true); }
  void release_writes() { plan_->hold_writes(false); }
  // This many go on, and the rest is held back further.
  void release_writes(std::uint64_t writes) { plan_->let_pass(writes); }
  // Returns when that many writes have been held back in all.
  void wait_held(std::uint64_t writes) { plan_->wait_held(writes); }
  [[nodiscard]] std::uint64_t held_writes() const { return plan_->held(); }  // in all, as wait_held() counts them

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override {
    if (Status met = plan_->meet(FsCall::kOpen, path, mode == OpenMode::kRead); !met)
      return slackwater::fail(met.error());
    auto file = inner_.open(path, mode, direct);
    if (!file) return file;
    return std::make_unique<FaultFile>(std::move(*file), plan_);
  }
  [[nodiscard]] Status make_directory(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kMakeDirectory, path); !met) return met;
    return inner_.make_directory(path);
  }
  [[nodiscard]] Status sync_directory(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kSyncDirectory, path); !met) return met;
    return inner_.sync_directory(path);
  }
  [[nodiscard]] Status link(const std::string& from, const std::string& to) override {
    if (Status met = plan_->meet(FsCall::kLink, to); !met) return met;
    return inner_.link(from, to);
  }
  [[nodiscard]] Status unlink(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kUnlink, path); !met) return met;
    return inner_.unlink(path);
  }
  [[nodiscard]] Status remove_directory(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kRemoveDirectory, path); !met) return met;
    return inner_.remove_directory(path);
  }
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kList, path); !met) return slackwater::fail(met.error());
    return inner_.list(path);
  }
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kStatus, path); !met) return slackwater::fail(met.error());
    return inner_.status(path);
  }
  [[nodiscard]] Result<std::string> identity(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kIdentity, path); !met) return slackwater::fail(met.error());
    return inner_.identity(path);
  }
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kFreeBytes, path); !met) return slackwater::fail(met.error());
    if (const std::uint64_t claimed = claimed_free_bytes_; claimed != kNotClaimed) return claimed;
    return inner_.free_bytes(path);
  }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override {
    if (Status met = plan_->meet(FsCall::kTryLock, path); !met) return slackwater::fail(met.error());
    return inner_.try_lock(path);
  }
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    if (Status met = plan_->meet(FsCall::kMakeQueue, {}); !met) return slackwater::fail(met.error());
    auto queue = inner_.make_queue(options);
    if (!queue) return queue;
    return std::make_unique<FaultQueue>(std::move(*queue), plan_);
  }

 private:
  static constexpr std::uint64_t kNotClaimed = ~std::uint64_t{0};

  FileSystem& inner_;
  const std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  std::atomic<std::uint64_t> claimed_free_bytes_{kNotClaimed};
};

}  // namespace slackwater::test
