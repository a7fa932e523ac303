#include "cli/progress_bar.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/text.hpp"

namespace slackwater::cli {

ProgressBar::ProgressBar(std::string what) : what_(std::move(what)), shown_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::update(std::uint64_t done_bytes, std::uint64_t total_bytes) {
  if (!shown_ || total_bytes == 0) return;
  constexpr std::chrono::milliseconds kPause{100};
  constexpr std::size_t kWidth = 30;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < kPause && done_bytes < total_bytes) return;
  drawn_ = now;
  const double share = std::min(1.0, static_cast<double>(done_bytes) / static_cast<double>(total_bytes));
  const auto filled = static_cast<std::size_t>(share * kWidth);
  const double seconds = std::chrono::duration<double>(now - started_).count();
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f} % of {}, {}", what_, std::string(filled, '#'),
             std::string(kWidth - filled, '.'), share * 100, format_bytes(total_bytes), rate_text(done_bytes, seconds));
  std::fflush(stderr);
}

}  // namespace slackwater::cli
