// Versions whose ranks have subdirectories: which there are, what is synced before a rank votes, and what goes with
// them.
#include <cerrno>
#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "store_fixture.hpp"

namespace slackwater::test {
namespace {
namespace subdirectories_test {  // Names: another file that this one may be compiled with has that name too

constexpr RankFiles kTwoEach{.ranks_in_directory = 2};

class SubdirectoriesTest : public StoreTest {
 protected:
  // Rank 0 of `world` claims an attempt, and `member_` accepts it as the rank given.
  void start(std::uint32_t world, std::uint32_t member, std::optional<RankFiles> files = kTwoEach) {
    std::vector<std::string> ids;
    for (std::uint32_t rank = 0; rank < world; ++rank) ids.push_back(std::to_string(rank));
    leader_ = open_store(VersionStore::Role::kLeader, files);
    const auto claimed = leader_->attempt().claim("test", {}, ids);
    ASSERT_TRUE(claimed.has_value()) << claimed.error().to_string();
    attempt_ = *claimed;
    join(member, files);
  }
  void join(std::uint32_t member, std::optional<RankFiles> files = kTwoEach) {
    member_ = open_store(VersionStore::Role::kMember, files);
    ASSERT_TRUE(member_->attempt().accept(attempt_.number, member, std::to_string(member)).has_value());
  }
  Result<RecordReference> write_record(VersionStore& store, std::uint64_t step, std::uint32_t rank) {
    const auto directory = store.make_version(step);
    if (!directory) return fail(directory.error());
    const std::string name = files().data(rank, 0);
    const std::string data = "data of rank " + std::to_string(rank);
    if (auto written = write_durably(fs_, *directory + "/" + name, data); !written) return fail(written.error());
    Record record{.run = attempt_.run, .identity = {step, attempt_.number, rank, attempt_.world}, .files = {}};
    record.files.push_back({name, data.size(), 1, {digest64(std::as_bytes(std::span(data)))}});
    return store.write_record(record, {});
  }
  // All ranks of a step, and the decision.
  Result<Manifest> commit_all(std::uint64_t step) {
    Manifest manifest{.run = attempt_.run, .step = step, .attempt = attempt_.number, .world = attempt_.world};
    for (std::uint32_t rank = 0; rank < attempt_.world; ++rank) {
      if (rank > 0) join(rank);
      auto vote = write_record(rank == 0 ? *leader_ : *member_, step, rank);
      if (!vote) return fail(vote.error());
      manifest.records.push_back(*vote);
    }
    return leader_->decide(manifest);
  }
  [[nodiscard]] RankFiles files() const {
    return attempt_.world > 1024 ? RankFiles::of_world(attempt_.world) : kTwoEach;
  }
  [[nodiscard]] std::string in(std::uint64_t step, const std::string& name) const {
    return path_of({step, attempt_.number}) + "/" + name;
  }
  [[nodiscard]] std::set<std::string> below(std::uint64_t step) const {
    std::set<std::string> names;
    const std::string path = path_of({step, attempt_.number});
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
      names.insert(entry.path().string().substr(path.size() + 1));
    return names;
  }

