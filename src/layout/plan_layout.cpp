#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "layout/data_file.hpp"
#include "layout/header_writer.hpp"
#include "layout/json_text.hpp"
#include "layout/stream_layout.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kTreeEntryBytes = 256;  // more than the header entry of the tree tensor takes
constexpr std::uint64_t kUsualEntryBytes = 96;  // of a header entry, without the name

bool tied(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.device == b.device && a.shape == b.shape &&
         (a.strides == b.strides || (is_contiguous(a.shape, a.strides) && is_contiguous(b.shape, b.strides)));
}

// Finds an earlier tensor that a new one is tied to. Open addressing, so that untied tensors cost one probe.
class TiedTable {
 public:
  explicit TiedTable(std::span<const Tensor> tensors)
      : tensors_(tensors), slots_(std::bit_ceil(std::max<std::size_t>(tensors.size() * 2, 2))) {}

  // `index` itself if it is tied to none; it is then remembered.
  std::uint32_t insert(std::uint32_t index) {
    const Tensor& tensor = tensors_[index];
    const std::uint64_t hash = hash_of(tensor);
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
    for (; slots_[at].index != kFree; at = (at + 1) & mask) {
      if (slots_[at].hash == hash && tied(tensors_[slots_[at].index], tensor)) return slots_[at].index;
    }
    slots_[at] = {hash, index};
    return index;
  }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t index = kFree;
  };
  static constexpr std::uint32_t kFree = 0xffffffff;

  // Shape and type are mixed in: many views of one pointer must not pile up in one place. Strides are not, because none
  // and contiguous ones are the same.
  static std::uint64_t hash_of(const Tensor& tensor) {
    constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
    std::uint64_t hash =
        reinterpret_cast<std::uintptr_t>(tensor.data) ^ (static_cast<std::uint64_t>(tensor.dtype) << 56);
    const auto mix = [&] {
      hash *= kOdd;
      hash ^= hash >> 32;
    };
    mix();
    for (const std::int64_t dimension : tensor.shape) {
      hash += static_cast<std::uint64_t>(dimension);
      mix();
    }
    return hash;
  }

  std::span<const Tensor> tensors_;
  std::vector<Slot> slots_;
};

// Larger items first, else in the order given: then every tensor is aligned to its item, since those before it are
// multiples of it.
std::vector<std::uint32_t> stream_order(const State& state, std::span<const std::uint32_t> stored) {
  const auto size_class = [&](std::uint32_t index) {
    return static_cast<std::size_t>(
        4 - std::countr_zero(item_bytes(state.tensors[index].dtype)));  // 16 bytes: 0, ... 1 byte: 4
  };
  std::array<std::size_t, 6> begin{};
  for (const std::uint32_t index : stored) ++begin[size_class(index) + 1];
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<std::uint32_t> order(stored.size());
  for (const std::uint32_t index : stored) order[begin[size_class(index)]++] = index;
  return order;
}

// Cuts the tensors into as many parts as the limit on headers asks for: one, in practice.
class PartMaker {
 public:
  PartMaker(const State& state, const StreamIdentity& identity, std::uint64_t max_json_bytes)
      : state_(state), identity_(identity), max_json_bytes_(max_json_bytes), writer_(identity) {
    // A tree that JSON cannot hold, or that would crowd the tensors out of the header, is stored as a tensor.
    std::string escaped;
    if (state.tree.size() <= kMaxInlineTreeBytes && is_utf8(state.tree)) append_json_escaped(escaped, state.tree);
    tree_as_tensor_ = !state.tree.empty() && (escaped.empty() || escaped.size() > max_json_bytes / 2);
    if (!tree_as_tensor_) writer_.set_tree(state.tree);
    writer_.set_metadata(state.metadata);
    std::uint64_t entry_bytes = 0;
    for (const Tensor& tensor : state.tensors) entry_bytes += tensor.name.size() + kUsualEntryBytes;
    writer_.reserve(std::min(entry_bytes, max_json_bytes));
    extents_.reserve(state.tensors.size());
  }

