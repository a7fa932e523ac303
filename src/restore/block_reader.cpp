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

constexpr std::uint64_t kReadBufferBytes = 2u << 20;
constexpr std::uint64_t kAutoBufferBytes = 64u << 20;
constexpr unsigned kMaxQueueDepth = 64;
constexpr unsigned kMaxAutoPlaceThreads = 4;
constexpr std::chrono::seconds kFirstSlabTimeout{60};
constexpr std::uint64_t kReadSlabBytes = 4u << 20;
constexpr std::uint64_t kMaxReadSlabs = 1024;

unsigned auto_place_threads() { return std::clamp(std::thread::hardware_concurrency(), 2u, kMaxAutoPlaceThreads); }

struct ReadBuffer {
  std::span<std::byte> memory;
  int buffer = -1;  // registered with the queue under this index, or -1
};

// A finished read on its way to the placing threads.
struct Task {
  std::uint32_t read_buffer = 0;
  std::uint32_t unit = 0;
  std::span<std::byte> memory;
  Result<std::uint64_t> bytes_read;
  bool in_place = false;  // nothing was read: the file's bytes are in memory
};

constexpr std::uint32_t kNoBuffer = UINT32_MAX;

struct SourceFile {
  std::unique_ptr<File> file;
  std::uint64_t units_left = 0;  // not yet placed; the file is closed after the last
  bool unreadable = false;       // reported; its units are skipped
};

}  // namespace

// One call of run(). Members belong to the calling thread, unless marked otherwise.
class BlockReader::Run {
 public:
  Run(const BlockReader& reader, std::span<const ReadFile> files, std::span<const ReadUnit> units,
      const OnVerified& on_verified, const OnBad& on_bad, const OnProgress& on_progress)
      : reader_(reader),
        read_files_(files),
        units_(units),
        on_verified_(on_verified),
        on_bad_(on_bad),
        on_progress_(on_progress),
        read_buffer_bytes_(reader.unit_bytes()),
        direct_(reader.options_.direct) {}

  Status execute();

 private:
  Status start();
  bool collect_placed();
  Status submit_ready();
  Status submit_unit(std::uint32_t unit, std::uint32_t read_buffer);
  void handle(IoCompletion completion);
  Status fall_back_to_buffered();
  Status add_slab();
  bool open_source(std::uint32_t file);
  void unit_done(std::uint32_t unit);

  // On the placing threads.
  void place_until_stopped(const std::stop_token& stop);
  void place(const Task& task);
  void place_in_place(const Task& task);

  // Any thread.
  bool report(const BadBlock& bad);
  void fail_run(Error error);
  bool failed();

  const BlockReader& reader_;
  const std::span<const ReadFile> read_files_;
  const std::span<const ReadUnit> units_;
  const OnVerified& on_verified_;
  const OnBad& on_bad_;
  const OnProgress& on_progress_;
  const std::uint64_t read_buffer_bytes_;

  std::vector<Lease> slabs_;
  std::size_t max_slabs_ = 1;
  std::vector<ReadBuffer> read_buffers_;
  std::vector<std::uint32_t> free_buffers_;
  std::vector<std::uint32_t> buffer_unit_;  // which unit a read buffer is busy with
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
  std::vector<std::pair<std::uint32_t, std::uint32_t>> placed_;  // (read buffer, unit), guarded by mutex_
  std::optional<Error> failure_;                                 // guarded by mutex_; the first one stays

  // In this order: placing threads wake the queue, and the queue may still write to the slabs.
  std::unique_ptr<IoQueue> queue_;
  std::vector<std::jthread> placers_;  // started last
};

Status BlockReader::Run::execute() {
  SW_TRY(start());
  std::vector<IoCompletion> completions;
  while (true) {
    if (collect_placed() && on_progress_) on_progress_(bytes_done_);
    if (failed()) break;
    if (falling_back_ && free_buffers_.size() == read_buffers_.size()) SW_TRY(fall_back_to_buffered());
    SW_TRY(submit_ready());
    if (units_done_ == units_.size() || failed()) break;
    completions.clear();
    SW_TRY(queue_->wait(completions, std::nullopt));
    for (IoCompletion& completion : completions) handle(std::move(completion));
  }
  placers_.clear();  // stops and joins; what they had not begun is dropped
  queue_.reset();    // waits for what is in flight
  if (failure_) return fail(std::move(*failure_));
  return {};
}

