#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace slackwater::bench {

namespace {

constexpr double kConfidence = 0.90;

// How many samples may be cut off at either end: the largest k with P(fewer than k of n samples lie below the median)
// <= 5 %.
std::size_t cut_at_each_end(std::size_t count) {
  double below = 0;
  double log_choose = 0;  // ln of n over k
  for (std::size_t k = 0; k < count / 2; ++k) {
    below += std::exp(log_choose - static_cast<double>(count) * std::log(2.0));
    if (below > (1 - kConfidence) / 2) return k;
    log_choose += std::log(static_cast<double>(count - k)) - std::log(static_cast<double>(k + 1));
  }
  return count / 2;
}

}  // namespace

double quantile(std::vector<double> samples, double fraction) {
  std::ranges::sort(samples);
  const double position = fraction * static_cast<double>(samples.size() - 1);
  const auto lower = static_cast<std::size_t>(position);
  const std::size_t upper = std::min(lower + 1, samples.size() - 1);
  return std::lerp(samples[lower], samples[upper], position - static_cast<double>(lower));
}

double median(std::vector<double> samples) { return quantile(std::move(samples), 0.5); }

Interval median_interval(std::vector<double> samples) {
  std::ranges::sort(samples);
  const std::size_t cut = cut_at_each_end(samples.size());
  // With k samples cut, the interval reaches from the k-th smallest to the k-th largest, counted from one.
  const std::size_t index = cut == 0 ? 0 : cut - 1;
  return {.low = samples[index], .median = median(samples), .high = samples[samples.size() - 1 - index]};
}

}  // namespace slackwater::bench
