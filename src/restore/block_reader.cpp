#include "restore/block_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "os/retry.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kWindowBytes = 2u << 20;
constexpr std::uint64_t kAutoBufferBytes = 64u << 20;
constexpr unsigned kMaxQueueDepth = 64;
constexpr unsigned kMaxAutoPlaceThreads = 4;
constexpr std::chrono::seconds kFirstSlabTimeout{60};

unsigned auto_place_threads() { return std::clamp(std::thread::hardware_concurrency(), 2u, kMaxAutoPlaceThreads); }

struct Window {
  std::span<std::byte> memory;
  int buffer = -1;  // registered with the queue under this index, or -1
};

// A finished read on its way to the placing threads.
struct Task {
  std::uint32_t window = 0;
  std::uint32_t unit = 0;
  std::span<std::byte> memory;
  Result<std::uint64_t> bytes_read;
};

struct SourceFile {
  std::unique_ptr<File> file;
  std::uint64_t units_left = 0;  // not yet placed; the file is closed after the last
  bool unreadable = false;       // reported; its units are passed over
};

// One call of run(). Members are the calling thread's, unless marked otherwise.
class Run {
 public:
  Run(FileSystem& fs, Pool& pool, const BlockReader::Options& options, const Log& log, std::span<const ReadFile> files,
      std::span<const ReadUnit> units, const BlockReader::OnVerified& on_verified, const BlockReader::OnBad& on_bad,
      const BlockReader::OnProgress& on_progress, std::uint64_t window_bytes)
      : fs_(fs),
        pool_(pool),
        options_(options),
        log_(log),
        read_files_(files),
        units_(units),
        on_verified_(on_verified),
        on_bad_(on_bad),
        on_progress_(on_progress),
        window_bytes_(window_bytes),
        direct_(options.direct) {}

  Status execute();

 private:
  struct Collected {
    bool failed = false;
    bool progressed = false;
  };

  Status start();
  Collected collect_placed();
  Status submit_ready();
  Status submit_unit(std::uint32_t unit, std::uint32_t window);
  void handle(IoCompletion completion);
  Status fall_back_to_buffered();
  Status add_slab();
  bool open_source(std::uint32_t file);
  void unit_done(std::uint32_t unit);

  // On the placing threads.
  void place_until_stopped(const std::stop_token& stop);
  void place(const Task& task);

  // Any thread.
  bool report(const BadBlock& bad);
  void fail_run(Error error);
  bool failed();

  FileSystem& fs_;
  Pool& pool_;
  const BlockReader::Options& options_;
  const Log& log_;
  const std::span<const ReadFile> read_files_;
  const std::span<const ReadUnit> units_;
  const BlockReader::OnVerified& on_verified_;
  const BlockReader::OnBad& on_bad_;
  const BlockReader::OnProgress& on_progress_;
  const std::uint64_t window_bytes_;

  std::vector<Lease> slabs_;
  std::size_t max_slabs_ = 1;
  std::vector<Window> windows_;
  std::vector<std::uint32_t> free_windows_;
  std::vector<std::uint32_t> window_unit_;  // which unit a window is busy with
  std::vector<SourceFile> sources_;  // parallel to read_files_; placing threads only use the File of a unit they hold
  std::size_t next_unit_ = 0;
  std::vector<std::uint32_t> again_;  // units to be read once more, buffered
  std::size_t units_done_ = 0;
  std::uint64_t bytes_done_ = 0;
  bool direct_;
  bool falling_back_ = false;
  bool register_slabs_ = false;

  std::mutex bad_mutex_;  // held while on_bad_ runs

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Task> tasks_;                                       // guarded by mutex_
  std::vector<std::pair<std::uint32_t, std::uint32_t>> placed_;  // (window, unit), guarded by mutex_
  std::optional<Error> failure_;                                 // guarded by mutex_; the first one stays

  // Order matters: placing threads wake the queue, the queue may still write to the slabs.
  std::unique_ptr<IoQueue> queue_;
  std::vector<std::jthread> placers_;  // started last
};

Status Run::execute() {
  SW_TRY(start());
  std::vector<IoCompletion> completions;
  while (true) {
    const Collected collected = collect_placed();
    if (collected.progressed && on_progress_) on_progress_(bytes_done_);
    if (collected.failed) break;
    if (falling_back_ && free_windows_.size() == windows_.size()) SW_TRY(fall_back_to_buffered());
    SW_TRY(submit_ready());
    if (units_done_ == units_.size()) break;
    if (failed()) break;
    completions.clear();
    SW_TRY(queue_->wait(completions, std::nullopt));
    for (IoCompletion& completion : completions) handle(std::move(completion));
  }
  placers_.clear();  // stops and joins; what they had not begun is dropped
  queue_.reset();    // waits for what is in flight
  if (failure_) return fail(std::move(*failure_));
  return {};
}

