#include "stage/slab_toucher.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/thread.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::chrono::seconds kTellEvery{5};

// In steps of a huge page: during each step the kernel holds the address-space lock, and the trainer may want to map
// memory.
// Kernels before 5.14 have no MADV_POPULATE_WRITE; there, write to each page what it holds: the memory may be a
// keeper's, with a version in it.
void touch_pages(std::span<std::byte> memory) {
  for (std::uint64_t at = 0; at < memory.size(); at += kHugePageBytes) {
    const auto step = memory.subspan(at, std::min(kHugePageBytes, memory.size() - at));
    if (::madvise(step.data(), step.size(), MADV_POPULATE_WRITE) == 0) continue;
    for (std::uint64_t page = 0; page < step.size(); page += kPageBytes) {
      volatile std::byte* const byte = &step[page];
      *byte = *byte;
    }
  }
}

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

SlabToucher::SlabToucher(std::span<std::byte> memory, std::uint64_t slab_bytes, TouchOptions options,
                         std::function<void(int index)> on_touched)
    : memory_(memory),
      slab_bytes_(slab_bytes),
      slab_count_(static_cast<int>(memory.size() / slab_bytes)),
      options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : system_clock_),
      on_touched_(std::move(on_touched)),
      began_(clock_.now()),
      told_(began_) {
  const unsigned count = std::clamp(options_.threads, 1u, static_cast<unsigned>(slab_count_));
  if (options_.log)
    options_.log->info("touching the {} of the pool with {} threads", format_bytes(memory.size()), count);
  threads_.reserve(count);
  try {
    for (unsigned i = 0; i < count; ++i)
      threads_.push_back(
          start_thread(fmt::format("sw-touch-{}", i), [this](const std::stop_token& stop) { run(stop); }));
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;  // fewer threads are slower; none would hang every snapshot
  }
}

void SlabToucher::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const auto piece = next();
    if (!piece) return;
    const TimePoint began = clock_.now();
    if (options_.touch) {
      options_.touch(slab(piece->index), piece->huge);
    } else {
      touch_pages(slab(piece->index));
    }
    record(*piece, clock_.now() - began);
    on_touched_(piece->index);
  }
}

std::optional<SlabToucher::Piece> SlabToucher::next() {
  const std::lock_guard lock(mutex_);
  if (next_ == slab_count_) return std::nullopt;
  const Piece piece{.index = next_++, .huge = policy_.next()};
  if (piece.huge || plain_to_the_end_) return piece;
  // Advice, as MADV_HUGEPAGE was. One call for all that is left, once the decision has been made.
  plain_to_the_end_ = policy_.given_up();
  const auto plain =
      plain_to_the_end_ ? memory_.subspan(static_cast<std::uint64_t>(piece.index) * slab_bytes_) : slab(piece.index);
  (void)::madvise(plain.data(), plain.size(), MADV_NOHUGEPAGE);
  return piece;
}

void SlabToucher::record(Piece piece, Duration took) {
  const std::lock_guard lock(mutex_);
  const bool had_given_up = policy_.given_up();
  policy_.record(piece.huge, slab_bytes_, took);
  ++touched_;
  if (!options_.log) return;
  if (policy_.given_up() && !had_given_up)
    options_.log->info("huge pages are slow on this machine, so the rest of the pool gets plain pages");
  const TimePoint now = clock_.now();
  const std::uint64_t done = slab_bytes_ * static_cast<std::uint64_t>(touched_);
  const double took_seconds = seconds(now - began_);
  if (touched_ == slab_count_) {
    options_.log->info("the pool is ready: {} touched in {}", format_bytes(done), format_seconds(took_seconds));
  } else if (now - told_ >= kTellEvery) {
    told_ = now;
    options_.log->info("touching the pool: {} of {} after {}", format_bytes(done), format_bytes(memory_.size()),
                       format_seconds(took_seconds));
  }
}

std::span<std::byte> SlabToucher::slab(int index) const {
  return memory_.subspan(static_cast<std::uint64_t>(index) * slab_bytes_, slab_bytes_);
}

}  // namespace slackwater
