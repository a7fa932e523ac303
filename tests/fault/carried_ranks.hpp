// The four ranks of ranks_fixture.hpp, with their messages carried by the directory or by a store, and what a test can
// see of them: messages of any kind, and how their calls ended.
#pragma once

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "fault/ranks_fixture.hpp"
#include "support/memory_store.hpp"

namespace slackwater::test {

enum class Carrier : std::uint8_t { kDirectory, kStore };
inline constexpr Carrier kCarriers[] = {Carrier::kDirectory, Carrier::kStore};
[[nodiscard]] inline const char* to_string(Carrier carrier) {
  return carrier == Carrier::kStore ? "store" : "directory";
}

class CarriedRanks {
 public:
  CarriedRanks(
      const std::string& path, Carrier carrier, const std::function<void(Options&)>& change = [](Options&) {})
      : path_(path) {
    if (carrier == Carrier::kStore) store_ = std::make_shared<MemoryStore>();
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      Options options = rank_options(path, rank);
      options.store = store_;
      change(options);
      ranks_.push_back(std::make_unique<Rank>(std::move(options), clock, 1));
    }
  }

  Rank& operator[](std::uint32_t rank) { return *ranks_[rank]; }

  [[nodiscard]] std::vector<Snapshot> save_all(std::uint64_t step) {
    std::vector<Snapshot> snapshots;
    for (const auto& rank : ranks_) snapshots.push_back(rank->save(step));
    return snapshots;
  }
  // All ranks commit this step, and no time passes.
  void commit_all(std::uint64_t step) {
    for (Snapshot& snapshot : save_all(step)) {
      const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
      ASSERT_TRUE(status) << "step " << step << ": " << status.error().to_string();
    }
  }

  using Outcome = Result<std::optional<Restored>>;
  // Calls restore() on each of these ranks at once. If time passes, it does so only after this many of the calls have
  // ended, so that a busy machine is not taken for a late rank.
  [[nodiscard]] std::vector<Outcome> restore(const std::vector<std::uint32_t>& ranks, bool time_passes,
                                             const std::function<Engine::Plan(std::uint32_t)>& plan_of = {},
                                             std::size_t ended_before = 0) {
    std::vector<Outcome> outcomes(ranks.size(), std::optional<Restored>());
    // Rank 0 restores after its deletes have ended, and no time of this test may pass until then. There is no such
    // step, but a delete waits for those under way.
    if (time_passes) static_cast<void>(ranks_[0]->engine->remove(999'999));
    std::atomic<std::size_t> ended{0};
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        Rank& rank = *ranks_[ranks[i]];
        outcomes[i] = rank.engine->restore({}, plan_of ? plan_of(ranks[i]) : rank.state.plan());
        ++ended;
      });
    }
    until([&] {
      if (time_passes && ended >= ended_before) {
        std::this_thread::sleep_for(std::chrono::milliseconds(kSanitized ? 30 : 10));
        move(clock, 0.05);
      }
      return ended == ranks.size();
    });
    return outcomes;
  }
  // All ranks restore this step together, each with its own bytes, and no time passes.
  void restore_all(std::uint64_t step) {
    const std::vector<Outcome> outcomes = restore({0, 1, 2, 3}, false);
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      ASSERT_TRUE(outcomes[rank]) << "rank " << rank << ": " << outcomes[rank].error().to_string();
      ASSERT_TRUE(*outcomes[rank]) << "rank " << rank << " found nothing";
      EXPECT_EQ((*outcomes[rank])->version.step, step);
      EXPECT_EQ(ranks_[rank]->state.number(), ranks_[rank]->content_of(step));
      EXPECT_EQ(ranks_[rank]->state.difference(), std::nullopt);
    }
  }

  static void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kRealTimeLimit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "it hangs";
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Names of messages in the channels whose names begin so: "restore-verdicts-1-g0000/1.1.3".
  [[nodiscard]] std::vector<std::string> messages(const std::string& channel) const {
    std::vector<std::string> names;
    const auto add = [&](const std::string& path) {
      const auto at = path.find("/" + channel);
      if (at != std::string::npos && !path.ends_with(".tmp") && path.find("/last/") == std::string::npos)
        names.push_back(path.substr(at + 1));
    };
    if (store_) {
      for (const auto& [key, value] : store_->values()) add(key);
      return names;
    }
    std::error_code gone;
    for (const auto& session : std::filesystem::directory_iterator(path_ + "/.slackwater", gone)) {
      if (!session.is_directory(gone)) continue;
      for (const auto& each : std::filesystem::recursive_directory_iterator(session.path(), gone)) {
        if (each.is_regular_file(gone)) add(each.path());
      }
    }
    return names;
  }
  // The number of the newest heartbeat of this rank that is still there; 0: none.
  [[nodiscard]] std::uint64_t heartbeat_of(std::uint32_t rank) const {
    std::uint64_t newest = 0;
    for (const std::string& name : messages(fmt::format("save-heartbeats-r{:05}/", rank))) {
      const std::string_view rest = std::string_view(name).substr(name.find('.') + 1);
      std::uint64_t number = 0;
      std::from_chars(rest.data(), rest.data() + rest.size(), number);
      newest = std::max(newest, number);
    }
    return newest;
  }

  std::atomic<std::int64_t> clock{0};

 private:
  const std::string path_;
  std::shared_ptr<MemoryStore> store_;        // null: messages go through the directory
  std::vector<std::unique_ptr<Rank>> ranks_;  // ended before the clock
};

}  // namespace slackwater::test
