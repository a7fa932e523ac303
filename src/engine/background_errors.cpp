#include "engine/background_errors.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace slackwater {
namespace {

constexpr std::size_t kNamedSteps = 32;  // in one message; the log names them all

}  // namespace

std::string named_steps(const std::vector<std::uint64_t>& steps, std::uint64_t more) {
  std::string text = fmt::format("{} {}", steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", "));
  if (more > 0) text += fmt::format(" and {} more (see the log)", more);
  return text;
}

void BackgroundErrors::add(const Error& error, std::optional<std::uint64_t> step) {
  if (!first_) {
    first_ = error;
    step_ = step;
  } else if (!step || step_ == step || std::ranges::find(later_, *step) != later_.end()) {
    return;
  } else if (later_.size() < kNamedSteps) {
    later_.push_back(*step);
  } else {
    ++more_;
  }
}

Error BackgroundErrors::in_words() const {
  Error error = *first_;
  if (!later_.empty()) error.message += fmt::format("; not checkpointed either: {}", named_steps(later_, more_));
  return error;
}

}  // namespace slackwater