  Status start() const {
    if (fits()) return {};
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("the metadata of step {} takes {} of the {} a file header may have; pass less metadata",
                            identity_.step, format_bytes(writer_.json_bytes()), format_bytes(max_json_bytes_)));
  }

  // `aliases`: (alias, stored under) of this tensor.
  Status add(std::uint32_t index, std::span<const std::pair<std::uint32_t, std::uint32_t>> aliases) {
    if (try_add(index, aliases)) return {};
    if (!extents_.empty()) {
      finish_part();
      if (try_add(index, aliases)) return {};
    }
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("the name of tensor '{:.80}...' does not fit into a file header; shorten it",
                            state_.tensors[index].name));
  }

  std::vector<StreamLayout> finish() {
    finish_part();
    return std::move(parts_);
  }

 private:
  bool fits() const {
    const std::uint64_t reserved = tree_as_tensor_ && parts_.empty() ? kTreeEntryBytes : 0;
    return writer_.json_bytes() + reserved <= max_json_bytes_;
  }

  bool try_add(std::uint32_t index, std::span<const std::pair<std::uint32_t, std::uint32_t>> aliases) {
    const Tensor& tensor = state_.tensors[index];
    const HeaderWriter::Mark mark = writer_.mark();
    const std::uint64_t size = *packed_bytes(tensor.dtype, tensor.shape);  // check_state() has seen that it is one
    writer_.add_tensor(tensor.name, tensor.dtype, tensor.shape, data_bytes_, data_bytes_ + size);
    for (const auto& [alias, stored] : aliases) writer_.add_alias(state_.tensors[alias].name, tensor.name);
    if (!fits()) {
      writer_.roll_back(mark);
      return false;
    }
    append_extent(index, size);
    return true;
  }

  void append_extent(std::uint32_t source, std::uint64_t size) {
    extents_.push_back({source, data_bytes_, size});
    data_bytes_ += size;
  }

  void finish_part() {
    if (tree_as_tensor_ && parts_.empty()) {
      const std::int64_t shape[] = {static_cast<std::int64_t>(state_.tree.size())};
      writer_.add_tensor(kTreeTensorName, DType::kU8, shape, data_bytes_, data_bytes_ + state_.tree.size());
      append_extent(kTreeSource, state_.tree.size());
    }
    std::string header = writer_.finish();
    for (Extent& extent : extents_) extent.offset += header.size();
    std::string name = data_file(identity_.rank, static_cast<std::uint32_t>(parts_.size()));
    parts_.emplace_back(std::move(name), std::move(header), std::exchange(extents_, {}));
    writer_ = HeaderWriter(identity_);
    data_bytes_ = 0;
  }

  const State& state_;
  const StreamIdentity identity_;
  const std::uint64_t max_json_bytes_;
  bool tree_as_tensor_ = false;
  std::vector<StreamLayout> parts_;
  // The part being made. Offsets of extents count from the start of the data until its header is known.
  HeaderWriter writer_;
  std::vector<Extent> extents_;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace

Result<SnapshotLayout> plan_layout(const State& state, const StreamIdentity& identity, std::uint64_t max_header_bytes) {
  // The padding counts too: safetensors takes the length word for the size of the header.
  const std::uint64_t max_file_front = round_down(max_header_bytes + sizeof(std::uint64_t), kDataAlignment);
  if (max_file_front == 0) return fail(ErrorKind::kInvalidArgument, "the limit on header bytes is below 4088");

  SnapshotLayout layout;
  layout.stored.reserve(state.tensors.size());
  TiedTable seen(state.tensors);
  for (std::uint32_t i = 0; i < state.tensors.size(); ++i) {
    const Tensor& tensor = state.tensors[i];
    const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
    const std::uint32_t first = empty ? i : seen.insert(i);
    if (first == i) {
      layout.stored.push_back(i);
    } else {
      layout.aliases.emplace_back(i, first);
    }
  }

  auto aliases_by_stored = layout.aliases;
  std::ranges::sort(aliases_by_stored, {}, [](const auto& alias) { return std::pair(alias.second, alias.first); });

  PartMaker maker(state, identity, max_file_front - sizeof(std::uint64_t));
  SW_TRY(maker.start());
  for (const std::uint32_t index : stream_order(state, layout.stored)) {
    const auto aliases =
        std::ranges::equal_range(aliases_by_stored, index, {}, &std::pair<std::uint32_t, std::uint32_t>::second);
    SW_TRY(maker.add(index, std::span(aliases)));
  }
  layout.parts = maker.finish();
  for (const StreamLayout& part : layout.parts) layout.size_bytes += part.size_bytes();
  return layout;
}

}  // namespace slackwater