  std::unique_ptr<VersionStore> leader_;
  std::unique_ptr<VersionStore> member_;
  Attempt attempt_;
};

using Names = std::set<std::string>;

TEST_F(SubdirectoriesTest, BeginWithTheThousandAndTwentyFifthRank) {
  start(1025, 1024, std::nullopt);
  ASSERT_TRUE(write_record(*leader_, 5, 0).has_value());
  const auto vote = write_record(*member_, 5, 1024);
  ASSERT_TRUE(vote.has_value()) << vote.error().to_string();
  EXPECT_EQ(vote->file, "g0001/rank-01024.record");
  EXPECT_EQ(below(5), (Names{"g0000", "g0000/rank-00000.record", "g0000/rank-00000.safetensors", "g0001",
                             "g0001/rank-01024.record", "g0001/rank-01024.safetensors"}));

  ASSERT_TRUE(leader_->attempt().claim("test", {}, std::vector<std::string>(1024, "id")).has_value());
  EXPECT_TRUE(std::filesystem::is_empty(*leader_->make_version(6)));
}

TEST_F(SubdirectoriesTest, ACommitStatesWhereTheFilesAreAndAnOlderReaderNamesTheMissingFeature) {
  start(4, 1);
  const auto decided = commit_all(5);
  ASSERT_TRUE(decided.has_value()) << decided.error().to_string();
  const auto manifest = read_manifest(fs_, root(), {5, attempt_.number});
  ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
  EXPECT_EQ(manifest->files, kTwoEach);
  EXPECT_EQ(manifest->required_features, std::vector<std::string>{kSubdirectoriesFeature});
  EXPECT_EQ(manifest->records[3].file, "g0001/rank-00003.record");
}

// The version's path is part of the subdirectory's, so the second such sync is that of the version's directory.
TEST_F(SubdirectoriesTest, ARankVotesOnlyWhenTheNamesOfItsFilesAndOfTheirDirectoryAreSynced) {
  start(4, 2);
  fs_.fail(FsCall::kSyncDirectory, EIO, {.path = version_directory({5, 1})});
  const auto first = write_record(*member_, 5, 2);
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(first.error().path, in(5, "g0001"));

  join(3);  // whose subdirectory rank 2 has made, and perhaps never synced
  fs_.fail(FsCall::kSyncDirectory, EIO, {.nth = 2, .path = version_directory({5, 1})});
  const auto second = write_record(*member_, 5, 3);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().path, path_of({5, 1}));
}

TEST_F(SubdirectoriesTest, GoWithTheirVersion) {
  start(4, 1);
  ASSERT_TRUE(commit_all(5).has_value());
  ASSERT_TRUE(commit_all(6).has_value());
  ASSERT_TRUE(leader_->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({5, 1})));
  EXPECT_EQ(live(), "6.a1");
  EXPECT_TRUE(logged("deleting step 5 (attempt 1): only the newest 1 are kept"));
  EXPECT_EQ(log_lines_.size(), 1u);
}

TEST_F(SubdirectoriesTest, DebrisOfAnEarlierStartGoesWhateverTheWorldIsNow) {
  start(4, 3);
  ASSERT_TRUE(write_record(*member_, 5, 3).has_value());
  leader_.reset();
  auto store = open_store();
  const Attempt alone = claim(*store);
  commit(*store, alone, 6);
  ASSERT_TRUE(store->clean_up({.keep = 1}).has_value());
  EXPECT_FALSE(exists(path_of({5, 1})));
}

TEST_F(SubdirectoriesTest, FilesThatAreNotOursStayWithTheirSubdirectory) {
  start(4, 1);
  ASSERT_TRUE(commit_all(5).has_value());
  write(in(5, "g0000/notes.txt"), "mine");
  write(in(5, "g0001/index"), "mine too");
  std::filesystem::create_directory(in(5, "g12"));
  ASSERT_TRUE(leader_->remove({5, 1}, "a test").has_value());
  EXPECT_EQ(below(5), (Names{"g0000", "g0000/notes.txt", "g0001", "g0001/index", "g12"}));
  EXPECT_TRUE(logged("not Slackwater's"));
  EXPECT_EQ(live(), "");
}

TEST_F(SubdirectoriesTest, AStepThatWasGivenUpLosesOneRanksFilesAtATime) {
  start(4, 1);
  for (const std::uint32_t rank : {1u, 2u, 3u}) {
    join(rank);
    ASSERT_TRUE(write_record(*member_, 5, rank).has_value());
  }
  ASSERT_TRUE(member_->discard({5, 1}, 3).has_value());
  EXPECT_EQ(below(5), (Names{"g0000", "g0000/rank-00001.record", "g0000/rank-00001.safetensors", "g0001",
                             "g0001/rank-00002.record", "g0001/rank-00002.safetensors"}));
  ASSERT_TRUE(member_->discard({7, 1}, 3).has_value()) << "nothing was made";
}

TEST_F(SubdirectoriesTest, ALinkInTheirPlaceIsNeitherWrittenNorDeletedThrough) {
  start(4, 3);
  const std::string outside = temp_ / "outside";
  std::filesystem::create_directory(outside);
  for (const std::string& name : {record_file(3), data_file(3, 0)}) write(outside + "/" + name, "precious");
  ASSERT_TRUE(leader_->make_version(5).has_value());
  std::filesystem::create_directory_symlink(outside, in(5, "g0001"));

  const auto made = member_->make_version(5);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(made.error().path, in(5, "g0001"));
  EXPECT_FALSE(member_->discard({5, 1}, 3).has_value());
  ASSERT_TRUE(leader_->remove({5, 1}, "a test").has_value());
  EXPECT_EQ(read(outside + "/" + record_file(3)), "precious");
  EXPECT_EQ(read(outside + "/" + data_file(3, 0)), "precious");
  EXPECT_TRUE(exists(in(5, "g0001")));
}

}  // namespace subdirectories_test
}  // namespace
}  // namespace slackwater::test
