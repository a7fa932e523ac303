#include "stage/huge_page_policy.hpp"

#include <algorithm>

namespace slackwater {
namespace {

// Huge pages that reach 1/8 GB/s per thread are not questioned. A virtual machine that uses memory for the first time
// is about that slow, whatever the size of the pages. Plain pages only look faster there, because a few that were used
// before are still free.
constexpr double kSlow = 8.0;  // nanoseconds per byte
// Touching happens once. Each checkpoint is written from these pages and restored through them, and O_DIRECT with huge
// pages is up to twice as fast (docs/decisions/0013-first-fence.md). So only a large loss is worth giving them up.
constexpr double kMuchLonger = 4.0;
// A single slab may be slow because the thread was not running. So two slabs on each side are needed, and the better
// one counts.
constexpr std::uint32_t kTrials = 2;
constexpr std::uint32_t kRarer = 8;  // after huge pages have won, plain ones are tried less and less often

}  // namespace

bool HugePagePolicy::next() {
  if (given_up_) return false;
  if (trials_ == 0) return true;
  --trials_;
  return false;
}

void HugePagePolicy::record(bool huge, std::uint64_t size_bytes, std::chrono::nanoseconds took) {
  if (given_up_ || size_bytes == 0) return;
  const double per_byte = static_cast<double>(took.count()) / static_cast<double>(size_bytes);
  if (!huge) {
    if (results_ == 0) return;
    plain_ = plain_ == 0 ? per_byte : std::min(plain_, per_byte);
    if (--results_ == 0) compare();
    return;
  }
  huge_ = last_huge_ == 0 ? per_byte : std::min(last_huge_, per_byte);
  last_huge_ = per_byte;
  if (results_ > 0) return;  // a trial is under way
  slow_ = per_byte > kSlow ? slow_ + 1 : 0;
  if (slow_ < slow_to_try_) return;
  trials_ = results_ = kTrials;
  plain_ = 0;
}

void HugePagePolicy::compare() {
  if (huge_ > kMuchLonger * plain_) {
    given_up_ = true;
    return;
  }
  slow_ = 0;
  slow_to_try_ *= kRarer;
}

}  // namespace slackwater
