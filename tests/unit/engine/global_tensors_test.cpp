// Several ranks that hold tensors together: each byte of them is in the files once, or the step is not there.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <set>
#include <thread>

#include "base/json.hpp"
#include "engine/engine_impl.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "support/rank_storage.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "version/catalog.hpp"
#include "version/index.hpp"

namespace slackwater::test {
namespace {

using Shape = std::vector<std::int64_t>;
using std::chrono::milliseconds;

class GlobalTensorsTest : public EngineTest {
 protected:
  void start(std::uint32_t world, milliseconds timeout = milliseconds(30'000)) {
    engines_.clear();
    fault_.clear();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      Options options = EngineTest::options();
      options.rank = rank;
      options.world = world;
      options.fan_in = 2;
      options.commit_timeout = timeout;
      options.paranoid = paranoid_ranks_.contains(rank);
      auto faulty = std::make_unique<FaultFileSystem>(storage_of_host(options.path, rank).fs());
      fault_.push_back(faulty.get());
      auto engine = open_engine(std::move(options), {.fs = std::move(faulty), .clock = nullptr});
      if (!engine) throw std::runtime_error(engine.error().to_string());
      engines_.push_back(std::make_unique<Engine>(std::move(*engine)));
    }
  }
  // What each rank says of a step.
  using StateOf = std::function<State(std::uint32_t)>;
  std::vector<Snapshot> save_all(std::uint64_t step, const StateOf& state_of) {
    std::vector<Snapshot> snapshots;
    for (std::uint32_t rank = 0; rank < engines_.size(); ++rank) {
      auto snapshot = engines_[rank]->save(step, state_of(rank));
      if (!snapshot) throw std::runtime_error(snapshot.error().to_string());
      snapshots.push_back(std::move(**snapshot));
    }
    return snapshots;
  }
  void commit_all(std::uint64_t step, const StateOf& state_of) {
    for (Snapshot& snapshot : save_all(step, state_of)) {
      const Status status = snapshot.wait(Level::kCommitted);
      ASSERT_TRUE(status) << status.error().to_string();
    }
  }
  void expect_abort(std::uint64_t step, const StateOf& state_of, std::string_view words) {
    for (Snapshot& snapshot : save_all(step, state_of)) {
      const Status status = snapshot.wait(Level::kCommitted);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().kind, ErrorKind::kAborted);
      EXPECT_NE(status.error().message.find(words), std::string::npos) << status.error().message;
    }
  }

  [[nodiscard]] std::string directory_of(std::uint64_t step) {
    return options().path + "/" + version_directory({step, 1});
  }
  [[nodiscard]] Manifest manifest_of(std::uint64_t step) {
    auto manifest = read_manifest(*make_posix_file_system(), options().path, {step, 1});
    if (!manifest) throw std::runtime_error(manifest.error().to_string());
    return std::move(*manifest);
  }
  // Entries by name.
  [[nodiscard]] std::map<std::string, IndexEntry> index_of_step(std::uint64_t step) {
    auto entries = parse_index(read_text(directory_of(step) + "/index"), "index");
    if (!entries) throw std::runtime_error(entries.error().to_string());
    std::map<std::string, IndexEntry> by_name;
    for (IndexEntry& entry : *entries) by_name.emplace(entry.name, std::move(entry));
    return by_name;
  }
  static std::string read_text(const std::string& path) {
    const auto bytes = read_file(path);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // A vote for this step, if a rank has cast one.
  [[nodiscard]] std::optional<std::string> find_vote(std::uint64_t step) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options().path + "/.slackwater")) {
      const std::string path = entry.path();
      if (path.find("/votes-") == std::string::npos || path.ends_with(".tmp") || !entry.is_regular_file()) continue;
      std::string text = read_text(path);
      if (text.find("\"step\":" + std::to_string(step)) != std::string::npos) return text;
    }
    return std::nullopt;
  }
  // A global tensor of two dimensions, one byte an element, put together from the files.
  [[nodiscard]] Bytes assembled(std::uint64_t step, const IndexEntry& entry) {
    Bytes whole(static_cast<std::size_t>(entry.shape[0] * entry.shape[1]));
    for (const IndexShard& shard : entry.shards) {
      const auto file = read_file(directory_of(step) + "/" + shard.file);
      for (std::int64_t row = 0; row < shard.box_shape[0]; ++row) {
        const std::byte* from =
            reinterpret_cast<const std::byte*>(file.data()) + shard.offset + row * shard.box_shape[1];
        std::copy_n(from, shard.box_shape[1],
                    whole.begin() + (shard.box_offset[0] + row) * entry.shape[1] + shard.box_offset[1]);
      }
    }
    return whole;
  }

  // The box of a tensor of `global` bytes in memory, seen by strides.
  static Tensor box_of(const std::string& name, const Bytes& global, const Shape& shape, const Shape& offset,
                       const Shape& extent) {
    return {.name = name,
            .dtype = DType::kU8,
            .shape = extent,
            .strides = {shape[1], 1},
            .data = global.data() + offset[0] * shape[1] + offset[1],
            .shard = Shard{.global_shape = shape, .offset = offset}};
  }
  static Tensor replica_of(Tensor tensor, std::uint32_t replica, std::uint32_t replicas, std::string group = "dp") {
    tensor.shard->replica_group = std::move(group);
    tensor.shard->replica = replica;
    tensor.shard->replicas = replicas;
    return tensor;
  }

  std::vector<FaultFileSystem*> fault_;  // owned by the engines
  std::vector<std::unique_ptr<Engine>> engines_;
  std::set<std::uint32_t> paranoid_ranks_;
  Model model_;
};