Status BlockReader::Run::start() {
  sources_.resize(read_files_.size());
  for (const ReadUnit& unit : units_) {
    if (unit.file >= read_files_.size() || unit.size_bytes == 0 || unit.size_bytes > read_buffer_bytes_ ||
        unit.offset % kBlockBytes != 0 || unit.offset + unit.size_bytes > read_files_[unit.file].size_bytes)
      return fail(ErrorKind::kInternal,
                  fmt::format("a read of {} bytes at offset {} was planned wrong", unit.size_bytes, unit.offset));
    ++sources_[unit.file].units_left;
  }
  const std::uint64_t buffer_bytes =
      reader_.options_.buffer_bytes > 0 ? reader_.options_.buffer_bytes : kAutoBufferBytes;
  max_slabs_ = std::clamp<std::uint64_t>(buffer_bytes / reader_.pool_.slab_bytes(), 1, reader_.pool_.slab_count());
  const std::uint64_t max_buffers = max_slabs_ * (reader_.pool_.slab_bytes() / read_buffer_bytes_);
  // Pinning pays off only for slabs that are used again and again.
  register_slabs_ = units_.size() > 2 * max_buffers;

  const unsigned depth = reader_.options_.queue_depth > 0
                             ? reader_.options_.queue_depth
                             : static_cast<unsigned>(std::clamp<std::uint64_t>(max_buffers, 2, kMaxQueueDepth));
  SW_ASSIGN(queue_, reader_.fs_.make_queue({.depth = depth,
                                            .buffer_slots = register_slabs_ ? static_cast<unsigned>(max_slabs_) : 0,
                                            .force_threads = reader_.options_.force_threads}));
  const std::size_t wanted = reader_.options_.place_threads > 0 ? reader_.options_.place_threads : auto_place_threads();
  const std::size_t count = std::min(wanted, units_.size());
  for (std::size_t i = 0; i < count; ++i)
    placers_.push_back(
        start_thread(fmt::format("sw-place-{}", i), [this](std::stop_token stop) { place_until_stopped(stop); }));
  return {};
}

// Frees the buffers of units that have been placed. True if there were any.
bool BlockReader::Run::collect_placed() {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> placed;
  {
    const std::lock_guard lock(mutex_);
    placed.swap(placed_);
  }
  for (const auto& [read_buffer, unit] : placed) {
    if (read_buffer != kNoBuffer) free_buffers_.push_back(read_buffer);
    unit_done(unit);
  }
  return !placed.empty();
}

void BlockReader::Run::unit_done(std::uint32_t unit) {
  ++units_done_;
  bytes_done_ += units_[unit].size_bytes;
  SourceFile& source = sources_[units_[unit].file];
  if (--source.units_left > 0 || !source.file) return;
  queue_->forget(*source.file);
  source.file.reset();
}

Status BlockReader::Run::submit_ready() {
  while (!falling_back_ && queue_->in_flight() < queue_->depth()) {
    if (again_.empty() && next_unit_ == units_.size()) break;
    const std::uint32_t unit = again_.empty() ? static_cast<std::uint32_t>(next_unit_) : again_.back();
    const bool readable = open_source(units_[unit].file);
    if (readable && !sources_[units_[unit].file].file->in_place(0).empty()) {
      // Nothing to read, so nothing to wait for: the placing threads take it from where it is.
      ++next_unit_;
      {
        const std::lock_guard lock(mutex_);
        tasks_.push_back({kNoBuffer, unit, {}, std::uint64_t{0}, true});
      }
      changed_.notify_one();
      continue;
    }
    if (readable && free_buffers_.empty()) SW_TRY(add_slab());
    if (readable && free_buffers_.empty()) break;
    if (again_.empty())
      ++next_unit_;
    else
      again_.pop_back();
    if (!readable) {
      unit_done(unit);
      if (failed()) break;
      continue;
    }
    const std::uint32_t read_buffer = free_buffers_.back();
    free_buffers_.pop_back();
    SW_TRY(submit_unit(unit, read_buffer));
  }
  return {};
}

