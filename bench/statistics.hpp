// Statistics of the benchmarks. Pure functions. An interval is made from order statistics, so it assumes nothing about
// how the noise of a shared disk is distributed.
#pragma once

#include <vector>

namespace slackwater::bench {

struct Interval {
  double low = 0;
  double median = 0;
  double high = 0;
};

// `fraction` from 0 to 1, linear between neighbours. Samples must not be empty.
[[nodiscard]] double quantile(std::vector<double> samples, double fraction);
[[nodiscard]] double median(std::vector<double> samples);

// Median and the narrowest pair of order statistics around it that holds the true median with at least 90 % probability
// (the whole range where there are too few samples for that).
[[nodiscard]] Interval median_interval(std::vector<double> samples);

}  // namespace slackwater::bench
