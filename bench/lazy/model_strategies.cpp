// Models of other systems' strategies, and the choice among all strategies.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "bench/lazy/rated_files.hpp"
#include "bench/lazy/strategy.hpp"

namespace slackwater::bench {
namespace {

constexpr std::uint64_t kPieceBytes = 1u << 20;  // of copies and writes, as the engine's slabs here
constexpr unsigned kChunkWriters = 4;

class PinnedMemory {
 public:
  explicit PinnedMemory(const SimulatedGpu& gpu) : gpu_(gpu) {}
  ~PinnedMemory() {
    if (!bytes_.empty()) static_cast<void>(gpu_.driver().cuMemFreeHost(bytes_.data()));
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  [[nodiscard]] Status allocate(std::uint64_t size_bytes) {
    void* memory = nullptr;
    SW_TRY(
        gpu_.check(gpu_.driver().cuMemHostAlloc(&memory, size_bytes, cuda::kMemHostAllocPortable), "cuMemHostAlloc"));
    bytes_ = {static_cast<std::byte*>(memory), size_bytes};
    std::ranges::fill(bytes_, std::byte{0});  // the pages exist before anything is measured
    return {};
  }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  const SimulatedGpu& gpu_;
  std::span<std::byte> bytes_;
};

// Part of a checkpoint in host memory, on its way to a file.
struct Piece {
  std::shared_ptr<File> file;
  std::span<const std::byte> bytes;
  std::uint64_t offset = 0;
  cuda::CUevent copied = nullptr;  // the bytes are there when this is reached; null: now
};

// Threads that write pieces, in the order they come. Thread rule: one caller.
class PieceWriter {
 public:
  PieceWriter(const SimulatedGpu& gpu, unsigned threads) : gpu_(gpu) {
    for (unsigned i = 0; i < threads; ++i)
      threads_.push_back(start_thread(fmt::format("bench-write-{}", i), [this](std::stop_token stop) { run(stop); }));
  }

  // `slot`: of the memory, for wait_for().
  void post(std::size_t slot, Piece piece) {
    {
      const std::lock_guard lock(mutex_);
      busy_.resize(std::max(busy_.size(), slot + 1));
      busy_[slot] = true;
      ++unwritten_;
      pieces_.emplace_back(slot, std::move(piece));
    }
    changed_.notify_all();
  }
  void wait_for(std::size_t slot) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return slot >= busy_.size() || !busy_[slot]; });
  }
  [[nodiscard]] Status wait_for_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return unwritten_ == 0; });
    return first_error_ ? Status(fail(*first_error_)) : Status();
  }

 private:
  void run(const std::stop_token& stop) {
    const cuda::Scope scope(gpu_.context());
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !pieces_.empty(); })) {
      auto [slot, piece] = std::move(pieces_.front());
      pieces_.pop_front();
      lock.unlock();
      Status status = write(piece);
      piece.file.reset();
      lock.lock();
      if (!status && !first_error_) first_error_ = std::move(status).error();
      busy_[slot] = false;
      --unwritten_;
      changed_.notify_all();
    }
  }
  [[nodiscard]] Status write(const Piece& piece) const {
    if (piece.copied != nullptr)
      SW_TRY(gpu_.check(gpu_.driver().cuEventSynchronize(piece.copied), "cuEventSynchronize"));
    return piece.file->write_at(piece.bytes, piece.offset);
  }

  const SimulatedGpu& gpu_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::pair<std::size_t, Piece>> pieces_;  // guarded by mutex_, as all below
  std::vector<bool> busy_;                            // by slot
  std::size_t unwritten_ = 0;
  std::optional<Error> first_error_;
  std::vector<std::jthread> threads_;  // started last
};

// What the models share: pinned memory in pieces, a stream to copy on, one file per checkpoint.
class Model : public Strategy {
 public:
  Model(const SimulatedGpu& gpu, const Trainer& trainer, const StrategyOptions& options)
      : gpu_(gpu),
        trainer_(trainer),
        options_(options),
        fs_(rated_file_system(make_posix_file_system(), options.write_bytes_per_s)),
        memory_(gpu) {}
  ~Model() override {
    const cuda::Driver& driver = gpu_.driver();
    for (cuda::CUevent event : copied_) static_cast<void>(driver.cuEventDestroy_v2(event));
    if (stream_ != nullptr) static_cast<void>(driver.cuStreamDestroy_v2(stream_));
  }

