#include "engine/share_replicas.hpp"

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

struct Rows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The dimension a tensor is cut in.
std::size_t row_dimension(const Tensor& tensor) {
  const auto found = std::ranges::find_if(tensor.shape, [](std::int64_t extent) { return extent > 1; });
  return static_cast<std::size_t>(found - tensor.shape.begin());
}

// The bytes of a replica group, one box behind the other.
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
  explicit Sharing(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}

  std::vector<Tensor> run() {
    put_in_order();
    lay_out();
    for (const Place& place : places_) {
      const Tensor& tensor = tensors_[place.stored];
      const std::size_t dimension = row_dimension(tensor);
      const std::int64_t rows = dimension < tensor.shape.size() ? tensor.shape[dimension] : 1;
      shares_.push_back(place.line->share(place.begin, *packed_bytes(tensor.dtype, tensor.shape), rows));
    }
    return take();
  }

 private:
  struct Place {
    std::uint32_t tensor = 0;
    std::uint32_t stored = 0;  // the tensor it is tied to, or itself
    const Line* line = nullptr;
    std::uint64_t begin = 0;  // in the line
  };

  // By the digest of the name: any order will do that is the same on all ranks, and this one is found ten times faster.
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

  std::vector<Tensor> take() {
    std::vector<bool> dropped(tensors_.size());
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const std::uint32_t index = places_[i].tensor;
      dropped[index] = shares_[i].begin == shares_[i].end;
      if (!dropped[index]) narrow(tensors_[index], shares_[i]);
    }
    std::vector<Tensor> own;
    own.reserve(tensors_.size() - static_cast<std::size_t>(std::ranges::count(dropped, true)));
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!dropped[i]) own.push_back(std::move(tensors_[i]));
    }
    return own;
  }

  static void narrow(Tensor& tensor, const Rows& rows) {
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

  std::vector<Tensor> tensors_;
  std::vector<Place> places_;  // of the replicas that are not empty, in order
  std::unordered_map<std::string_view, Line> lines_;
  std::vector<Rows> shares_;  // by place
};

}  // namespace

std::vector<Tensor> share_replicas(std::vector<Tensor> tensors) {
  if (std::ranges::none_of(tensors, is_replica)) return tensors;
  return Sharing(std::move(tensors)).run();
}

}  // namespace slackwater