TEST_F(GlobalTensorsTest, BoxesOfAllRanksMakeTheWhole) {
  start(4);
  const Bytes& w = model_.add("w", 64 * 50);
  const Bytes& own = model_.add("own", 777);
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    // Two boxes each: columns on the left, rows on the right, of which the last rank has none.
    state.tensors.push_back(box_of("w", w, {64, 50}, {0, rank * 5}, {64, 5}));
    state.tensors.push_back(box_of("w", w, {64, 50}, {std::min(rank * 22u, 64u), 20},
                                   {rank < 2   ? 22
                                    : rank < 3 ? 20
                                               : 0,
                                    30}));
    state.tensors.push_back({.name = "own", .shape = {777}, .data = own.data()});
    state.tensors.push_back(
        {.name = "none", .shape = {0, 3}, .shard = Shard{.global_shape = {0, 3}, .offset = {0, 0}}});
    return state;
  };
  for (std::uint64_t step = 1; step <= 3; ++step) {
    commit_all(step, state_of);
    const auto index = index_of_step(step);
    EXPECT_EQ(index.size(), 6u);
    EXPECT_EQ(index.at("w").shards.size(), 7u);
    EXPECT_EQ(assembled(step, index.at("w")), w);
    EXPECT_TRUE(index.at("none").shards.empty());
    EXPECT_EQ(index.at("rank-00003/own").shards.size(), 1u);
    model_.update();
  }
  const Manifest manifest = manifest_of(3);
  EXPECT_EQ(manifest.required_features, (std::vector<std::string>{"rank-local", "global-tensors"}));
  EXPECT_EQ(manifest.tensor_count, 6u);
  EXPECT_TRUE(manifest.rank_local_values.empty());
}

TEST_F(GlobalTensorsTest, ReplicasAreWrittenOnceAndSpread) {
  start(4);
  model_.add("a", 1000 * 100);
  model_.add("b", 300 * 100);
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    for (const auto& [name, rows] : std::map<std::string, std::int64_t>{{"a", 1000}, {"b", 300}})
      state.tensors.push_back(replica_of(box_of(name, model_[name], {rows, 100}, {0, 0}, {rows, 100}), rank, 4));
    Tensor tied = state.tensors.back();
    tied.name = "tied";
    state.tensors.push_back(std::move(tied));
    return state;
  };
  commit_all(1, state_of);
  const auto index = index_of_step(1);
  EXPECT_EQ(assembled(1, index.at("a")), model_["a"]);
  EXPECT_EQ(assembled(1, index.at("b")), model_["b"]);
  EXPECT_EQ(index.at("tied").alias_of, "b");
  std::map<std::string, std::uint64_t> written;
  for (const char* name : {"a", "b"}) {
    for (const IndexShard& shard : index.at(name).shards) written[shard.file] += shard.size_bytes;
  }
  ASSERT_EQ(written.size(), 4u);
  for (const auto& [file, bytes] : written) EXPECT_NEAR(static_cast<double>(bytes), 32'500, 0.05 * 32'500) << file;
  EXPECT_EQ(manifest_of(1).required_features, (std::vector<std::string>{"global-tensors"}));
}