  [[nodiscard]] Status open(std::uint64_t memory_bytes) {
    memory_bytes = round_up(memory_bytes, kPieceBytes);
    SW_TRY(memory_.allocate(memory_bytes));
    const cuda::Driver& driver = gpu_.driver();
    SW_TRY(gpu_.check(driver.cuStreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0),
                      "cuStreamCreateWithPriority"));
    for (std::uint64_t slot = 0; slot < memory_bytes / kPieceBytes; ++slot) {
      cuda::CUevent event = nullptr;
      SW_TRY(gpu_.check(driver.cuEventCreate(&event, cuda::kEventBlockingSync), "cuEventCreate"));
      copied_.push_back(event);
    }
    return {};
  }

  Result<std::uint64_t> check() override {
    if (file_path_.empty()) return 0;
    SW_ASSIGN(const auto file, fs_->open(file_path_, OpenMode::kRead, false));
    std::vector<std::byte> bytes(trainer_.block_bytes());
    SW_ASSIGN(const std::uint64_t size_bytes, file->read_at(bytes, 0));
    if (size_bytes != bytes.size()) return fail(ErrorKind::kCorrupt, "the file is too short", file_path_);
    SW_TRY(trainer_.compare(bytes, 0, saved_version_));
    return 1;
  }

 protected:
  [[nodiscard]] Result<std::shared_ptr<File>> begin_file(std::uint64_t step) {
    file_path_ = fmt::format("{}/{}", options_.directory, step);
    saved_version_ = trainer_.version();
    SW_ASSIGN(auto file, fs_->open(file_path_, OpenMode::kCreateExclusive, false));
    return std::shared_ptr<File>(std::move(file));
  }
  [[nodiscard]] std::uint64_t piece_count() const { return (trainer_.block_bytes() + kPieceBytes - 1) / kPieceBytes; }
  [[nodiscard]] std::size_t slot_count() const { return copied_.size(); }
  [[nodiscard]] Piece piece_of(std::uint64_t index, std::size_t slot) const {
    const std::uint64_t offset = index * kPieceBytes;
    const std::uint64_t size_bytes = std::min(kPieceBytes, trainer_.block_bytes() - offset);
    return {.file = nullptr, .bytes = memory_.bytes().subspan(slot * kPieceBytes, size_bytes), .offset = offset};
  }
  [[nodiscard]] Status queue_copy(const Piece& piece, std::size_t slot) {
    const cuda::Driver& driver = gpu_.driver();
    SW_TRY(gpu_.check(driver.cuMemcpyDtoHAsync_v2(const_cast<std::byte*>(piece.bytes.data()),
                                                  trainer_.block() + piece.offset, piece.bytes.size(), stream_),
                      "cuMemcpyDtoHAsync"));
    return gpu_.check(driver.cuEventRecord(copied_[slot], stream_), "cuEventRecord");
  }
  [[nodiscard]] Status wait_copied(std::size_t slot) {
    return gpu_.check(gpu_.driver().cuEventSynchronize(copied_[slot]), "cuEventSynchronize");
  }
  // Into memory of the whole state; returns when all of it is there.
  [[nodiscard]] Status copy_all() {
    for (std::uint64_t i = 0; i < piece_count(); ++i) SW_TRY(queue_copy(piece_of(i, i), i));
    return wait_copied(piece_count() - 1);
  }
  [[nodiscard]] cuda::CUevent copied(std::size_t slot) const { return copied_[slot]; }

  const SimulatedGpu& gpu_;
  const Trainer& trainer_;

 private:
  const StrategyOptions options_;
  const std::unique_ptr<FileSystem> fs_;
  PinnedMemory memory_;
  cuda::CUstream stream_ = nullptr;
  std::vector<cuda::CUevent> copied_;  // by slot of the memory
  std::string file_path_;              // of the last checkpoint
  std::uint64_t saved_version_ = 0;
};

