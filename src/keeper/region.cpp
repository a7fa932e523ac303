#include "keeper/region.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kMagic = 0x3170656b2d7773ff;  // changes whenever the layout does
constexpr std::uint64_t kHugePage = 2u << 20;
constexpr std::uint64_t kTextBytes = 64u << 20;  // index and values of a rank
constexpr std::uint64_t kTextBytesPerMib = 64;   // a digest in the record, and its share of a slab list
constexpr std::uint64_t kMaxSlabs = 1u << 20;
constexpr std::size_t kIdBytes = 64;

std::uint64_t text_room(const RegionShape& shape) {
  const std::uint64_t mib = shape.slab_bytes * shape.slab_count >> 20;
  return round_up(kTextBytes + kTextBytesPerMib * mib, kHugePage);
}

std::uint64_t texts_begin() { return round_up(kPage * (1 + Region::kEntries), kHugePage); }
std::uint64_t slabs_begin(const RegionShape& shape) { return texts_begin() + Region::kEntries * text_room(shape); }

bool sane(const RegionShape& shape) {
  return shape.slab_bytes > 0 && shape.slab_bytes % (1u << 20) == 0 && shape.slab_bytes <= (1u << 30) &&
         shape.slab_count >= 2 && shape.slab_count <= kMaxSlabs && shape.rank < shape.world;
}

using Id = std::array<char, kIdBytes>;

void set_id(Id& to, std::string_view id) {
  Id bytes{};
  std::ranges::copy(id.substr(0, kIdBytes - 1), bytes.begin());
  to = bytes;
}

std::string get_id(const Id& from) { return {from.begin(), std::ranges::find(from, '\0')}; }

}  // namespace

struct Region::Header {
  std::uint64_t magic;
  std::uint64_t slab_bytes;
  std::uint32_t slab_count;
  std::uint32_t rank;
  std::uint32_t world;
};

struct Region::Entry {
  std::atomic<std::uint32_t> state;
  std::uint32_t attempt;
  std::uint64_t step;
  std::uint64_t text_bytes;
  std::uint64_t text_digest;
  Id member;
  Id next_owner;
};

std::uint64_t Region::size_bytes(const RegionShape& shape) {
  return slabs_begin(shape) + shape.slab_bytes * shape.slab_count;
}

Result<Region> Region::format(std::shared_ptr<SharedMemory> memory, const RegionShape& shape) {
  static_assert(sizeof(Header) <= kPage && sizeof(Entry) <= kPage);
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "a lock would be useless in another process");
  if (!sane(shape) || memory->bytes().size() != size_bytes(shape))
    return fail(ErrorKind::kInternal, "the keeper's memory does not have the size that was asked for");
  Region region(std::move(memory), shape);
  for (std::uint32_t i = 0; i < kEntries; ++i) region.drop(i);
  const Header header{kMagic, shape.slab_bytes, shape.slab_count, shape.rank, shape.world};
  std::memcpy(region.memory_->bytes().data(), &header, sizeof header);
  return region;
}

Result<Region> Region::open(std::shared_ptr<SharedMemory> memory) {
  Header header{};
  if (memory->bytes().size() < texts_begin()) return fail(ErrorKind::kCorrupt, "the keeper's memory is too small");
  std::memcpy(&header, memory->bytes().data(), sizeof header);
  const RegionShape shape{header.slab_bytes, header.slab_count, header.rank, header.world};
  if (header.magic != kMagic || !sane(shape) || memory->bytes().size() != size_bytes(shape))
    return fail(ErrorKind::kCorrupt,
                "the keeper's memory has a layout that this release does not know; is the keeper from another "
                "release?");
  return Region(std::move(memory), shape);
}

std::span<std::byte> Region::slabs() const {
  return memory_->bytes().subspan(slabs_begin(shape_), shape_.slab_bytes * shape_.slab_count);
}

std::span<std::byte> Region::slab(std::uint32_t index) const {
  return slabs().subspan(index * shape_.slab_bytes, shape_.slab_bytes);
}

Region::Entry& Region::entry(std::uint32_t index) const {
  return *reinterpret_cast<Entry*>(memory_->bytes().data() + kPage * (1 + index));
}