// What is written of a replica is another tensor: its rows are fewer, and its address is another.
TEST_F(GlobalTensorsTest, PartsOfReplicasAreNotGivenBackAsTheTensorsThatWereSaved) {
  start(2);
  model_.add("a", 1000 * 100);
  std::atomic<int> given_back{0};
  commit_all(1, [&](std::uint32_t rank) {
    State state;
    state.tensors.push_back(replica_of(box_of("a", model_["a"], {1000, 100}, {0, 0}, {1000, 100}), rank, 2));
    state.take_back = [&](std::vector<Tensor>) { ++given_back; };
    return state;
  });
  engines_.clear();
  EXPECT_EQ(given_back, 0);
}

TEST_F(GlobalTensorsTest, WhatDoesNotFitTogetherAbortsByNameAndTheNextStepCommits) {
  start(3);
  const Bytes& w = model_.add("w", 9 * 4);
  const Bytes wide(9 * 5);
  std::int64_t begin = 3, columns = 4;
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    const Shape global{9, rank == 2 ? columns : 4};
    const Bytes& bytes = global[1] == 5 ? wide : w;
    state.tensors.push_back(box_of("w", bytes, global, {rank == 1 ? begin : 3 * rank, 0}, {3, 4}));
    return state;
  };
  commit_all(1, state_of);
  begin = 2;
  expect_abort(2, state_of, "tensor 'w' of shape [9, 4] is stored twice in part: [2:3,0:4] lies in");
  begin = 6;
  expect_abort(3, state_of, "tensor 'w' of shape [9, 4] is not complete: nobody has [3:6,0:4]");
  begin = 3;
  columns = 5;
  expect_abort(4, state_of, "'w' is uint8 of shape [9, 4] on rank 0, but uint8 of shape [9, 5] on rank 2");
  columns = 4;
  commit_all(5, state_of);
  commit_all(6, state_of);
  EXPECT_EQ(assembled(6, index_of_step(6).at("w")), w);
}

TEST_F(GlobalTensorsTest, ATieThatARankWithAPartOfTheTensorDoesNotHaveAborts) {
  start(4);
  const Bytes& w = model_.add("embedding", 8 * 4);
  std::set<std::uint32_t> untied;
  // Ranks 0 and 1 hold the tensor and its other name; ranks 2 and 3 neither, as stages of a pipeline do.
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    if (rank > 1) {
      state.tensors.push_back(box_of("own", w, {8, 4}, {4 * (rank - 2), 0}, {4, 4}));
      return state;
    }
    state.tensors.push_back(box_of("embedding", w, {8, 4}, {4 * rank, 0}, {4, 4}));
    if (!untied.contains(rank)) state.tensors.push_back(box_of("head", w, {8, 4}, {4 * rank, 0}, {4, 4}));
    return state;
  };
  commit_all(1, state_of);
  EXPECT_EQ(index_of_step(1).at("head").alias_of, "embedding");
  untied = {1};
  expect_abort(2, state_of, "tensor 'head' is tied to 'embedding' on rank 0, but not there on rank 1");
  untied = {0};
  expect_abort(3, state_of, "tensor 'head' is tied to 'embedding' on rank 1, but not there on rank 0");
  untied = {0, 1};
  commit_all(4, state_of);
  EXPECT_FALSE(index_of_step(4).contains("head"));
}

TEST_F(GlobalTensorsTest, ReplicasThatDifferAbortUntilTheyAreAlike) {
  start(3);
  const Bytes good = model_.add("w", 30 * 10);
  Bytes bad = good;
  bad[299] ^= std::byte{1};  // in the share of the last rank, so that no other writes it
  bool differ = true;
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    state.tensors.push_back(
        replica_of(box_of("w", differ && rank == 1 ? bad : good, {30, 10}, {0, 0}, {30, 10}), rank, 3));
    return state;
  };
  const std::string words = "tensor 'w' of replica group 'dp' is not the same on ranks 0, 2 and rank 1";
  expect_abort(1, state_of, words);
  expect_abort(2, state_of, words);
  differ = false;
  commit_all(3, state_of);
  EXPECT_EQ(assembled(3, index_of_step(3).at("w")), good);
  differ = true;  // it is small: every byte of it is compared at every step
  expect_abort(4, state_of, words);
  differ = false;
  commit_all(5, state_of);
}

