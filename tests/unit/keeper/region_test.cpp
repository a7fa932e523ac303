#include "keeper/region.hpp"

#include <sys/mman.h>

#include <gtest/gtest.h>

#include "unit/keeper/staged.hpp"

namespace slackwater::test {
namespace {

TEST(Region, AReaderSeesAVersionOnlyOnceItIsPublished) {
  SharedRegion shared;
  const auto entry = shared.trainer.begin({7, 1});
  ASSERT_TRUE(entry.has_value());
  EXPECT_TRUE(shared.reader.kept().empty());
  ASSERT_TRUE(shared.trainer.publish(*entry, stage(shared.trainer, {7, 1}), "me").has_value());
  const auto kept = shared.reader.kept();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].version.name, (VersionName{7, 1}));
  EXPECT_EQ(kept[0].state, KeptState::kStaged);
  EXPECT_EQ(kept[0].members[0], "me");
  EXPECT_EQ(kept[0].version.files[0].slabs, (std::vector<std::uint32_t>{2, 0}));
  shared.trainer.drop(*entry);
  EXPECT_TRUE(shared.reader.kept().empty());
}

TEST(Region, TheNextOwnerOwnsTheVersionBesideTheLast) {
  SharedRegion shared;
  const auto entry = shared.trainer.begin({7, 1});
  ASSERT_TRUE(shared.trainer.publish(*entry, stage(shared.trainer, {7, 1}), "first").has_value());
  shared.trainer.set_next_owner(*entry, "first", "second");
  EXPECT_EQ(shared.reader.kept()[0].members, (std::array<std::string, 2>{"first", "second"}));
  shared.trainer.set_next_owner(*entry, "second", "third");  // the second claimed its attempt, and died
  EXPECT_EQ(shared.reader.kept()[0].members, (std::array<std::string, 2>{"second", "third"}));
}

TEST(Region, EntriesAreBounded) {
  SharedRegion shared;
  for (std::uint32_t i = 0; i < Region::kEntries; ++i) EXPECT_TRUE(shared.trainer.begin({i, 1}).has_value());
  EXPECT_FALSE(shared.trainer.begin({9, 1}).has_value());
}

TEST(Region, ATextThatWasChangedIsNotBelieved) {
  SharedRegion shared;
  const auto entry = shared.trainer.begin({7, 1});
  ASSERT_TRUE(shared.trainer.publish(*entry, stage(shared.trainer, {7, 1}), "me").has_value());
  shared.trainer.memory()->bytes()[2u << 20] ^= std::byte{1};  // the text of entry 0
  EXPECT_TRUE(shared.reader.kept().empty());
}

TEST(Region, HostileTextsAreRefused) {
  SharedRegion shared;
  const StagedVersion good = stage(shared.trainer, {7, 1});
  const std::string text = serialize(good);
  ASSERT_TRUE(parse_staged_version(text, 1u << 20, 4).has_value());
  for (std::size_t size = 0; size < text.size(); size += 7)
    EXPECT_FALSE(parse_staged_version(text.substr(0, size), 1u << 20, 4).has_value()) << size;
  StagedVersion twice = good;
  twice.files[0].slabs = {2, 2};
  EXPECT_FALSE(parse_staged_version(serialize(twice), 1u << 20, 4).has_value());
  StagedVersion outside = good;
  outside.files[0].slabs = {2, 4};
  EXPECT_FALSE(parse_staged_version(serialize(outside), 1u << 20, 4).has_value());
  StagedVersion elsewhere = good;
  elsewhere.files[0].name = "../rank-00000.safetensors";
  EXPECT_FALSE(parse_staged_version(serialize(elsewhere), 1u << 20, 4).has_value());
  StagedVersion longer = good;
  longer.files[0].size_bytes = 3u << 20;
  EXPECT_FALSE(parse_staged_version(serialize(longer), 1u << 20, 4).has_value());
}

TEST(Region, AHeaderThatDoesNotFitTheMemoryIsRefused) {
  SharedRegion shared;
  const std::uint32_t slabs = 5;
  std::memcpy(shared.trainer.memory()->bytes().data() + 16, &slabs, sizeof slabs);
  EXPECT_FALSE(Region::open(shared.trainer.memory()).has_value());
}

TEST(SharedMemory, NobodyCanShrinkItUnderAReader) {
  SharedRegion shared;
  EXPECT_NE(::ftruncate(shared.memory.get(), 4096), 0);
  const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 1u << 20), 0);
  EXPECT_FALSE(SharedMemory::map(unsealed, SharedMemory::Access::kRead).has_value());
}

}  // namespace
}  // namespace slackwater::test
