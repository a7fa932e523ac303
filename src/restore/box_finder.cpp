#include "restore/box_finder.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace slackwater {
namespace {

constexpr std::size_t kFewRegions = 4;
constexpr std::size_t kFewBoxes = 16;

}  // namespace

BoxFinder::BoxFinder(std::span<const StoredBox> boxes, std::size_t regions) : boxes_(boxes) {
  if (regions <= kFewRegions || boxes.size() <= kFewBoxes || boxes.front().shape.empty()) return;
  std::size_t most = 0;
  std::vector<std::int64_t> places(boxes.size());
  for (std::size_t d = 0; d < boxes.front().shape.size(); ++d) {
    std::ranges::transform(boxes, places.begin(), [&](const StoredBox& box) { return box.offset[d]; });
    std::ranges::sort(places);
    std::size_t distinct = 1;
    for (std::size_t i = 1; i < places.size(); ++i) distinct += places[i] != places[i - 1] ? 1 : 0;
    if (distinct <= most) continue;
    most = distinct;
    dimension_ = d;
  }
  order_.resize(boxes.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::ranges::sort(order_, {}, [this](std::uint32_t box) { return begin(box); });
  reach_.reserve(boxes.size());
  std::int64_t reach = std::numeric_limits<std::int64_t>::min();
  for (const std::uint32_t box : order_) reach_.push_back(reach = std::max(reach, end(box)));
}

void BoxFinder::find(BoxView region, const std::function<void(const StoredBox&, const Box&)>& found) const {
  const auto check = [&](const StoredBox& box) {
    if (const std::optional<Box> common = intersect({box.offset, box.shape}, region)) found(box, *common);
  };
  if (order_.empty()) {
    std::ranges::for_each(boxes_, check);
    return;
  }
  // Boxes before `first` end before the region; boxes from `last` on begin behind it.
  const std::int64_t region_begin = region.offset[dimension_];
  const auto first = std::ranges::upper_bound(reach_, region_begin) - reach_.begin();
  const auto last = std::ranges::lower_bound(order_, region_begin + region.shape[dimension_], {},
                                             [this](std::uint32_t box) { return begin(box); }) -
                    order_.begin();
  for (auto i = first; i < last; ++i) check(boxes_[order_[static_cast<std::size_t>(i)]]);
}

}  // namespace slackwater
