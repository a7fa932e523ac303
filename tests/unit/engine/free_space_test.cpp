// The warning before the disk is full.
#include "engine/free_space_watch.hpp"
#include "unit/engine/faulty_engine_fixture.hpp"

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
