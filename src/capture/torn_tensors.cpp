#include "capture/torn_tensors.hpp"

#include <cstddef>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

namespace slackwater {
namespace {

// Finds the object that a tensor belongs to: the first of those whose name its own begins with, up to a dot.
class Objects {
 public:
  explicit Objects(const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < names.size(); ++i) order_.emplace(names[i], i);
  }

  [[nodiscard]] std::string_view of(std::string_view tensor) const {
    std::string_view found = tensor;
    std::size_t first = order_.size();
    for (std::size_t end = tensor.find('.');; end = tensor.find('.', end + 1)) {
      const std::string_view prefix = tensor.substr(0, end);
      if (const auto known = order_.find(prefix); known != order_.end() && known->second < first) {
        found = prefix;
        first = known->second;
      }
      if (end == std::string_view::npos) return found;
    }
  }

 private:
  std::unordered_map<std::string_view, std::size_t> order_;
};

}  // namespace

std::vector<bool> TornTensors::among(const State& state, const std::vector<bool>& is_volatile) const {
  std::lock_guard lock(mutex_);
  if (torn_.empty()) return {};
  const Objects objects(state.objects);
  std::vector<bool> result(state.tensors.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::string object(objects.of(state.tensors[i].name));
    result[i] = torn_.contains({object, false}) || (is_volatile[i] && torn_.contains({object, true}));
  }
  return result;
}

void TornTensors::note_state(const std::vector<std::string>& objects,
                             std::set<std::string, std::less<>> left_for_later) {
  std::lock_guard lock(mutex_);
  if (objects_ != objects) objects_ = objects;
  left_for_later_ = std::move(left_for_later);
}

void TornTensors::learn(const std::vector<std::string>& tensors) {
  std::lock_guard lock(mutex_);
  const Objects objects(objects_);
  std::map<Part, std::vector<std::string>> changed;
  for (const std::string& tensor : tensors)
    changed[{std::string(objects.of(tensor)), left_for_later_.contains(tensor)}].push_back(tensor);
  for (const auto& [part, names] : changed) {
    if (!torn_.insert(part).second) continue;
    const bool is_tensor = names.size() == 1 && names.front() == part.object;
    if (is_tensor || part.only_volatile) {
      news_.push_back(fmt::format("tensor '{}'{} changed before the fence: captured inside save() from now on",
                                  names.front(),
                                  names.size() == 1 ? "" : fmt::format(" and {} more", names.size() - 1)));
    } else {
      news_.push_back(fmt::format(
          "'{}' is updated between save() and the fence ({} of its tensors, such as '{}'), so all of it is captured "
          "inside save() from now on. To spare that copy, update it before save(), or call fence() first",
          part.object, names.size(), names.front()));
    }
  }
}

std::vector<std::string> TornTensors::take_news() {
  std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

}  // namespace slackwater
