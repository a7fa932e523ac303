// What the stager's tests share: snapshots made of test tensors, the obvious serialiser to compare with, and a sink
// for slabs.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/units.hpp"
#include "device/device.hpp"
#include "stage/pool.hpp"
#include "stage/stager.hpp"
#include "support/sizes.hpp"

namespace slackwater::test {

// A job whose parts are built tensor by tensor; keeps the memory behind it.
class TestSnapshot {
 public:
  explicit TestSnapshot(Device& device, std::uint64_t seed = 1) : device_(device), word_(seed) {
    job_->seed = seed;
    begin_part(4096);
  }

  // Later tensors go to a new file with a header of that size.
  void begin_part(std::size_t header_bytes) {
    close_part();
    std::string header(header_bytes, ' ');
    fill(header.data(), header.size());
    expected_.emplace_back();
    append(header.data(), header.size());
    header_ = std::move(header);
  }
  // The header of the part begun last, instead of the one it has; only before tensors were added.
  void set_header(std::size_t header_bytes) {
    header_.reset();
    expected_.pop_back();
    begin_part(header_bytes);
  }

  std::uint32_t add(std::uint64_t size_bytes, bool guarded = false) {
    auto& memory = memories_.emplace_back(size_bytes);
    fill(memory.data(), memory.size());
    return add_source({memory.data(), 1, {static_cast<std::int64_t>(size_bytes)}, {}}, guarded);
  }

  // Element (r, c) at c * rows + r.
  std::uint32_t add_transposed(std::int64_t rows, std::int64_t columns, std::uint32_t item_bytes,
                               bool guarded = false) {
    auto& memory = memories_.emplace_back(static_cast<std::size_t>(rows * columns) * item_bytes);
    fill(memory.data(), memory.size());
    return add_source({memory.data(), item_bytes, {rows, columns}, {1, rows}}, guarded);
  }

  void add_tree(std::size_t size_bytes) {
    job_->tree.resize(size_bytes);
    fill(job_->tree.data(), size_bytes);
    extents_.push_back({kTreeSource, expected_.back().size(), size_bytes});
    append(job_->tree.data(), size_bytes);
  }

  // Constant from here on.
  std::shared_ptr<StageJob> job() {
    close_part();
    job_->layout = layout_;
    for (Source& source : job_->sources) {
      if (!source.guarded) continue;
      source.fingerprint = source.device->fingerprint(source.memory, job_->seed, job_->whole_fingerprint).value();
    }
    return job_;
  }

  StageJob& settings() { return *job_; }
  std::vector<std::byte>& memory(std::uint32_t tensor) { return memories_[tensor]; }
  // The files as the obvious serialiser writes them.
  [[nodiscard]] const std::vector<std::vector<std::byte>>& expected() const { return expected_; }

 private:
  std::uint32_t add_source(StridedMemory memory, bool guarded) {
    const auto tensor = static_cast<std::uint32_t>(job_->sources.size());
    const std::uint64_t size = memory.size_bytes();
    extents_.push_back({tensor, expected_.back().size(), size});
    if (memory.contiguous()) {
      append(memory.data, size);
    } else {
      for (std::int64_t row = 0; row < memory.shape[0]; ++row) {
        for (std::int64_t column = 0; column < memory.shape[1]; ++column) {
          append(memory.data + (row + column * memory.shape[0]) * memory.item_bytes, memory.item_bytes);
        }
      }
    }
    job_->sources.push_back(
        {.memory = simplify(std::move(memory)), .device = &device_, .guarded = guarded, .fingerprint = 0});
    job_->names.push_back("tensor-" + std::to_string(tensor));
    return tensor;
  }
  void fill(void* memory, std::size_t size) {
    for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
      word_ += 0x9e3779b97f4a7c15;
      std::memcpy(static_cast<std::byte*>(memory) + at, &word_, std::min(sizeof word_, size - at));
    }
  }
  void append(const void* bytes, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(bytes);
    expected_.back().insert(expected_.back().end(), from, from + size);
  }
  void close_part() {
    if (!header_) return;
    layout_->parts.emplace_back("part", std::move(*header_), std::exchange(extents_, {}));
    header_.reset();
  }

  Device& device_;
  std::uint64_t word_;  // the last one used to fill memory; none comes twice, so that misplaced bytes show
  std::shared_ptr<StageJob> job_ = std::make_shared<StageJob>();
  std::shared_ptr<SnapshotLayout> layout_ = std::make_shared<SnapshotLayout>();
  std::optional<std::string> header_;
  std::vector<Extent> extents_;
  std::deque<std::vector<std::byte>> memories_;
  std::vector<std::vector<std::byte>> expected_;
};

// Receives a job's slabs, puts its files together, gives the slabs back at once (unless told to keep them).
class SlabSink {
 public:
  void attach(StageJob& job) {
    job.on_slab = [this](FullSlab slab) { take(std::move(slab)); };
    job.on_done = [this](Status status) {
      ++done_calls_;
      done_.set_value(std::move(status));
    };
  }
  void keep_slabs() { keep_ = true; }
  void drop_slabs() {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }

  Status wait() { return done_.get_future().get(); }
  [[nodiscard]] int done_calls() const { return done_calls_; }
  [[nodiscard]] std::vector<std::byte> stream(std::uint32_t part) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte> all;
    for (const auto& [place, bytes] : chunks_) {
      if (place.first != part) continue;
      if (place.second != all.size()) ADD_FAILURE() << "a chunk is missing or misplaced at " << place.second;
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
  [[nodiscard]] std::vector<std::uint64_t> order() const {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  void take(FullSlab slab) {
    const auto memory = slab.lease.memory();
    const auto tail = memory.subspan(slab.size_bytes, round_up(slab.size_bytes, 4096) - slab.size_bytes);
    EXPECT_TRUE(std::ranges::all_of(tail, [](std::byte byte) { return byte == std::byte{0}; }))
        << "the tail is not zero";
    const std::lock_guard lock(mutex_);
    const auto exact = memory.first(slab.size_bytes);
    chunks_[{slab.part, slab.offset}].assign(exact.begin(), exact.end());
    order_.push_back(slab.offset);
    if (keep_) kept_.push_back(std::move(slab.lease));
  }

  mutable std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<std::byte>> chunks_;  // guarded by mutex_
  std::vector<std::uint64_t> order_;                                                  // guarded by mutex_
  std::vector<Lease> kept_;                                                           // guarded by mutex_
  bool keep_ = false;
  std::promise<Status> done_;
  std::atomic<int> done_calls_ = 0;
};

inline std::unique_ptr<Pool> make_pool(std::uint32_t slabs) {
  auto pool = Pool::create(kMiB, slabs);
  EXPECT_TRUE(pool.has_value());
  return std::move(*pool);
}

// Leaves garbage in every slab, so that bytes the stager forgets to write show.
inline void soil(Pool& pool) {
  std::vector<Lease> all;
  pool.wait_touched();
  while (auto lease = pool.try_acquire()) {
    std::memset(lease->memory().data(), 0xa5, lease->memory().size());
    all.push_back(std::move(*lease));
  }
}

}  // namespace slackwater::test
