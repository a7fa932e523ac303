// Parts: versions whose ranks somebody else coordinates. The test is the coordinator, and calls the ranks in turn.
#include <algorithm>
#include <filesystem>

#include "slackwater/part.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "unit/engine/keeper_thread.hpp"

namespace slackwater::test {
namespace {

class PartsTest : public EngineTest {
 protected:
  std::string root() { return options().path; }
  Engine engine() {
    Options without_directory = options();
    without_directory.path.clear();
    return open(std::move(without_directory));
  }
  PartCommitter coordinator() {
    auto opened = PartCommitter::open(root(), "parts", options().log);
    if (!opened) throw std::runtime_error(opened.error().to_string());
    return std::move(*opened);
  }
  // This rank's half of a global tensor of 2 x 4 bytes.
  static State half(const Bytes& bytes, const PartPlace& place) {
    State state;
    state.tensors.push_back(Tensor{
        .name = "both",
        .dtype = DType::kU8,
        .shape = {1, static_cast<std::int64_t>(bytes.size())},
        .data = bytes.data(),
        .shard = Shard{.global_shape = {2, static_cast<std::int64_t>(bytes.size())}, .offset = {place.rank, 0}}});
    state.tree = place.rank == 0 ? R"({"kind":"test"})" : "";
    state.part = place;
    return state;
  }
  std::string write(Engine& engine, std::uint32_t rank, const Bytes& bytes) {
    const auto place = find_place(root(), rank);
    if (!place) throw std::runtime_error(place.error().to_string());
    auto snapshot = engine.save(place->step, half(bytes, *place));
    if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
    if (const Status done = (**snapshot).wait(Level::kCommitted); !done)
      throw std::runtime_error(done.error().to_string());
    return (**snapshot).part();
  }
  [[nodiscard]] Bytes stored() {
    auto checkpoint = Checkpoint::open(root());
    if (!checkpoint) throw std::runtime_error(checkpoint.error().to_string());
    const TensorInfo& info = *checkpoint->find("both");
    Bytes bytes(info.size_bytes);
    const std::vector<Target> targets{{.name = "both", .dtype = DType::kU8, .shape = info.shape, .data = bytes.data()}};
    const Status read = checkpoint->read(targets);
    if (!read) throw std::runtime_error(read.error().to_string());
    return bytes;
  }
  static Bytes filled(std::size_t size, unsigned seed) {
    Bytes bytes(size);
    fill_pattern(bytes, seed);
    return bytes;
  }
};

TEST_F(PartsTest, AVersionIsVisibleOnceTheCoordinatorHasCommittedAllParts) {
  Engine ours = engine();
  const Bytes upper = filled(3 * kMiB, 1), lower = filled(3 * kMiB, 2);
  PartCommitter leader = coordinator();
  EXPECT_FALSE(leader.has_version());
  ASSERT_TRUE(leader.begin(40, 2));
  std::vector<std::string> parts{write(ours, 1, lower), write(ours, 0, upper)};
  ASSERT_TRUE(list_versions(root()));
  EXPECT_TRUE(list_versions(root())->empty());
  ASSERT_TRUE(leader.commit(parts));
  ASSERT_EQ(list_versions(root())->size(), 1u);
  EXPECT_EQ(list_versions(root())->front().step, 40u);
  Bytes both = upper;
  both.insert(both.end(), lower.begin(), lower.end());
  EXPECT_TRUE(stored() == both);
  EXPECT_EQ(Checkpoint::open(root())->tree(), R"({"kind":"test"})");
}

TEST_F(PartsTest, APartThatIsMissingTwiceThereOrOfAnotherAttemptIsNotCommitted) {
  Engine ours = engine();
  const Bytes bytes = filled(1000, 1);
  std::string earlier;
  {
    PartCommitter leader = coordinator();
    ASSERT_TRUE(leader.begin(1, 2));
    earlier = write(ours, 1, bytes);
  }
  PartCommitter leader = coordinator();
  ASSERT_TRUE(leader.begin(1, 2));
  const std::string first = write(ours, 0, bytes), second = write(ours, 1, bytes);
  const auto refused = [&](std::vector<std::string> parts, ErrorKind kind) {
    const Status status = leader.commit(parts);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, kind) << status.error().to_string();
    EXPECT_TRUE(list_versions(root())->empty());
  };
  refused({first}, ErrorKind::kInvalidArgument);
  refused({first, first}, ErrorKind::kInvalidArgument);
  refused({first, second, second}, ErrorKind::kInvalidArgument);
  refused({first, earlier}, ErrorKind::kAborted);
  refused({first, "{}"}, ErrorKind::kCorrupt);
  EXPECT_TRUE(leader.commit(std::vector{first, second}));
}

TEST_F(PartsTest, BoxesThatDoNotCoverTheTensorAreNotCommitted) {
  Engine ours = engine();
  const Bytes bytes = filled(1000, 1);
  PartCommitter leader = coordinator();
  ASSERT_TRUE(leader.begin(1, 2));
  const std::string first = write(ours, 0, bytes);
  auto place = find_place(root(), 1);
  ASSERT_TRUE(place);
  State nothing;
  nothing.part = *place;
  auto empty = ours.save(1, nothing);
  ASSERT_TRUE(empty);
  ASSERT_TRUE((**empty).wait(Level::kCommitted));
  const Status status = leader.commit(std::vector{first, (**empty).part()});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kMismatch);
  EXPECT_TRUE(list_versions(root())->empty());
}