Status BlockReader::Run::submit_unit(std::uint32_t unit, std::uint32_t read_buffer) {
  const ReadUnit& what = units_[unit];
  buffer_unit_[read_buffer] = unit;
  return queue_->submit({.op = IoOp::kRead,
                         .file = sources_[what.file].file.get(),
                         .data = read_buffers_[read_buffer].memory.data(),
                         .size_bytes = round_up(what.size_bytes, kDirectAlignment),
                         .offset = what.offset,
                         .buffer = read_buffers_[read_buffer].buffer,
                         .tag = read_buffer});
}

void BlockReader::Run::handle(IoCompletion completion) {
  const auto read_buffer = static_cast<std::uint32_t>(completion.tag);
  const std::uint32_t unit = buffer_unit_[read_buffer];
  const SourceFile& source = sources_[units_[unit].file];
  if (!completion.size_bytes && completion.size_bytes.error().sys_errno == EINVAL && source.file->direct()) {
    falling_back_ = true;
    again_.push_back(unit);
    free_buffers_.push_back(read_buffer);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({read_buffer, unit, read_buffers_[read_buffer].memory, std::move(completion.size_bytes)});
  }
  changed_.notify_one();
}

// Some file systems accept O_DIRECT at open and refuse it at the first read. No read is in flight now, so the
// descriptors may change.
Status BlockReader::Run::fall_back_to_buffered() {
  reader_.log_.warn("the file system refuses direct reads; reading through the page cache instead");
  direct_ = false;
  falling_back_ = false;
  for (SourceFile& source : sources_)
    if (source.file && source.file->direct()) SW_TRY(source.file->set_direct(false));
  return {};
}

// Takes one more slab if the limit and the pool allow it. Waits for one only if there is none at all.
Status BlockReader::Run::add_slab() {
  if (slabs_.size() == max_slabs_) return {};
  Lease lease;
  if (slabs_.empty()) {
    SW_ASSIGN(lease, reader_.pool_.acquire(kFirstSlabTimeout, {}));
  } else {
    std::optional<Lease> free = reader_.pool_.try_acquire();
    if (!free) return {};
    lease = std::move(*free);
  }
  int buffer = static_cast<int>(slabs_.size());
  if (register_slabs_) {
    if (const Status status = queue_->register_buffer(buffer, lease.memory()); !status) {
      reader_.log_.info("reading without registered buffers: {}", status.error().to_string());
      register_slabs_ = false;
    }
  }
  if (!register_slabs_) buffer = -1;
  for (std::uint64_t begin = 0; begin + read_buffer_bytes_ <= lease.memory().size(); begin += read_buffer_bytes_) {
    free_buffers_.push_back(static_cast<std::uint32_t>(read_buffers_.size()));
    read_buffers_.push_back({lease.memory().subspan(begin, read_buffer_bytes_), buffer});
  }
  buffer_unit_.resize(read_buffers_.size());
  slabs_.push_back(std::move(lease));
  return {};
}

bool BlockReader::Run::open_source(std::uint32_t file) {
  SourceFile& source = sources_[file];
  if (source.file) return true;
  if (source.unreadable) return false;
  auto opened = retry_read([&] { return reader_.fs_.open(read_files_[file].path, OpenMode::kRead, direct_); });
  if (opened) {
    source.file = std::move(*opened);
    return true;
  }
  source.unreadable = true;
  (void)report({file, 0, read_files_[file].size_bytes, std::move(opened).error()});
  return false;
}

void BlockReader::Run::place_until_stopped(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !tasks_.empty(); })) {
    if (stop.stop_requested() || failure_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    place(task);
    lock.lock();
    placed_.emplace_back(task.read_buffer, task.unit);
    queue_->wake();
  }
}