// What was alike once may have come apart since: a run that goes back compares anew.
TEST_F(GlobalTensorsTest, ReplicasAreComparedAgainAfterARestore) {
  start(2);
  const Bytes good = model_.add("w", 300 * 1000);
  Bytes bad = good;
  bad[7] ^= std::byte{1};  // one byte of a large tensor: samples would hardly find it
  bool differ = false;
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    state.tensors.push_back(
        replica_of(box_of("w", differ && rank == 1 ? bad : good, {300, 1000}, {0, 0}, {300, 1000}), rank, 2));
    return state;
  };
  commit_all(1, state_of);
  {
    std::vector<std::jthread> together;
    for (auto& engine : engines_) {
      together.emplace_back([&engine] {
        const auto restored =
            engine->restore({}, [](const Checkpoint&) -> Result<std::vector<Target>> { return std::vector<Target>(); });
        EXPECT_TRUE(restored && *restored);
      });
    }
  }
  differ = true;
  expect_abort(2, state_of, "tensor 'w' of replica group 'dp' is not the same on rank 0 and rank 1");
  differ = false;
  commit_all(3, state_of);
}

// In groups of two: the group leader of ranks 2 and 3 finds it, and passes on no lists.
TEST_F(GlobalTensorsTest, ReplicasThatDifferWithinAGroupAreFoundByItsLeader) {
  start(4);
  std::vector<Bytes> own;
  for (unsigned rank = 0; rank < 4; ++rank) {
    own.push_back(model_.add("w" + std::to_string(rank), 30 * 10));
  }
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    state.tensors.push_back(replica_of(box_of("w", own[rank], {30, 10}, {0, 0}, {30, 10}), rank, 4));
    return state;
  };
  expect_abort(1, state_of, "tensor 'w' of replica group 'dp' is not the same on rank");
}

TEST_F(GlobalTensorsTest, ReplicasThatComeLaterAreComparedWhenTheyCome) {
  start(2);
  const Bytes good = model_.add("w", 30 * 10);
  Bytes bad = good;
  bad[0] ^= std::byte{1};
  bool stepped = false;
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    state.tensors.push_back(replica_of(box_of("w", good, {30, 10}, {0, 0}, {30, 10}), rank, 2));
    const Bytes& moments = rank == 1 ? bad : good;  // as an optimizer has them after its first step
    if (stepped) state.tensors.push_back(replica_of(box_of("m", moments, {30, 10}, {0, 0}, {30, 10}), rank, 2));
    return state;
  };
  commit_all(1, state_of);
  stepped = true;
  expect_abort(2, state_of, "tensor 'm' of replica group 'dp' is not the same on rank 0 and rank 1");
}

// Replicas that come apart after a commit has shown that they are alike. All byte tensors of 1,000 columns.
class ReplicasThatDrift : public GlobalTensorsTest {
 protected:
  static constexpr std::uint32_t kRanks = 3;

  void add(const std::string& name, std::int64_t rows) {
    const Bytes& bytes = model_.add(name, static_cast<std::size_t>(rows * 1000));
    for (auto& rank : of_rank_) rank[name] = bytes;
  }
  Bytes& of_rank(std::uint32_t rank, const std::string& name) { return of_rank_[rank].at(name); }
  // Makes a piece of rank 1's replica another one.
  void change(const std::string& name, std::size_t begin, std::size_t size) {
    for (std::size_t i = begin; i < begin + size; ++i) of_rank(1, name)[i] ^= std::byte{0x55};
  }
  StateOf states() {
    return [this](std::uint32_t rank) {
      State state;
      for (const auto& [name, bytes] : of_rank_[rank]) {
        const Shape shape{static_cast<std::int64_t>(bytes.size() / 1000), 1000};
        state.tensors.push_back(replica_of(box_of(name, bytes, shape, {0, 0}, shape), rank, kRanks));
      }
      return state;
    };
  }
  // What became of a step, on all ranks alike: "" if it was committed.
  std::string outcome(std::uint64_t step) {
    std::set<std::string> outcomes;
    for (Snapshot& snapshot : save_all(step, states())) {
      const Status status = snapshot.wait(Level::kCommitted);
      EXPECT_TRUE(status || status.error().kind == ErrorKind::kAborted);
      outcomes.insert(status ? std::string() : status.error().message);
    }
    EXPECT_EQ(outcomes.size(), 1u);
    return *outcomes.begin();
  }
  static std::string differs(const std::string& name) {
    return "tensor '" + name + "' of replica group 'dp' is not the same on ranks 0, 2 and rank 1; bring the replicas";
  }

