#include "capture/share_replicas.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/digest.hpp"
#include "layout/tied_table.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

bool is_replica(const Tensor& tensor) { return tensor.shard && tensor.shard->replicas > 1; }

using Rows = ReplicaShares::Rows;
using Cut = ReplicaShares::Cut;

// The dimension a tensor is cut in.
std::size_t row_dimension(const Tensor& tensor) {
  const auto found = std::ranges::find_if(tensor.shape, [](std::int64_t extent) { return extent > 1; });
  return static_cast<std::size_t>(found - tensor.shape.begin());
}

// The bytes of a replica group, one box after the other.
struct Line {
  std::uint32_t replica = 0;
  std::uint32_t replicas = 1;
  std::uint64_t size_bytes = 0;

  // How many of a box's rows lie before the share of replica `r`.
  [[nodiscard]] std::int64_t rows_before(std::uint32_t r, std::uint64_t box_begin, std::uint64_t box_bytes,
                                         std::int64_t rows) const {
    const auto cut = static_cast<std::uint64_t>(static_cast<unsigned __int128>(size_bytes) * r / replicas);
    if (cut <= box_begin) return 0;
    if (cut >= box_begin + box_bytes) return rows;
    const std::uint64_t row_bytes = box_bytes / static_cast<std::uint64_t>(rows);
    return static_cast<std::int64_t>((cut - box_begin + row_bytes / 2) / row_bytes);
  }
  [[nodiscard]] Rows share(std::uint64_t box_begin, std::uint64_t box_bytes, std::int64_t rows) const {
    return {rows_before(replica, box_begin, box_bytes, rows), rows_before(replica + 1, box_begin, box_bytes, rows)};
  }
};

class Sharing {
 public:
  explicit Sharing(std::span<const Tensor> tensors) : tensors_(tensors) {}

  std::vector<Cut> run() {
    put_in_order();
    lay_out();
    std::vector<Cut> cuts;
    cuts.reserve(places_.size());
    for (const Place& place : places_) {
      const Tensor& tensor = tensors_[place.stored];
      const std::size_t dimension = row_dimension(tensor);
      const std::int64_t rows = dimension < tensor.shape.size() ? tensor.shape[dimension] : 1;
      cuts.push_back({place.tensor, tensors_[place.tensor].data,
                      place.line->share(place.begin, *packed_bytes(tensor.dtype, tensor.shape), rows)});
    }
    std::ranges::sort(cuts, {}, &Cut::tensor);
    return cuts;
  }

 private:
  struct Place {
    std::uint32_t tensor = 0;
    std::uint32_t stored = 0;  // the tensor it is tied to, or itself
    const Line* line = nullptr;
    std::uint64_t begin = 0;  // in the line
  };

  // Sorts by the digest of the name. Any order works if it is the same on all ranks, and this one is ten times faster.
  void put_in_order() {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> keys;
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      if (!is_replica(tensors_[i]) || packed_bytes(tensors_[i].dtype, tensors_[i].shape) == 0) continue;
      keys.emplace_back(digest64(std::as_bytes(std::span(tensors_[i].name))), i);
    }
    std::ranges::sort(keys, [&](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first < b.first;
      const Tensor& left = tensors_[a.second];
      const Tensor& right = tensors_[b.second];
      return std::tie(left.name, left.shard->offset) < std::tie(right.name, right.shard->offset);
    });
    TiedTable seen(tensors_);
    places_.reserve(keys.size());
    for (const auto& [key, index] : keys) places_.push_back({index, seen.insert(index), nullptr, 0});
  }

  void lay_out() {
    std::vector<std::uint64_t> begins(tensors_.size());  // of those that are tied to none
    std::pair<const std::string_view, Line>* last = nullptr;
    for (Place& place : places_) {
      const Tensor& tensor = tensors_[place.tensor];
      const Shard& shard = *tensor.shard;
      if (last == nullptr || last->first != shard.replica_group) {
        last = &*lines_.try_emplace(shard.replica_group, Line{shard.replica, shard.replicas, 0}).first;
      }
      place.line = &last->second;
      if (place.stored == place.tensor) {
        begins[place.tensor] = last->second.size_bytes;
        last->second.size_bytes += *packed_bytes(tensor.dtype, tensor.shape);
      }
      place.begin = begins[place.stored];
    }
  }

  const std::span<const Tensor> tensors_;
  std::vector<Place> places_;  // of the replicas that are not empty, in order
  std::unordered_map<std::string_view, Line> lines_;
};

void narrow(Tensor& tensor, const Rows& rows) {
  const std::size_t dimension = row_dimension(tensor);
  if (dimension == tensor.shape.size()) return;  // one element: all or nothing
  std::int64_t stride = 1;
  if (tensor.strides.empty()) {
    for (std::size_t d = dimension + 1; d < tensor.shape.size(); ++d) stride *= tensor.shape[d];
  } else {
    stride = tensor.strides[dimension];
  }
  tensor.data = static_cast<const std::byte*>(tensor.data) +
                rows.begin * stride * static_cast<std::int64_t>(item_bytes(tensor.dtype));
  tensor.shape[dimension] = rows.end - rows.begin;
  tensor.shard->offset[dimension] += rows.begin;
}

}  // namespace

bool ReplicaShares::study(const State& state) {
  if (knows(state)) return false;
  Known found{.structure = state.structure, .tensor_count = state.tensors.size(), .list = 0, .cuts = {}};
  for (const Tensor& tensor : state.tensors) {
    if (is_replica(tensor)) found.list += digest64(std::as_bytes(std::span(tensor.name))) | 1;
  }
  if (found.list != 0) found.cuts = Sharing(state.tensors).run();
  known_ = std::move(found);
  return true;
}

// At other addresses other tensors may be tied.
bool ReplicaShares::knows(const State& state) const {
  if (!state.structure || state.structure != known_.structure || state.tensors.size() != known_.tensor_count)
    return false;
  return std::ranges::all_of(known_.cuts, [&](const Cut& cut) { return state.tensors[cut.tensor].data == cut.data; });
}

std::vector<Tensor> ReplicaShares::take(std::vector<Tensor> tensors) const {
  if (known_.cuts.empty()) return tensors;
  auto cut = known_.cuts.begin();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (cut != known_.cuts.end() && cut->tensor == i) {
      const Rows rows = (cut++)->rows;
      if (rows.begin == rows.end) continue;
      narrow(tensors[i], rows);
    }
    if (kept != i) tensors[kept] = std::move(tensors[i]);
    ++kept;
  }
  tensors.resize(kept);
  return tensors;
}

}  // namespace slackwater
