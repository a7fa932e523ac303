#include "tiers/tier_probes.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "os/retry.hpp"
#include "store/s3/locations.hpp"

namespace slackwater {

Status probe_tier(const TierPlace& tier) {
  if (is_object_location(tier.root)) {
    // It tries again by itself.
    const auto entries = tier.fs->list(tier.root);
    return entries || entries.error().kind == ErrorKind::kNotFound ? Status() : fail(entries.error());
  }
  const auto entries = retry_read([&] { return tier.fs->list(tier.root); });
  if (entries) return {};
  if (entries.error().kind != ErrorKind::kNotFound) return fail(entries.error());
  const auto slash = tier.root.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : tier.root.substr(0, std::max<std::size_t>(slash, 1));
  const auto found = retry_read([&] { return tier.fs->status(parent + "/."); });
  if (found) return {};
  return fail(found.error().kind == ErrorKind::kNotFound ? entries.error() : found.error());
}

void TierProbes::begin(const TierPlace& tier, const std::function<Status(const TierPlace&)>& question) {
  Probe& probe = probes_[tier.root];
  if (probe.thread.joinable()) {
    if (!probe.answer) return;  // of an earlier restore, and still under way
    probe.thread.join();        // it has answered, so it ends now
  }
  probe.answer.reset();
  try {
    probe.thread = start_thread("sw-probe", [this, tier, question](const std::stop_token&) {
      Status answer;
      try {
        answer = question(tier);
      } catch (const std::exception& trouble) {
        answer = fail(ErrorKind::kOutOfMemory, trouble.what(), tier.root);
      }
      const std::lock_guard lock(mutex_);
      probes_[tier.root].answer = std::move(answer);
      changed_.notify_all();
    });
  } catch (const std::system_error&) {
    probe.answer = question(tier);  // one after the other then
  }
}

// Once stopped, no probe is added: stop() goes through them without the lock.
const std::optional<Status>& TierProbes::answer_of(const TierPlace& tier) const {
  static const std::optional<Status> kNone;
  const auto found = probes_.find(tier.root);
  return found == probes_.end() ? kNone : found->second.answer;
}

TierProbes::Answers TierProbes::ask(const std::vector<TierPlace>& tiers,
                                    std::optional<std::chrono::milliseconds> timeout,
                                    const std::function<Status(const TierPlace&)>& question) {
  Answers answers;
  std::unique_lock lock(mutex_);
  for (const TierPlace& tier : tiers) {
    if (!stopped_) begin(tier, question);
  }
  const auto all = [&] {
    return stopped_ || std::ranges::all_of(tiers, [&](const TierPlace& tier) { return answer_of(tier).has_value(); });
  };
  if (timeout) {
    changed_.wait_for(lock, *timeout, all);
  } else {
    changed_.wait(lock, all);
  }
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const std::optional<Status>& answer = answer_of(tiers[i]);
    if (answer && *answer) continue;
    answers.late |= !answer;
    answers.unreachable.emplace(
        i, answer ? answer->error()
                  : Error{.kind = ErrorKind::kIo,
                          .message = fmt::format("it did not answer within {} ms", timeout ? timeout->count() : 0),
                          .path = tiers[i].root,
                          .retryable = true});
  }
  return answers;
}

bool TierProbes::request_stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
  return std::ranges::all_of(
      probes_, [](const auto& probe) { return probe.second.answer.has_value() || !probe.second.thread.joinable(); });
}

void TierProbes::stop() {
  static_cast<void>(request_stop());
  // No thread is added any more. Without the lock: a probe takes it to give its answer.
  for (auto& [root, probe] : probes_)
    if (probe.thread.joinable()) probe.thread.join();
}

}  // namespace slackwater
