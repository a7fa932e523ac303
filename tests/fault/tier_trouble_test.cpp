// A lower tier in trouble while training goes on: it is full, fails, hangs, or refuses to delete. Every save() returns,
// every step is committed on tier 0, and once the tier works again the due versions are on it, whole.
#include <functional>

#include "unit/engine/promotion_fixture.hpp"

namespace slackwater::test {
namespace {

struct TierTrouble {
  const char* what;
  std::function<void(FaultFileSystem&)> begin;
  bool stops_copies = true;
};

class TierInTrouble : public PromotionTest, public ::testing::WithParamInterface<TierTrouble> {};

TEST_P(TierInTrouble, TrainingAndTierZeroGoOnAndTheTierCatchesUp) {
  Model model;
  model.add("w", 3 * kMiB + 5);
  Run run = start({.every = 2, .keep = 2, .backlog = 2});
  save_and_commit(*run, 1, model);
  save_and_commit(*run, 2, model);
  copied(run);
  ASSERT_EQ(live(lower()), "2");

  GetParam().begin(*run.tier);
  for (std::uint64_t step = 3; step <= 12; ++step) {
    auto saved = run->save(step, model.state());
    ASSERT_TRUE(saved) << "trouble of a tier reached the trainer: " << saved.error().to_string();
    ASSERT_TRUE(run->fence());
    const Status committed = (*saved)->wait(Level::kCommitted);
    ASSERT_TRUE(committed) << "trouble of a tier reached tier 0: " << committed.error().to_string();
    model.update();
  }
  EXPECT_FALSE(run->background_error()) << "an error of a tier is in its status";
  const TierStatus during = run->tiers()[0];
  if (GetParam().stops_copies) {
    EXPECT_LE(during.waiting.size(), 3u) << "the backlog is bounded";
    EXPECT_EQ(live(lower()), "2") << "nothing is half visible";
  } else {
    until([&] { return run->tiers()[0].newest_step == 12u; });
  }

  run.tier->clear_faults();
  run.tier->release_hung();
  copied(run);
  const Status closed = run->close();
  EXPECT_TRUE(closed) << closed.error().to_string();
  EXPECT_EQ(live(upper()), "11 12");
  const std::string below = live(lower());
  EXPECT_TRUE(below.ends_with("12")) << below;
  EXPECT_EQ(below.find("damaged"), std::string::npos) << below;
  EXPECT_EQ(debris(lower()), "");
}

FaultWhen always(std::string path) { return {.times = kAlways, .path = std::move(path)}; }

INSTANTIATE_TEST_SUITE_P(
    Tiers, TierInTrouble,
    ::testing::Values(
        TierTrouble{"Full", [](FaultFileSystem& tier) { tier.fail(FsCall::kAllocate, ENOSPC, always("lower")); }},
        TierTrouble{"FailingWrites", [](FaultFileSystem& tier) { tier.fail(FsCall::kWriteAt, EIO, always("lower")); }},
        TierTrouble{"FailingSyncs", [](FaultFileSystem& tier) { tier.fail(FsCall::kSyncData, EIO, always("lower")); }},
        TierTrouble{"GoneAltogether",
                    [](FaultFileSystem& tier) {
                      for (const FsCall call : {FsCall::kOpen, FsCall::kList, FsCall::kStatus, FsCall::kMakeDirectory})
                        tier.fail(call, EIO, always("lower"));
                    }},
        TierTrouble{"HangingWrites", [](FaultFileSystem& tier) { tier.hang(FsCall::kWriteAt, always("lower")); }},
        TierTrouble{"HangingLists", [](FaultFileSystem& tier) { tier.hang(FsCall::kList, always("lower")); }},
        TierTrouble{"RefusingDeletes",
                    [](FaultFileSystem& tier) { tier.fail(FsCall::kUnlink, EACCES, always("lower/step-")); }, false},
        TierTrouble{"HangingDeletes",
                    [](FaultFileSystem& tier) { tier.hang(FsCall::kUnlink, {.path = "/manifest.json"}); }, false}),
    [](const auto& trouble) { return trouble.param.what; });

}  // namespace
}  // namespace slackwater::test