Status Run::start() {
  sources_.resize(read_files_.size());
  for (const ReadUnit& unit : units_) {
    if (unit.file >= read_files_.size() || unit.size_bytes == 0 || unit.size_bytes > window_bytes_ ||
        unit.offset % kBlockBytes != 0 || unit.offset + unit.size_bytes > read_files_[unit.file].size_bytes)
      return fail(ErrorKind::kInternal,
                  fmt::format("a read of {} bytes at offset {} was planned wrongly", unit.size_bytes, unit.offset));
    ++sources_[unit.file].units_left;
  }
  const std::uint64_t buffer_bytes = options_.buffer_bytes > 0 ? options_.buffer_bytes : kAutoBufferBytes;
  max_slabs_ = std::clamp<std::uint64_t>(buffer_bytes / pool_.slab_bytes(), 1, pool_.slab_count());
  const std::uint64_t max_windows = max_slabs_ * (pool_.slab_bytes() / window_bytes_);
  // Pinning pays off only for slabs that are used again and again.
  register_slabs_ = units_.size() > 2 * max_windows;

  const unsigned depth = options_.queue_depth > 0
                             ? options_.queue_depth
                             : static_cast<unsigned>(std::clamp<std::uint64_t>(max_windows, 2, kMaxQueueDepth));
  SW_ASSIGN(queue_, fs_.make_queue({.depth = depth,
                                    .buffer_slots = register_slabs_ ? static_cast<unsigned>(max_slabs_) : 0,
                                    .force_threads = options_.force_threads}));
  const std::size_t wanted = options_.place_threads > 0 ? options_.place_threads : auto_place_threads();
  const std::size_t count = std::min(wanted, units_.size());
  for (std::size_t i = 0; i < count; ++i)
    placers_.push_back(
        start_thread(fmt::format("sw-place-{}", i), [this](std::stop_token stop) { place_until_stopped(stop); }));
  return {};
}

Run::Collected Run::collect_placed() {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> placed;
  Collected result;
  {
    const std::lock_guard lock(mutex_);
    placed.swap(placed_);
    result.failed = failure_.has_value();
  }
  for (const auto& [window, unit] : placed) {
    free_windows_.push_back(window);
    unit_done(unit);
    result.progressed = true;
  }
  return result;
}

void Run::unit_done(std::uint32_t unit) {
  ++units_done_;
  bytes_done_ += units_[unit].size_bytes;
  SourceFile& source = sources_[units_[unit].file];
  if (--source.units_left > 0 || !source.file) return;
  queue_->forget(*source.file);
  source.file.reset();
}

Status Run::submit_ready() {
  while (!falling_back_ && queue_->in_flight() < queue_->depth()) {
    if (again_.empty() && next_unit_ == units_.size()) break;
    const std::uint32_t unit = again_.empty() ? static_cast<std::uint32_t>(next_unit_) : again_.back();
    if (!open_source(units_[unit].file)) {
      if (again_.empty())
        ++next_unit_;
      else
        again_.pop_back();
      unit_done(unit);
      if (failed()) break;
      continue;
    }
    if (free_windows_.empty()) SW_TRY(add_slab());
    if (free_windows_.empty()) break;
    if (again_.empty())
      ++next_unit_;
    else
      again_.pop_back();
    const std::uint32_t window = free_windows_.back();
    free_windows_.pop_back();
    SW_TRY(submit_unit(unit, window));
  }
  return {};
}

Status Run::submit_unit(std::uint32_t unit, std::uint32_t window) {
  const ReadUnit& what = units_[unit];
  window_unit_[window] = unit;
  return queue_->submit({.op = IoOp::kRead,
                         .file = sources_[what.file].file.get(),
                         .data = windows_[window].memory.data(),
                         .size_bytes = round_up(what.size_bytes, kDirectAlignment),
                         .offset = what.offset,
                         .buffer = windows_[window].buffer,
                         .tag = window});
}

void Run::handle(IoCompletion completion) {
  const auto window = static_cast<std::uint32_t>(completion.tag);
  const std::uint32_t unit = window_unit_[window];
  const SourceFile& source = sources_[units_[unit].file];
  if (!completion.size_bytes && completion.size_bytes.error().sys_errno == EINVAL && source.file->direct()) {
    falling_back_ = true;
    again_.push_back(unit);
    free_windows_.push_back(window);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({window, unit, windows_[window].memory, std::move(completion.size_bytes)});
  }
  changed_.notify_one();
}

