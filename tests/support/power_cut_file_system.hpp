// PowerCutFileSystem: a FileSystem for tests that passes everything on to another one and notes every change in a
// PowerCutJournal, queued writes included, so that a CutDisk can rebuild what a power cut behind any of them may leave.
// Syncs are noted, not passed on: the directory underneath is never cut for real.
//
//   PowerCutFileSystem fs(*real, journal);
//   PowerCutFileSystem forgetful(*real, journal, {.ignored = [](const SyncCall& call) { return call.call ==
// FsCall::kSyncData; }});
//
// Thread rule: thread-safe, as FileSystem must be. Lifetime: the wrapped file system and the
// journal outlive it; it outlives the Files and queues made. Several may share a journal (one run after the other).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/file_system.hpp"
#include "support/fault_file_system.hpp"
#include "support/power_cut_journal.hpp"

namespace slackwater::test {

struct SyncCall {
  FsCall call;  // kSyncData, kSyncAll or kSyncDirectory
  std::string path;
  std::string last_name;  // kSyncDirectory: the name in it that changed last
};

struct DiskLies {
  std::function<bool(const SyncCall&)> ignored = {};  // syncs that are answered and not carried out
  bool truncate_after_sync = false;                   // a change of length takes effect behind the sync that follows it
};

// What the file system, its files and its queues share.
struct PowerCutRecorder {
  PowerCutJournal& journal;
  DiskLies lies;
  std::mutex order;  // held over a call and its note, so that the journal has the order of the disk

  [[nodiscard]] bool ignores(FsCall call, const std::string& path) const {
    if (!lies.ignored) return false;
    return lies.ignored({call, path, call == FsCall::kSyncDirectory ? journal.last_name(path) : std::string()});
  }
};

class PowerCutFile final : public File {
 public:
  PowerCutFile(std::unique_ptr<File> inner, std::shared_ptr<PowerCutRecorder> recorder, Inode inode)
      : inner_(std::move(inner)), recorder_(std::move(recorder)), inode_(inode) {}

  [[nodiscard]] Result<std::uint64_t> read_at(std::span<std::byte> into, std::uint64_t offset) override {
    return inner_->read_at(into, offset);
  }
  [[nodiscard]] Status write_at(std::span<const std::byte> bytes, std::uint64_t offset) override {
    const std::lock_guard lock(recorder_->order);
    Status status = inner_->write_at(bytes, offset);
    if (status) recorder_->journal.written(recorder_->journal.write(inode_, offset, bytes));
    return status;
  }
  [[nodiscard]] Status allocate(std::uint64_t size_bytes) override {
    const std::lock_guard lock(recorder_->order);
    Status status = inner_->allocate(size_bytes);
    if (status) recorder_->journal.allocate(inode_, size_bytes);
    return status;
  }
  [[nodiscard]] Status truncate(std::uint64_t size_bytes) override {
    const std::lock_guard lock(recorder_->order);
    Status status = inner_->truncate(size_bytes);
    if (!status) return status;
    if (recorder_->lies.truncate_after_sync)
      late_truncate_ = size_bytes;
    else
      recorder_->journal.truncate(inode_, size_bytes);
    return status;
  }
  [[nodiscard]] Status sync_data() override { return sync(FsCall::kSyncData); }
  [[nodiscard]] Status sync_all() override { return sync(FsCall::kSyncAll); }
  [[nodiscard]] Status close() override { return inner_->close(); }
  [[nodiscard]] Result<FileStatus> status() const override { return inner_->status(); }
  [[nodiscard]] Status set_direct(bool direct) override { return inner_->set_direct(direct); }
  [[nodiscard]] bool direct() const override { return inner_->direct(); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }
  [[nodiscard]] int descriptor() const override { return inner_->descriptor(); }

  [[nodiscard]] File& inner() { return *inner_; }
  [[nodiscard]] Inode inode() const { return inode_; }

 private:
  [[nodiscard]] Status sync(FsCall call) {
    const std::lock_guard lock(recorder_->order);
    if (!recorder_->ignores(call, inner_->path())) recorder_->journal.sync_bytes(inode_);
    if (late_truncate_) recorder_->journal.truncate(inode_, *std::exchange(late_truncate_, std::nullopt));
    return {};
  }