std::span<std::byte> Region::text(std::uint32_t index) const {
  const std::uint64_t room = text_room(shape_);
  return memory_->bytes().subspan(texts_begin() + index * room, room);
}

std::optional<std::uint32_t> Region::begin(const VersionName& name) {
  for (std::uint32_t i = 0; i < kEntries; ++i) {
    Entry& free = entry(i);
    if (free.state.load(std::memory_order_relaxed) != std::to_underlying(KeptState::kEmpty)) continue;
    free.step = name.step;
    free.attempt = name.attempt;
    free.state.store(std::to_underlying(KeptState::kFilling), std::memory_order_release);
    return i;
  }
  return std::nullopt;
}

Status Region::publish(std::uint32_t index, const StagedVersion& version, const std::string& member) {
  const std::string words = serialize(version);
  const std::span<std::byte> room = text(index);
  if (words.size() > room.size())
    return fail(ErrorKind::kNoSpace, fmt::format("the description of step {} needs {}, only {} fit", version.name.step,
                                                 format_bytes(words.size()), format_bytes(room.size())));
  Entry& slot = entry(index);
  std::memcpy(room.data(), words.data(), words.size());
  slot.step = version.name.step;
  slot.attempt = version.name.attempt;
  slot.text_bytes = words.size();
  slot.text_digest = digest64(std::as_bytes(std::span(words)));
  set_id(slot.member, member);
  set_id(slot.next_owner, {});
  // The one store that makes it a version. All bytes of it were written before, by threads that this one waited for.
  slot.state.store(std::to_underlying(KeptState::kStaged), std::memory_order_release);
  return {};
}

void Region::mark_committed(std::uint32_t index) {
  auto expected = std::to_underlying(KeptState::kStaged);
  entry(index).state.compare_exchange_strong(expected, std::to_underlying(KeptState::kCommitted),
                                             std::memory_order_release, std::memory_order_relaxed);
}

void Region::drop(std::uint32_t index) {
  // Before any slab of it is used again. (The lock of the pool orders this store before those into the slabs.)
  entry(index).state.store(std::to_underlying(KeptState::kEmpty), std::memory_order_release);
}

void Region::set_next_owner(std::uint32_t index, const std::string& member, const std::string& next) {
  // In this order, so that at each moment one of the two fields holds `member`, whole.
  Entry& slot = entry(index);
  if (get_id(slot.member) != member) {
    set_id(slot.member, member);
    std::atomic_thread_fence(std::memory_order_release);
  }
  set_id(slot.next_owner, next);
  std::atomic_thread_fence(std::memory_order_release);
}

std::vector<Region::Kept> Region::kept() const {
  std::vector<Kept> all;
  for (std::uint32_t i = 0; i < kEntries; ++i) {
    const Entry& slot = entry(i);
    const std::uint32_t state = slot.state.load(std::memory_order_acquire);
    if (state != std::to_underlying(KeptState::kStaged) && state != std::to_underlying(KeptState::kCommitted)) continue;
    const std::uint64_t size = slot.text_bytes;
    if (size > text(i).size()) continue;
    // Copied before it is checked: the trainer may still run and change it.
    const std::string words(reinterpret_cast<const char*>(text(i).data()), size);
    if (digest64(std::as_bytes(std::span(words))) != slot.text_digest) continue;
    auto version = parse_staged_version(words, shape_.slab_bytes, shape_.slab_count);
    if (!version || version->rank != shape_.rank || version->world != shape_.world) continue;
    all.push_back({.entry = i,
                   .state = static_cast<KeptState>(state),
                   .version = std::move(*version),
                   .members = {get_id(slot.member), get_id(slot.next_owner)}});
  }
  std::ranges::sort(all, {}, [](const Kept& each) { return each.version.name; });
  return all;
}

bool Region::holds(std::uint32_t index, const VersionName& name) const {
  const Entry& slot = entry(index);
  const std::uint32_t state = slot.state.load(std::memory_order_acquire);
  const bool there =
      state == std::to_underlying(KeptState::kStaged) || state == std::to_underlying(KeptState::kCommitted);
  return there && slot.step == name.step && slot.attempt == name.attempt;
}

}  // namespace slackwater
