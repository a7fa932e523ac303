#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "layout/data_file.hpp"
#include "layout/file_layout.hpp"
#include "layout/header_writer.hpp"
#include "layout/json_text.hpp"
#include "layout/name_table.hpp"
#include "layout/tied_table.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kTreeEntryBytes = 256;  // upper bound for the header entry of the tree tensor
constexpr std::uint64_t kUsualEntryBytes = 96;  // typical size of a header entry without the name

bool is_empty(const Tensor& tensor) { return std::ranges::find(tensor.shape, 0) != tensor.shape.end(); }

std::string entry_of(const Tensor& tensor) {
  if (!tensor.shard) return tensor.name;
  return entry_name(tensor.name, {tensor.shard->offset, tensor.shape}, tensor.shard->global_shape);
}

// A box is stored under a generated name. A tensor must not have the same name.
Status check_entries(const State& state) {
  if (std::ranges::none_of(state.tensors, [](const Tensor& tensor) { return tensor.shard.has_value(); })) return {};
  std::vector<std::string> entries;
  entries.reserve(state.tensors.size());
  NameTable names(state.tensors.size(), [&](std::uint32_t index) -> std::string_view { return entries[index]; });
  for (const Tensor& tensor : state.tensors) {
    if (tensor.shard && is_empty(tensor)) continue;
    entries.push_back(entry_of(tensor));
    if (names.insert(static_cast<std::uint32_t>(entries.size() - 1))) {
      return fail(
          ErrorKind::kInvalidArgument,
          fmt::format("a tensor and a box of another tensor are both called '{}' in the file; rename the tensor",
                      entries.back()));
    }
  }
  return {};
}

// For each tensor, the index of the tensor it is tied to, or its own.
using Ties = std::vector<std::uint32_t>;

// A global tensor is either stored completely or tied completely to one other tensor. Anything in between is stored.
void untie_parts(const State& state, Ties& ties) {
  struct Boxes {
    std::size_t count = 0, tied = 0;
    std::string_view to;
    bool to_one = true;
  };
  std::unordered_map<std::string_view, Boxes> global;
  const auto tied_box = [&](std::uint32_t i) { return ties[i] != i && state.tensors[i].shard; };
  std::uint32_t found = 0;
  while (found < ties.size() && !tied_box(found)) ++found;
  if (found == ties.size()) return;
  for (std::uint32_t i = 0; i < ties.size(); ++i) {
    if (!state.tensors[i].shard || is_empty(state.tensors[i])) continue;
    Boxes& boxes = global[state.tensors[i].name];
    ++boxes.count;
    if (ties[i] == i) continue;
    const std::string_view to = state.tensors[ties[i]].name;
    if (boxes.tied++ == 0) boxes.to = to;
    boxes.to_one = boxes.to_one && boxes.to == to;
  }
  for (std::uint32_t i = found; i < ties.size(); ++i) {
    if (!tied_box(i)) continue;
    const Boxes& boxes = global[state.tensors[i].name];
    const Boxes& stored = global[boxes.to];
    const bool whole = boxes.to_one && boxes.tied == boxes.count && stored.count == boxes.count && stored.tied == 0;
    if (!whole) ties[i] = i;
  }
}

Ties find_ties(const State& state) {
  Ties ties(state.tensors.size());
  TiedTable seen(state.tensors);
  for (std::uint32_t i = 0; i < ties.size(); ++i) {
    const Tensor& tensor = state.tensors[i];
    // Somebody else decides which rank writes which box of a part. So one box of a tensor may be tied here, and another
    // one stored by a rank that does not have the first name. Only whole tensors can be tied then.
    const bool apart = state.part && tensor.shard && tensor.shape != tensor.shard->global_shape;
    ties[i] = is_empty(tensor) || apart ? i : seen.insert(i);
  }
  untie_parts(state, ties);
  return ties;
}