TEST_F(PartsTest, ACommitReplacesWhatWasThereAndRemovesWhatWasLeftBehind) {
  Engine ours = engine();
  for (unsigned round = 0; round < 3; ++round) {
    const Bytes bytes = filled(1000, round);
    PartCommitter leader = coordinator();
    EXPECT_EQ(leader.has_version(), round != 0);
    ASSERT_TRUE(leader.begin(5, 2));
    const std::string first = write(ours, 0, bytes);
    if (round == 1) continue;  // its coordinator dies
    ASSERT_TRUE(leader.commit(std::vector{first, write(ours, 1, bytes)}));
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), stored().begin()));
  }
  const auto is_version = [](const auto& entry) { return entry.path().filename().string().starts_with("step-"); };
  EXPECT_EQ(std::ranges::count_if(std::filesystem::directory_iterator(root()), is_version), 1);
}

TEST_F(PartsTest, CheckpointsOfARunAreNeverReplaced) {
  Model model;
  model.add("w", 100);
  {
    Engine run = open(options());
    save_and_commit(run, 3, model);
    ASSERT_TRUE(run.close());
  }
  const auto opened = PartCommitter::open(root(), "parts", options().log);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::kInvalidArgument);
}

TEST_F(PartsTest, AnEngineWithoutADirectorySavesPartsOnly) {
  Engine ours = engine();
  Model model;
  model.add("w", 100);
  EXPECT_FALSE(ours.save(1, model.state()));
  Reader reader;
  EXPECT_FALSE(ours.restore({}, reader.plan()));
  EXPECT_FALSE(ours.remove(1));
  EXPECT_FALSE(ours.pin(1));
  EXPECT_TRUE(ours.versions().empty());
  EXPECT_FALSE(find_place(root(), 0));
}

TEST_F(PartsTest, AnEngineWithAMemoryTierSavesPartsToo) {
  const KeeperThread keeper(root() + "-own");
  Engine ours = open(keeper.use(options()));
  const Bytes bytes = filled(1000, 1);
  PartCommitter leader = coordinator();
  ASSERT_TRUE(leader.begin(1, 1));
  std::string part;
  EXPECT_NO_THROW(part = write(ours, 0, bytes));
  EXPECT_FALSE(part.empty());
  EXPECT_TRUE(ours.close());
}

TEST_F(PartsTest, APartThatIsGivenUpLeavesNoFiles) {
  Engine ours = engine();
  const Bytes bytes = filled(1000, 1);
  PartCommitter leader = coordinator();
  ASSERT_TRUE(leader.begin(1, 2));
  const auto place = find_place(root(), 1);
  ASSERT_TRUE(place);
  State state = half(bytes, *place);
  state.sealed_by_caller = true;
  auto snapshot = ours.save(1, state);
  ASSERT_TRUE(snapshot);
  ASSERT_TRUE((**snapshot).fence());
  (**snapshot).seal({"both"});
  EXPECT_FALSE((**snapshot).wait(Level::kCommitted));
  EXPECT_TRUE((**snapshot).part().empty());
  static_cast<void>(ours.close());  // the files are removed after the outcome is known
  EXPECT_TRUE(std::filesystem::is_empty(root() + "/step-0000000001.a1"));
}

}  // namespace
}  // namespace slackwater::test