// Some file systems take O_DIRECT at open and refuse it at the first read. Nobody uses the files now.
Status Run::fall_back_to_buffered() {
  log_.warn("the file system refuses direct reads; reading through the page cache instead");
  direct_ = false;
  falling_back_ = false;
  for (SourceFile& source : sources_)
    if (source.file && source.file->direct()) SW_TRY(source.file->set_direct(false));
  return {};
}

// Takes one more slab, if the limit and the pool allow it; waits for one only when there is none at all.
Status Run::add_slab() {
  if (slabs_.size() == max_slabs_) return {};
  Lease lease;
  if (slabs_.empty()) {
    SW_ASSIGN(lease, pool_.acquire(kFirstSlabTimeout, {}));
  } else {
    std::optional<Lease> free = pool_.try_acquire();
    if (!free) return {};
    lease = std::move(*free);
  }
  int buffer = static_cast<int>(slabs_.size());
  if (register_slabs_) {
    if (const Status status = queue_->register_buffer(buffer, lease.memory()); !status) {
      log_.info("reading without registered buffers: {}", status.error().to_string());
      register_slabs_ = false;
    }
  }
  if (!register_slabs_) buffer = -1;
  for (std::uint64_t begin = 0; begin + window_bytes_ <= lease.memory().size(); begin += window_bytes_) {
    free_windows_.push_back(static_cast<std::uint32_t>(windows_.size()));
    windows_.push_back({lease.memory().subspan(begin, window_bytes_), buffer});
  }
  window_unit_.resize(windows_.size());
  slabs_.push_back(std::move(lease));
  return {};
}

bool Run::open_source(std::uint32_t file) {
  SourceFile& source = sources_[file];
  if (source.file) return true;
  if (source.unreadable) return false;
  auto opened = retry_read([&] { return fs_.open(read_files_[file].path, OpenMode::kRead, direct_); });
  if (opened) {
    source.file = std::move(*opened);
    return true;
  }
  source.unreadable = true;
  (void)report({file, 0, read_files_[file].size_bytes, std::move(opened).error()});
  return false;
}

void Run::place_until_stopped(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !tasks_.empty(); })) {
    if (stop.stop_requested() || failure_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    place(task);
    lock.lock();
    placed_.emplace_back(task.window, task.unit);
    queue_->wake();
  }
}

void Run::place(const Task& task) {
  const ReadUnit& unit = units_[task.unit];
  const ReadFile& file = read_files_[unit.file];
  bool clean = true;
  for (std::uint64_t begin = 0; begin < unit.size_bytes; begin += kBlockBytes) {
    const std::uint64_t offset = unit.offset + begin;
    const std::uint64_t size = std::min(kBlockBytes, unit.size_bytes - begin);
    // A failed read says nothing about the blocks around the bad sector: look at each alone, more than once.
    const Result<std::uint64_t> available =
        task.bytes_read ? Result<std::uint64_t>(*task.bytes_read > begin ? *task.bytes_read - begin : 0)
                        : retry_read([&] {
                            return sources_[unit.file].file->read_at(
                                task.memory.subspan(begin, round_up(size, kDirectAlignment)), offset);
                          });
    std::optional<Error> problem;
    if (!available) {
      problem = available.error();
    } else if (*available < size) {
      problem = Error{ErrorKind::kCorrupt, "the file ends before the bytes that were promised", file.path, 0, false};
    } else if (digest64(task.memory.subspan(begin, size)) != file.block_digests[offset / kBlockBytes]) {
      problem = Error{ErrorKind::kCorrupt, "the bytes are not the bytes that were written (checksum differs)",
                      file.path, 0, false};
    }
    if (problem) {
      clean = false;
      if (!report({unit.file, offset, size, std::move(*problem)})) return;
    }
  }
  if (!clean) return;
  if (Status status = on_verified_(unit, task.memory.first(unit.size_bytes)); !status)
    fail_run(std::move(status).error());
}

bool Run::report(const BadBlock& bad) {
  bool go_on = false;
  {
    const std::lock_guard lock(bad_mutex_);
    go_on = on_bad_(bad);
  }
  if (!go_on) fail_run(bad.error);
  return go_on;
}

void Run::fail_run(Error error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
}

bool Run::failed() {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

}  // namespace

BlockReader::BlockReader(FileSystem& fs, Pool& pool, Options options, Log log)
    : fs_(fs), pool_(pool), options_(options), log_(std::move(log)) {}

std::uint64_t BlockReader::unit_bytes() const { return std::min(kWindowBytes, pool_.slab_bytes()); }

Status BlockReader::run(std::span<const ReadFile> files, std::span<const ReadUnit> units, const OnVerified& on_verified,
                        const OnBad& on_bad, const OnProgress& on_progress) {
  if (units.empty()) return {};
  Run run(fs_, pool_, options_, log_, files, units, on_verified, on_bad, on_progress, unit_bytes());
  return run.execute();
}

}  // namespace slackwater
