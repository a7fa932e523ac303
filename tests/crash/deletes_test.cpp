// delete() with a lower tier that is out of reach, and a power cut behind each of its operations on tier 0.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <set>
#include <utility>

#include "support/power_cut_file_system.hpp"
#include "unit/engine/deletes_fixture.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

using DeletesPowerCutTest = DeletesTest;

// Behind every operation of delete(): the step is live on both tiers, or no restore uses it and the next run deletes it
// on the lower tier. Once delete() has returned, only the second is left.
TEST_F(DeletesPowerCutTest, APowerCutLeavesTheStepLiveEverywhereOrDeletesItEverywhere) {
  PowerCutJournal journal(upper());
  journal.adopt_existing();
  Options with = options();
  with.keep = 0;
  with.tiers = {kept_};
  with.tiers[0].location = lower();
  std::size_t first = 0;
  std::size_t done = 0;
  {
    EngineDependencies parts{.fs = std::make_unique<PowerCutFileSystem>(*real_, journal, DiskLies{}), .clock = nullptr};
    auto engine = open_engine(with, std::move(parts));
    ASSERT_TRUE(engine) << engine.error().to_string();
    first = journal.size();
    ASSERT_TRUE(engine->remove(3));
    done = journal.size();
    static_cast<void>(engine->close(std::chrono::milliseconds(1)));
  }
  ASSERT_GT(done, first);
  CutDisk disk(journal);
  std::mt19937_64 random(1);
  std::set<std::pair<std::uint64_t, bool>> seen;
  std::size_t alive = 0;
  std::size_t deleted = 0;
  for (std::size_t cut = 0; cut <= done; ++cut) {
    if (cut > 0) disk.advance();
    if (cut < first) continue;
    for (const DiskImage& image : disk.images(16, 4, random)) {
      if (!seen.emplace(image.digest(), cut == done).second) continue;
      stdfs::remove_all(upper());
      stdfs::remove_all(lower());
      stdfs::create_directory(upper());
      image.write_to(upper());
      stdfs::copy(spare(), lower(), stdfs::copy_options::recursive);
      std::uint64_t restored = 0;
      {
        Run run = start(kept_, 0, 1, 0);
        Reader reader;
        restored = restore(*run, reader);
        save_and_commit(*run, restored + 1, model_);
        copied(run);
        EXPECT_TRUE(run->close());
      }
      EXPECT_TRUE(restored == 3 || restored == 2) << restored;
      EXPECT_FALSE(cut == done && restored == 3) << "delete() had returned";
      EXPECT_EQ(stdfs::exists(on(lower(), 3)), restored == 3) << "cut " << cut - first << " of " << done - first;
      EXPECT_EQ(live(upper()), restored == 3 ? "1 2 3 4" : "1 2 3");
      EXPECT_EQ(live(lower()), restored == 3 ? "1 2 3 4" : "1 2 3");
      EXPECT_TRUE(notes().empty()) << "cut " << cut - first << " of " << done - first;
      ++(restored == 3 ? alive : deleted);
    }
  }
  EXPECT_GT(alive, 0u);
  EXPECT_GT(deleted, 0u);
}

}  // namespace
}  // namespace slackwater::test