  std::map<std::string, Bytes> of_rank_[kRanks];
};

TEST_F(ReplicasThatDrift, ASmallOneIsFoundAtOnceWhicheverByteDiffers) {
  start(kRanks);
  add("b", 64);
  commit_all(1, states());
  std::uint64_t step = 1;
  for (const std::size_t place : {0, 31'999, 63'999}) {
    change("b", place, 1);
    expect_abort(++step, states(), differs("b"));
    change("b", place, 1);
    commit_all(++step, states());
  }
}

TEST_F(ReplicasThatDrift, ALargeOneIsFoundAtOnceIfEveryElementOrAnEighthInOnePieceDiffers) {
  start(kRanks);
  add("w", 1000);
  commit_all(1, states());
  std::uint64_t step = 1;
  for (const auto& [begin, size] : {std::pair(0, 1'000'000), std::pair(0, 125'008), std::pair(874'992, 125'008)}) {
    change("w", begin, size);
    expect_abort(++step, states(), differs("w"));
    change("w", begin, size);
    commit_all(++step, states());
  }
}

// 1/64 of it: the samples of a step see it with a chance of one in eight, those of 64 steps all but surely. Steps and
// names choose the places, so that the outcome is the same at each run.
TEST_F(ReplicasThatDrift, ALargeOneIsFoundWithinSomeStepsIfAPieceDiffers) {
  start(kRanks);
  add("w", 512);
  commit_all(1, states());
  for (const std::size_t begin : {0, 123'456, 504'000}) {
    change("w", begin, 8'000);
    const std::uint64_t first = engines_[0]->versions().back().step + 100;
    std::uint64_t step = first;
    std::string error;
    while ((error = outcome(step)).empty() && step < first + 64) ++step;
    EXPECT_NE(error.find(differs("w")), std::string::npos) << error;
    change("w", begin, 8'000);
    commit_all(step + 1, states());
  }
}

// A vote names eight of them, and has one digest for all.
TEST_F(ReplicasThatDrift, OneOfManyIsFoundAtOnceAndNamedByTheNextStepAtTheLatest) {
  start(kRanks);
  for (int i = 10; i < 50; ++i) add("t" + std::to_string(i), 1);
  commit_all(1, states());
  unsigned unnamed = 0;
  for (std::uint64_t step = 2; step < 12; step += 3) {
    change("t33", 500, 1);
    if (const std::string error = outcome(step); error.find(differs("t33")) == std::string::npos) {
      EXPECT_NE(error.find("a tensor of replica group 'dp' is not the same on ranks 0, 2 and rank 1 (the saves that "
                           "follow compare every byte, and name it)"),
                std::string::npos)
          << error;
      ++unnamed;
    }
    expect_abort(step + 1, states(), differs("t33"));
    change("t33", 500, 1);
    commit_all(step + 2, states());
  }
  EXPECT_GT(unnamed, 0u);
}

TEST_F(ReplicasThatDrift, OnceADifferenceWasFoundEveryByteIsComparedUntilAllAreAlike) {
  start(kRanks);
  add("b", 1);
  add("w", 1000);
  commit_all(1, states());
  change("w", 777, 1);  // so small a difference that samples do not see it
  commit_all(2, states());
  change("b", 0, 1);
  expect_abort(3, states(), differs("b"));
  change("b", 0, 1);
  expect_abort(4, states(), differs("w"));
  change("w", 777, 1);
  commit_all(5, states());
}

// Each rank hears of a commit in its own time, so they may not agree on whether every byte is compared.
TEST_F(ReplicasThatDrift, RanksThatCompareEveryByteAndRanksThatSampleAgree) {
  paranoid_ranks_ = {1, 2};
  start(kRanks);
  add("b", 1);
  add("w", 1000);
  for (std::uint64_t step = 1; step <= 3; ++step) commit_all(step, states());
  change("b", 0, 1);
  expect_abort(4, states(), "tensor 'b' of replica group 'dp' is not the same on");
}

TEST_F(ReplicasThatDrift, ParanoidComparesEveryByteAtEveryStep) {
  paranoid_ranks_ = {0, 1, 2};
  start(kRanks);
  add("w", 1000);
  commit_all(1, states());
  commit_all(2, states());
  change("w", 777'777, 1);
  expect_abort(3, states(), differs("w"));
}

TEST_F(GlobalTensorsTest, ReplicatedValuesAreComparedAtEveryStep) {
  start(3);
  std::string of_others = R"({"order":[1,2],"place":3})";
  std::string of_one = R"({"place":3,"order":[1,2]})";  // the order of members does not matter
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    state.tree = R"({"slackwater_tree":1,"state":{"data":)" + (rank == 1 ? of_one : of_others) + "}}";
    state.values["data"] = rank == 1 ? of_one : of_others;
    state.replicated_values["data"] = rank == 1 ? of_one : of_others;
    return state;
  };
  const std::string ranks =
      " is not the same on ranks 0, 2 and rank 1; bring the ranks into step, or save it as a value";
  commit_all(1, state_of);
  of_one = R"({"place":4,"order":[1,2]})";
  expect_abort(2, state_of, "replicated value 'data.place'" + ranks);
  of_one = of_others;
  commit_all(3, state_of);
  of_one = R"({"order":[1,2],"place":3,"seed":0})";
  expect_abort(4, state_of, "replicated value 'data.seed'" + ranks);
  of_one = of_others = R"({"order":[1,2],"place":9})";
  commit_all(5, state_of);
}

TEST_F(GlobalTensorsTest, ValuesThatDifferAreListedInTheManifest) {
  start(3);
  bool differ = true;
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    state.tree = "differs, whatever the values do: " + std::to_string(rank);
    state.values = {{"epoch", "3"}, {"rng", std::to_string(differ ? rank : 0)}};
    if (differ && rank == 2) state.values["extra"] = "null";
    return state;
  };
  commit_all(1, state_of);
  EXPECT_EQ(manifest_of(1).rank_local_values, (std::vector<std::string>{"extra", "rng"}));
  EXPECT_EQ(manifest_of(1).required_features, (std::vector<std::string>{"rank-local"}));
  differ = false;
  commit_all(2, state_of);
  EXPECT_TRUE(manifest_of(2).rank_local_values.empty());
}

// The text of rank 1's vote, which waits for the leader's own file.
TEST_F(GlobalTensorsTest, APartOfTheIndexThatHasNotChangedIsOnlyNamed) {
  start(2);
  const Bytes& w = model_.add("w", 8 * 4);
  const auto state_of = [&](std::uint32_t rank) {
    State state;
    state.tensors.push_back(box_of("w", w, {8, 4}, {4 * rank, 0}, {4, 4}));
    return state;
  };
  const auto vote_at = [&](std::uint64_t step) {
    fault_[0]->hang(FsCall::kSyncData, {.path = "rank-00000.safetensors"});
    std::vector<Snapshot> snapshots = save_all(step, state_of);
    std::optional<std::string> vote;
    while (!vote) {
      try {
        vote = find_vote(step);
      } catch (const std::exception&) {  // one of the step before went while we looked
      }
      std::this_thread::yield();
    }
    fault_[0]->release_hung();
    for (Snapshot& snapshot : snapshots) EXPECT_TRUE(snapshot.wait(Level::kCommitted));
    return *vote;
  };
  EXPECT_NE(vote_at(1).find("rank-00001.safetensors"), std::string::npos);
  EXPECT_EQ(vote_at(2).find("rank-00001.safetensors"), std::string::npos);
  EXPECT_EQ(read_text(directory_of(2) + "/index"), read_text(directory_of(1) + "/index"));
}

TEST_F(GlobalTensorsTest, OneRankAloneSavesThemTooAndHearsOfAHole) {
  start(1);
  const Bytes& w = model_.add("w", 8 * 4);
  std::int64_t rows = 4;
  const auto state_of = [&](std::uint32_t) {
    State state;
    state.tensors.push_back(box_of("w", w, {8, 4}, {0, 0}, {4, 4}));
    state.tensors.push_back(box_of("w", w, {8, 4}, {4, 0}, {rows, 4}));
    return state;
  };
  commit_all(1, state_of);
  EXPECT_EQ(assembled(1, index_of_step(1).at("w")), w);
  EXPECT_EQ(manifest_of(1).required_features, (std::vector<std::string>{"global-tensors"}));
  EXPECT_EQ(manifest_of(1).tensor_count, 1u);
  rows = 3;
  const Status status = save_all(2, state_of)[0].wait(Level::kCommitted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kMismatch);
  EXPECT_NE(status.error().message.find("nobody has [7:8,0:4]"), std::string::npos) << status.error().message;
  rows = 4;
  commit_all(3, state_of);
}

}  // namespace
}  // namespace slackwater::test