class BlockingModel final : public Model {
 public:
  using Model::Model;
  Status save(std::uint64_t step) override {
    SW_TRY(copy_all());
    SW_ASSIGN(const auto file, begin_file(step));
    for (std::uint64_t i = 0; i < piece_count(); ++i) {
      const Piece piece = piece_of(i, i);
      SW_TRY(file->write_at(piece.bytes, piece.offset));
    }
    return file->close();
  }
  Status finish() override { return {}; }
};

class CopyThenFlushModel final : public Model {
 public:
  using Model::Model;
  Status save(std::uint64_t step) override {
    SW_TRY(writer_.wait_for_all());
    SW_TRY(copy_all());
    SW_ASSIGN(const auto file, begin_file(step));
    for (std::uint64_t i = 0; i < piece_count(); ++i) {
      Piece piece = piece_of(i, i);
      piece.file = file;
      writer_.post(i, std::move(piece));
    }
    return {};
  }
  Status finish() override { return writer_.wait_for_all(); }

 private:
  PieceWriter writer_{gpu_, 1};
};

class ChunkedModel final : public Model {
 public:
  using Model::Model;
  Status save(std::uint64_t step) override {
    SW_ASSIGN(const auto file, begin_file(step));
    for (std::uint64_t i = 0; i < piece_count(); ++i) {
      const std::size_t slot = next_slot_;
      next_slot_ = (next_slot_ + 1) % slot_count();
      writer_.wait_for(slot);
      Piece piece = piece_of(i, slot);
      SW_TRY(queue_copy(piece, slot));
      piece.file = file;
      piece.copied = copied(slot);
      writer_.post(slot, std::move(piece));
    }
    return wait_copied((next_slot_ + slot_count() - 1) % slot_count());
  }
  Status finish() override { return writer_.wait_for_all(); }

 private:
  std::size_t next_slot_ = 0;
  PieceWriter writer_{gpu_, kChunkWriters};
};

class NoStrategy final : public Strategy {
 public:
  Status save(std::uint64_t /*step*/) override { return {}; }
  Status finish() override { return {}; }
  Result<std::uint64_t> check() override { return 0; }
};

template <class Kind>
Result<std::unique_ptr<Strategy>> make_model(const SimulatedGpu& gpu, const Trainer& trainer,
                                             const StrategyOptions& options, std::uint64_t memory_bytes) {
  auto model = std::make_unique<Kind>(gpu, trainer, options);
  SW_TRY(model->open(memory_bytes));
  return model;
}

}  // namespace

std::string_view way_name(Way way) {
  switch (way) {
    case Way::kNone: return "no checkpoints";
    case Way::kBlocking: return "model of DeepSpeed's default (blocking)";
    case Way::kCopyThenFlush: return "model of CheckFreq (copy, then flush)";
    case Way::kChunked: return "model of TorchSnapshot (chunks in parallel)";
    case Way::kLazyHostFence: return "Slackwater, lazy, fence on the host";
    case Way::kLazyDeviceFence: return "Slackwater, lazy, fence on the device";
  }
  return "unknown";
}

std::string_view way_key(Way way) {
  switch (way) {
    case Way::kNone: return "none";
    case Way::kBlocking: return "blocking";
    case Way::kCopyThenFlush: return "copy_then_flush";
    case Way::kChunked: return "chunked";
    case Way::kLazyHostFence: return "lazy_host_fence";
    case Way::kLazyDeviceFence: return "lazy_device_fence";
  }
  return "unknown";
}

Result<std::unique_ptr<Strategy>> make_strategy(const SimulatedGpu& gpu, const Trainer& trainer,
                                                const StrategyOptions& options) {
  switch (options.way) {
    case Way::kNone: return std::make_unique<NoStrategy>();
    case Way::kBlocking: return make_model<BlockingModel>(gpu, trainer, options, trainer.block_bytes());
    case Way::kCopyThenFlush: return make_model<CopyThenFlushModel>(gpu, trainer, options, trainer.block_bytes());
    case Way::kChunked: return make_model<ChunkedModel>(gpu, trainer, options, options.pool_bytes);
    case Way::kLazyHostFence:
    case Way::kLazyDeviceFence: break;
  }
  return make_engine_strategy(gpu, trainer, options);
}

}  // namespace slackwater::bench