  const std::unique_ptr<File> inner_;
  const std::shared_ptr<PowerCutRecorder> recorder_;
  const Inode inode_;
  std::optional<std::uint64_t> late_truncate_;  // guarded by recorder_->order
};

// Files given to it are PowerCutFiles, as made by the same PowerCutFileSystem.
class PowerCutQueue final : public IoQueue {
 public:
  PowerCutQueue(std::unique_ptr<IoQueue> inner, std::shared_ptr<PowerCutRecorder> recorder)
      : inner_(std::move(inner)), recorder_(std::move(recorder)) {}

  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }
  [[nodiscard]] std::string fallback_reason() const override { return inner_->fallback_reason(); }
  [[nodiscard]] unsigned depth() const override { return inner_->depth(); }
  [[nodiscard]] unsigned in_flight() const override { return inner_->in_flight(); }
  [[nodiscard]] Status register_buffer(int index, std::span<std::byte> memory) override {
    return inner_->register_buffer(index, memory);
  }
  [[nodiscard]] Status submit(const IoRequest& request) override {
    auto& file = static_cast<PowerCutFile&>(*request.file);
    IoRequest passed = request;
    passed.file = &file.inner();
    const std::lock_guard lock(recorder_->order);
    if (request.op == IoOp::kWrite)
      writes_[request.tag] =
          recorder_->journal.write(file.inode(), request.offset, std::span(request.data, request.size_bytes));
    return inner_->submit(passed);
  }
  [[nodiscard]] Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override {
    const std::size_t known = completions.size();
    Status status = inner_->wait(completions, timeout);
    const std::lock_guard lock(recorder_->order);
    for (std::size_t i = known; i < completions.size(); ++i) {
      const auto write = writes_.find(completions[i].tag);
      if (write == writes_.end()) continue;
      if (completions[i].size_bytes) recorder_->journal.written(write->second);
      writes_.erase(write);
    }
    return status;
  }
  void forget(File& file) override { inner_->forget(static_cast<PowerCutFile&>(file).inner()); }
  void wake() override { inner_->wake(); }

 private:
  const std::unique_ptr<IoQueue> inner_;
  const std::shared_ptr<PowerCutRecorder> recorder_;
  std::map<std::uint64_t, std::size_t> writes_;  // under way, by tag
};

class PowerCutFileSystem final : public FileSystem {
 public:
  PowerCutFileSystem(FileSystem& inner, PowerCutJournal& journal, DiskLies lies = {})
      : inner_(inner), recorder_(new PowerCutRecorder{journal, std::move(lies), {}}) {}

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override {
    const std::lock_guard lock(recorder_->order);
    auto file = inner_.open(path, mode, direct);
    if (!file) return file;
    const bool made = mode == OpenMode::kCreateExclusive;
    const Inode inode = made ? recorder_->journal.add_file(path) : recorder_->journal.find(path);
    return std::make_unique<PowerCutFile>(std::move(*file), recorder_, inode);
  }
  [[nodiscard]] Status make_directory(const std::string& path) override {
    const std::lock_guard lock(recorder_->order);
    Status status = inner_.make_directory(path);
    if (status) recorder_->journal.add_directory(path);
    return status;
  }
  [[nodiscard]] Status sync_directory(const std::string& path) override {
    const std::lock_guard lock(recorder_->order);
    if (!recorder_->ignores(FsCall::kSyncDirectory, path)) recorder_->journal.sync_names(path);
    return {};
  }
  [[nodiscard]] Status link(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(recorder_->order);
    Status status = inner_.link(from, to);
    if (status) recorder_->journal.link(from, to);
    return status;
  }
  [[nodiscard]] Status unlink(const std::string& path) override {
    const std::lock_guard lock(recorder_->order);
    Status status = inner_.unlink(path);
    if (status) recorder_->journal.remove_name(path);
    return status;
  }
  [[nodiscard]] Status remove_directory(const std::string& path) override {
    const std::lock_guard lock(recorder_->order);
    Status status = inner_.remove_directory(path);
    if (status) recorder_->journal.remove_name(path);
    return status;
  }
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override { return inner_.list(path); }
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override { return inner_.status(path); }
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override { return inner_.free_bytes(path); }
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override {
    const std::lock_guard lock(recorder_->order);
    auto locked = inner_.try_lock(path);
    if (locked && recorder_->journal.find(path) == kNoInode) recorder_->journal.add_file(path);
    return locked;
  }
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    auto queue = inner_.make_queue(options);
    if (!queue) return queue;
    return std::make_unique<PowerCutQueue>(std::move(*queue), recorder_);
  }

 private:
  FileSystem& inner_;
  const std::shared_ptr<PowerCutRecorder> recorder_;
};

}  // namespace slackwater::test