// Block by block: each is placed right after its digest was computed, while it is in the cache.
void BlockReader::Run::place_in_place(const Task& task) {
  const ReadUnit& unit = units_[task.unit];
  const ReadFile& file = read_files_[unit.file];
  for (std::uint64_t begin = 0; begin < unit.size_bytes; begin += kBlockBytes) {
    const ReadUnit block{unit.file, unit.offset + begin, std::min(kBlockBytes, unit.size_bytes - begin)};
    const std::span<const std::byte> bytes = sources_[unit.file].file->in_place(block.offset);
    std::optional<Error> problem;
    if (bytes.size() < block.size_bytes) {
      problem = Error{ErrorKind::kCorrupt, "the file ends before the bytes that were written", file.path, 0, false};
    } else if (digest64(bytes.first(block.size_bytes)) != file.block_digests[block.offset / kBlockBytes]) {
      problem = Error{ErrorKind::kCorrupt, "the bytes are not those that were written (checksum differs)", file.path, 0,
                      false};
    } else if (Status status = on_verified_(block, bytes.first(block.size_bytes)); !status) {
      return fail_run(std::move(status).error());
    }
    if (problem && !report({block.file, block.offset, block.size_bytes, std::move(*problem)})) return;
  }
}

void BlockReader::Run::place(const Task& task) {
  if (task.in_place) return place_in_place(task);
  const ReadUnit& unit = units_[task.unit];
  const ReadFile& file = read_files_[unit.file];
  bool clean = true;
  for (std::uint64_t begin = 0; begin < unit.size_bytes; begin += kBlockBytes) {
    const std::uint64_t offset = unit.offset + begin;
    const std::uint64_t size = std::min(kBlockBytes, unit.size_bytes - begin);
    // A failed read says nothing about the blocks around the bad sector. Read each one alone, more than once.
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
      problem = Error{ErrorKind::kCorrupt, "the file ends before the bytes that were written", file.path, 0, false};
    } else if (digest64(task.memory.subspan(begin, size)) != file.block_digests[offset / kBlockBytes]) {
      problem = Error{ErrorKind::kCorrupt, "the bytes are not those that were written (checksum differs)", file.path, 0,
                      false};
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

bool BlockReader::Run::report(const BadBlock& bad) {
  bool go_on = false;
  {
    const std::lock_guard lock(bad_mutex_);
    go_on = on_bad_(bad);
  }
  if (!go_on) fail_run(bad.error);
  return go_on;
}

void BlockReader::Run::fail_run(Error error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
}

bool BlockReader::Run::failed() {
  const std::lock_guard lock(mutex_);
  return failure_.has_value();
}

BlockReader::BlockReader(FileSystem& fs, Pool& pool, Options options, Log log)
    : fs_(fs), pool_(pool), options_(options), log_(std::move(log)) {}

std::uint64_t BlockReader::unit_bytes() const { return std::min(kReadBufferBytes, pool_.slab_bytes()); }

Status BlockReader::run(std::span<const ReadFile> files, std::span<const ReadUnit> units, const OnVerified& on_verified,
                        const OnBad& on_bad, const OnProgress& on_progress) {
  if (units.empty()) return {};
  return Run(*this, files, units, on_verified, on_bad, on_progress).execute();
}

BlockReader::Options block_reader_options(const ReadOptions& options) {
  return {.buffer_bytes = options.buffer_bytes,
          .force_threads = options.io_backend == IoBackend::kThreads,
          .direct = options.direct_io};
}

Result<std::unique_ptr<Pool>> make_read_pool(const ReadOptions& options, std::uint64_t size_bytes) {
  const std::uint64_t useful = size_bytes / kReadSlabBytes + 1;
  const std::uint64_t slabs =
      std::clamp<std::uint64_t>(std::min(options.buffer_bytes / kReadSlabBytes, useful), 2, kMaxReadSlabs);
  return Pool::create(kReadSlabBytes, static_cast<std::uint32_t>(slabs));
}

}  // namespace slackwater
