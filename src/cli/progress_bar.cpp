#include "cli/progress_bar.hpp"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/text.hpp"

namespace slackwater::cli {
namespace {

constexpr std::chrono::milliseconds kRedrawPause{100};

}  // namespace

ProgressBar::ProgressBar(std::string what) : what_(std::move(what)), shown_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::update(const std::string& what, std::uint64_t done, std::uint64_t total) {
  if (what != what_) {
    what_ = what;
    started_ = std::chrono::steady_clock::now();
  }
  update(done, total);
}

void ProgressBar::update(std::uint64_t done, std::uint64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || total == 0 || (done < total && now - drawn_ < kRedrawPause)) return;
  drawn_ = now;
  constexpr std::size_t kWidth = 30;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const auto filled = static_cast<std::size_t>(share * kWidth);
  const double seconds = std::chrono::duration<double>(now - started_).count();
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f} % of {}, {}", what_, std::string(filled, '#'),
             std::string(kWidth - filled, '.'), share * 100, format_bytes(total), rate_text(done, seconds));
  std::fflush(stderr);
}

}  // namespace slackwater::cli