// Larger elements first, otherwise in the given order. Every tensor is then aligned to its element size, because the
// sizes of all tensors before it are multiples of that.
std::vector<std::uint32_t> file_order(const State& state, std::span<const std::uint32_t> stored) {
  std::vector<std::uint32_t> order(stored.begin(), stored.end());
  const auto element_bytes = [&](std::uint32_t index) { return item_bytes(state.tensors[index].dtype); };
  std::ranges::stable_sort(order, std::ranges::greater(), element_bytes);
  return order;
}

// Splits the tensors into as many parts as the limit on header size requires. In practice that is one.
class PartMaker {
 public:
  PartMaker(const State& state, const FileIdentity& identity, std::uint64_t max_json_bytes, std::string_view directory)
      : state_(state), identity_(identity), max_json_bytes_(max_json_bytes), directory_(directory), writer_(identity) {
    // A tree that is not UTF-8, or that would leave too little room in the header, is stored as a tensor.
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
                fmt::format("the metadata of step {} takes {}, but a file header has room for {}; pass less metadata",
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

  std::vector<FileLayout> finish() {
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
    const std::uint64_t size = *packed_bytes(tensor.dtype, tensor.shape);  // check_state() has checked it
    const std::string entry = entry_of(tensor);
    writer_.add_tensor(entry, tensor.dtype, tensor.shape, data_bytes_, data_bytes_ + size);
    if (tensor.shard) writer_.add_shard(entry, tensor.name, *tensor.shard);
    for (const auto& [alias, stored] : aliases) {
      const Tensor& other = state_.tensors[alias];
      const std::string alias_entry = entry_of(other);
      writer_.add_alias(alias_entry, entry);
      if (other.shard) writer_.add_shard(alias_entry, other.name, *other.shard);
    }
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
    std::string name = data_file(identity_.rank, static_cast<std::uint32_t>(parts_.size()), directory_);
    parts_.emplace_back(std::move(name), std::move(header), std::exchange(extents_, {}));
    writer_ = HeaderWriter(identity_);
    data_bytes_ = 0;
  }

  const State& state_;
  const FileIdentity identity_;
  const std::uint64_t max_json_bytes_;
  const std::string_view directory_;
  bool tree_as_tensor_ = false;
  std::vector<FileLayout> parts_;
  // The current part. Its extents count offsets from the start of the data until the header is known.
  HeaderWriter writer_;
  std::vector<Extent> extents_;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace

Result<SnapshotLayout> plan_layout(const State& state, const FileIdentity& identity, std::uint64_t max_header_bytes,
                                   std::string_view directory) {
  // The padding counts, too, because safetensors takes the length word as the size of the header.
  const std::uint64_t max_file_front = round_down(max_header_bytes + sizeof(std::uint64_t), kDataAlignment);
  if (max_file_front == 0) return fail(ErrorKind::kInvalidArgument, "the limit on header bytes is below 4088");

  SW_TRY(check_entries(state));
  SnapshotLayout layout;
  layout.stored.reserve(state.tensors.size());
  const Ties ties = find_ties(state);
  for (std::uint32_t i = 0; i < ties.size(); ++i) {
    if (state.tensors[i].shard && is_empty(state.tensors[i])) continue;  // this rank has no part of the global tensor
    if (ties[i] == i) {
      layout.stored.push_back(i);
    } else {
      layout.aliases.emplace_back(i, ties[i]);
    }
  }

  auto aliases_by_stored = layout.aliases;
  std::ranges::sort(aliases_by_stored, {}, [](const auto& alias) { return std::pair(alias.second, alias.first); });

  PartMaker maker(state, identity, max_file_front - sizeof(std::uint64_t), directory);
  SW_TRY(maker.start());
  for (const std::uint32_t index : file_order(state, layout.stored)) {
    const auto aliases =
        std::ranges::equal_range(aliases_by_stored, index, {}, &std::pair<std::uint32_t, std::uint32_t>::second);
    SW_TRY(maker.add(index, std::span(aliases)));
  }
  layout.parts = maker.finish();
  for (const FileLayout& part : layout.parts) layout.size_bytes += part.size_bytes();
  return layout;
}

}  // namespace slackwater
