// The warning before the disk is full.
#include "tiers/free_space_watch.hpp"
#include "unit/engine/faulty_engine_fixture.hpp"
#include "unit/engine/promotion_fixture.hpp"

namespace slackwater::test {
namespace {

using FreeSpaceTest = FaultyEngineTest;

TEST(FreeSpaceWatch, WarnsOnceForEachCheckpointLessThatFits) {
  FreeSpaceWatch watch(2, 2);  // four on the disk at most
  EXPECT_FALSE(watch.check(400, 100, 0));
  EXPECT_TRUE(watch.check(399, 100, 0));
  EXPECT_FALSE(watch.check(350, 100, 0)) << "three still fit";
  EXPECT_TRUE(watch.check(299, 100, 0));
  EXPECT_FALSE(watch.check(399, 100, 0)) << "better than what was told";
  EXPECT_FALSE(watch.check(400, 100, 0));
  EXPECT_TRUE(watch.check(399, 100, 0)) << "after a good time it is news again";
}

TEST(FreeSpaceWatch, CountsWhatIsThereAlready) {
  FreeSpaceWatch watch(2, 2);
  EXPECT_FALSE(watch.check(100, 100, 3));
  EXPECT_FALSE(watch.check(100, 100, 9)) << "the one to write needs room, no more";
  EXPECT_TRUE(watch.check(99, 100, 9));
  FreeSpaceWatch all(0, 2);  // keeps all: what is in flight must fit
  EXPECT_FALSE(all.check(200, 100, 0));
  const auto warning = all.check(1 << 20, 1 << 20, 0);
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("1 MiB free, and checkpoints of 1 MiB need 2 MiB more (keep=0, in_flight=2)"),
            std::string::npos)
      << *warning;
}

TEST(FreeSpaceWatch, AFillingDiskIsToldOnceAndAgainWhenNothingFits) {
  FreeSpaceWatch watch(10, 2);
  EXPECT_TRUE(watch.check(800, 100, 0)) << "four of twelve do not fit";
  for (std::uint64_t present = 1; present <= 7; ++present)
    EXPECT_FALSE(watch.check(800 - present * 100, 100, present)) << "still four";
  EXPECT_TRUE(watch.check(99, 100, 8)) << "not even the next one";
  EXPECT_FALSE(watch.check(99, 100, 8));
  EXPECT_TRUE(watch.check(0, 100, 7)) << "five: somebody else uses the disk too";
}

TEST(FreeSpaceWatch, CountsWhatWaitsForLowerTiersAndSaysSo) {
  FreeSpaceWatch watch(2, 2, 5);
  EXPECT_FALSE(watch.check(900, 100, 0));
  const auto possible = watch.check(500, 100, 0);
  ASSERT_TRUE(possible);
  EXPECT_NE(possible->find("may be full when a lower tier is slow or away: 500 B free"), std::string::npos)
      << *possible;
  EXPECT_NE(possible->find("and up to 5 that wait for lower tiers"), std::string::npos) << *possible;
  EXPECT_FALSE(watch.check(100, 100, 4)) << "nothing waits, and the next one fits";
  const auto certain = watch.check(0, 100, 5);
  ASSERT_TRUE(certain) << "one waits, and the next one does not fit";
  EXPECT_NE(certain->find("the disk will be full"), std::string::npos) << *certain;
  FreeSpaceWatch all(0, 2, 5);  // keeps all, so nothing more has to stay
  EXPECT_FALSE(all.check(200, 100, 0));
}

using TierSpaceTest = PromotionTest;

TEST_F(TierSpaceTest, ALowerDirectoryThatIsAlmostFullIsToldOnce) {
  Run run = start({.keep = 2});
  run.tier->set_free_bytes(4 * kMiB);
  Model model;
  model.add("w", 3 * kMiB);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    save_and_commit(*run, step, model);
    copied(run);
  }
  const std::string text = log();
  const std::size_t told = text.find("the disk will be full: 4 MiB free");
  ASSERT_NE(told, std::string::npos) << text;
  EXPECT_NE(text.find(lower(), told), std::string::npos) << text;
  EXPECT_EQ(text.find("the disk will be full", told + 1), std::string::npos) << "once: " << text;
  ASSERT_TRUE(run->close());
}

TEST_F(FreeSpaceTest, AnEngineWithALowerTierCountsWhatMayWaitForIt) {
  Model model;
  model.add("w", 3 * kMiB);
  Options with = options();
  with.tiers.push_back({.location = directory_.path() + "/lower", .backlog = 3});
  Engine engine = open_faulty(with);
  fs_->set_free_bytes(20 * kMiB);
  save_and_commit(engine, 1, model);
  EXPECT_NE(log().find("keep=2, in_flight=2, and up to 4 that wait for lower tiers"), std::string::npos) << log();
  ASSERT_TRUE(engine.close());
}

TEST_F(FreeSpaceTest, AnEngineWarnsBeforeTheDiskIsFullAndCommitsAllTheSame) {
  Model model;
  model.add("w", 3 * kMiB);
  Engine engine = open_faulty(options());
  fs_->set_free_bytes(5 * kMiB);
  save_and_commit(engine, 1, model);
  save_and_commit(engine, 2, model);
  const std::string first = log();
  const std::size_t told = first.find("the disk will be full: 5 MiB free");
  ASSERT_NE(told, std::string::npos) << first;
  EXPECT_EQ(first.find("the disk will be full", told + 1), std::string::npos) << "once: " << first;
  fs_->set_free_bytes(2 * kMiB);
  save_and_commit(engine, 3, model);
  EXPECT_NE(log().find("the disk will be full: 2 MiB free"), std::string::npos) << log();
  EXPECT_TRUE(engine.close());
}

}  // namespace
}  // namespace slackwater::test
