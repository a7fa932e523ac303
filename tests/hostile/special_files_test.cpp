// Links, pipes, sockets, devices and directories in place of every file of a directory: nothing waits for them, nothing
// is read or written through them, and the checkpoint before is used.
#include "hostile_fixture.hpp"

namespace slackwater {
namespace {

using test::HostileTest;
using test::kAllPlanted;
using test::Planted;
using testing::HasSubstr;

class SpecialFilesTest : public HostileTest {
 protected:
  // What is in a directory, by name and size: to see that nothing was made or changed there.
  static std::string listing(const std::string& directory) {
    std::vector<std::string> lines;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      lines.push_back(
          fmt::format("{} {}", entry.path().filename().string(), entry.is_regular_file() ? entry.file_size() : 0));
    std::ranges::sort(lines);
    return fmt::format("{}", fmt::join(lines, "\n"));
  }
};

TEST_F(SpecialFilesTest, InPlaceOfAFileOfAVersionAreRefusedAndTheStepBeforeIsUsed) {
  for (const char* name : {kManifestName, kRecord, kData}) {
    for (const Planted kind : kAllPlanted) {
      if (plant(kind, in_version(name))) {
        SCOPED_TRACE(fmt::format("{} {}", name, static_cast<int>(kind)));
        const Status read = read_step(2);
        ASSERT_FALSE(read);
        EXPECT_EQ(read.error().kind == ErrorKind::kCorrupt || kind == Planted::kDirectory, true)
            << read.error().to_string();
        EXPECT_THAT(read.error().to_string(), HasSubstr(name));
        const auto restored = restore_newest();
        ASSERT_TRUE(restored) << restored.error().to_string();
        EXPECT_EQ(*restored, 1u);
        const Outcome verified = command("verify " + root());
        EXPECT_TRUE(name == std::string(kManifestName) || verified.code == 1) << verified.err;
      }
      take_away(in_version(name));
    }
  }
  EXPECT_TRUE(read_step(2));
}

TEST_F(SpecialFilesTest, InPlaceOfTheIndexAreDamageForVerifyAndNoHindranceForRestore) {
  for (const Planted kind : kAllPlanted) {
    if (plant(kind, in_version(kIndexName))) {
      EXPECT_EQ(*restore_newest(), 2u);
      const Outcome verified = command("verify " + root());
      EXPECT_EQ(verified.code, 1);
      EXPECT_THAT(verified.out + verified.err, HasSubstr("index"));
    }
    take_away(in_version(kIndexName));
  }
}

TEST_F(SpecialFilesTest, InPlaceOfTheAttemptAreNamedAndItsCheckpointsStayReadable) {
  for (const Planted kind : kAllPlanted) {
    if (plant(kind, control(attempt_file(1)))) {
      EXPECT_TRUE(read_step());
      EXPECT_EQ(*restore_newest(), 2u);
      EXPECT_THAT(command("ls " + root()).err, HasSubstr("attempt 1 cannot be read"));
    }
    take_away(control(attempt_file(1)));
  }
}

TEST_F(SpecialFilesTest, InPlaceOfTheLockAreRefusedByWritersAndNoHindranceForReaders) {
  for (const Planted kind : kAllPlanted) {
    if (plant(kind, control(kLockName))) {
      const auto engine = Engine::open(options());
      ASSERT_FALSE(engine);
      EXPECT_THAT(engine.error().to_string(), HasSubstr("lock"));
      EXPECT_TRUE(read_step());
    }
    take_away(control(kLockName));
  }
  EXPECT_EQ(*restore_newest(), 2u);
}

TEST_F(SpecialFilesTest, ALockThatIsAHardLinkDoesNotEmptyTheFileOutside) {
  const std::string outside = directory_ / "thesis.txt";
  test::write_file_text(outside, "years of work");
  std::filesystem::remove(control(kLockName));
  std::filesystem::create_hard_link(outside, control(kLockName));
  const auto engine = Engine::open(options());
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().kind, ErrorKind::kCorrupt);
  EXPECT_THAT(engine.error().message, HasSubstr("remove it"));
  EXPECT_EQ(test::read_file_text(outside), "years of work");
}

TEST_F(SpecialFilesTest, AControlDirectoryThatIsALinkLeadsNobodyOut) {
  const std::string elsewhere = directory_ / "elsewhere";
  std::filesystem::rename(root() + "/.slackwater", elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, root() + "/.slackwater");
  const std::string before = listing(elsewhere);
  const auto engine = Engine::open(options());
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().kind, ErrorKind::kCorrupt);
  EXPECT_THAT(engine.error().to_string(), HasSubstr(".slackwater"));
  EXPECT_EQ(read_step().error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(command("ls " + root()).code, 2);
  EXPECT_EQ(listing(elsewhere), before);
}

TEST_F(SpecialFilesTest, AVersionThatIsALinkIsLeftAlone) {
  const std::string elsewhere = directory_ / "elsewhere";
  std::filesystem::rename(version(2), elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, version(2));
  const std::string before = listing(elsewhere);
  EXPECT_EQ(*restore_newest(), 1u);
  EXPECT_THAT(command("ls " + root()).err, HasSubstr("left alone"));
  Engine engine = open(options());
  test::Reader reader;
  restore(engine, reader);
  for (const std::uint64_t step : {3, 4, 5}) save_and_commit(engine, step, model_);  // retention comes by
  EXPECT_EQ(listing(elsewhere), before);
}

TEST_F(SpecialFilesTest, HardLinksLoadAsTheFilesTheyAreAndDeletingThemTakesOnlyTheName) {
  for (const char* name : {kManifestName, kRecord, kData, kIndexName})
    std::filesystem::create_hard_link(in_version(name), directory_ / name);
  Engine engine = open(options());
  test::Reader reader;
  EXPECT_EQ(restore(engine, reader), 2u);
  const std::string data = test::read_file_text(directory_ / kData);
  for (const std::uint64_t step : {3, 4, 5}) save_and_commit(engine, step, model_);
  ASSERT_TRUE(engine.close({}));  // old versions are removed on a thread of their own
  EXPECT_FALSE(std::filesystem::exists(version(2)));
  EXPECT_TRUE(test::read_file_text(directory_ / kData) == data);
}

TEST_F(SpecialFilesTest, NamesOnTheWayOfTheNextSaveAreNotWrittenThrough) {
  const std::string outside = directory_ / "outside";
  test::write_file_text(outside, "mine");
  // The next start claims attempt 2 and saves step 3 under it.
  std::filesystem::create_symlink(outside, control(attempt_file(2)));
  std::filesystem::create_directory(root() + "/" + version_directory({3, 3}));
  std::filesystem::create_symlink(outside, root() + "/" + version_directory({3, 3}) + "/" + kData);
  Engine engine = open(options());
  test::Reader reader;
  restore(engine, reader);
  save_and_commit(engine, 3, model_);
  EXPECT_EQ(test::read_file_text(outside), "mine");
  EXPECT_EQ(steps(engine).back(), 3u);
}

}  // namespace
}  // namespace slackwater
