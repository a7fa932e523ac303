// A pool that prepare() or restore() made for a state in one place, and that a state in another place is saved through:
// loading a checkpoint on the CPU and moving the model to the GPU is common.
#include <mutex>

#include <gmock/gmock.h>

#include "stage/pool.hpp"
#include "unit/engine/cuda_fixture.hpp"

namespace slackwater::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kStateBytes = 6u << 20;

class EngineWithAPreparedPool : public EngineOnCuda {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(EngineOnCuda::SetUp());
    model_.add("w", kStateBytes);
    add("w", kStateBytes);
  }

  Options automatic() {
    Options result = options();
    result.pool_bytes = 0;
    result.log = [this](LogLevel, std::string_view message) {
      const std::lock_guard lock(mutex_);
      log_ += std::string(message) + "\n";
    };
    return result;
  }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  static void put_near(int node) {
    swsim_device_config config{};
    must(swsim_get_config(0, &config));
    config.numa_node = node;
    must(swsim_set_config(0, &config));
  }
  // That of memory which this thread touches.
  static int node_here() {
    auto pool = Pool::create(kMiB, 2);
    if (!pool) throw std::runtime_error(pool.error().to_string());
    (*pool)->wait_touched();
    for (int node = 0; node < 64; ++node)
      if ((*pool)->mostly_on(node).value_or(false)) return node;
    return -1;
  }
  static void prepare(Engine& engine, State state) {
    ASSERT_TRUE(engine.prepare(std::move(state)));
    ASSERT_TRUE(engine.wait_prepared(60s).value());
  }

  Model model_;

 private:
  std::mutex mutex_;
  std::string log_;  // guarded by mutex_
};

TEST_F(EngineWithAPreparedPool, MadeForTheHostServesADeviceOfTheSameNodeAndIsRegisteredForIt) {
  const int node = node_here();
  put_near(node);  // -1 if the kernel does not tell
  Engine engine = open(automatic());
  prepare(engine, model_.state());
  const std::uint64_t pool_bytes = engine.stats().pool_bytes;
  EXPECT_LT(counters().pinned_bytes, pool_bytes) << "registered although no device was in use";
  ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  EXPECT_EQ(saved(1), expected());
  EXPECT_EQ(engine.stats().pool_bytes, pool_bytes);
  EXPECT_EQ(counters().spinning_waits, 0u) << "a copy into memory that is not registered blocks its caller";
  EXPECT_THAT(log(), Not(HasSubstr("made again")));
}

TEST_F(EngineWithAPreparedPool, MadeForTheHostIsMadeAgainNearTheDevice) {
  if (node_here() < 0) GTEST_SKIP() << "the kernel does not tell where memory is";
  put_near(63);
  Engine engine = open(automatic());
  prepare(engine, model_.state());
  const std::uint64_t pool_bytes = engine.stats().pool_bytes;
  EXPECT_EQ(engine.stats().pool_numa_node, -1);
  ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  EXPECT_EQ(engine.stats().pool_numa_node, 63);
  EXPECT_EQ(engine.stats().pool_bytes, pool_bytes);
  EXPECT_EQ(saved(1), expected());
  EXPECT_THAT(log(), HasSubstr("was prepared for memory that is far from the GPU, and is made again"));
  // Once: what a machine without that node gives is what there is.
  const std::size_t logged = log().size();
  ASSERT_TRUE(save(engine, 2).wait(Level::kCommitted));
  EXPECT_THAT(log().substr(logged), Not(HasSubstr("made again")));
}

TEST_F(EngineWithAPreparedPool, MadeForADeviceServesTheHost) {
  put_near(63);
  Engine engine = open(automatic());
  prepare(engine, state());
  const std::uint64_t pool_bytes = engine.stats().pool_bytes;
  auto snapshot = engine.save(1, model_.state());
  ASSERT_TRUE(snapshot && snapshot->has_value());
  ASSERT_TRUE((*snapshot)->wait(Level::kCommitted));
  EXPECT_EQ(saved(1), model_.copy());
  EXPECT_EQ(engine.stats().pool_bytes, pool_bytes);
  EXPECT_EQ(engine.stats().pool_numa_node, 63);
  EXPECT_THAT(log(), Not(HasSubstr("made again")));
}

TEST_F(EngineWithAPreparedPool, ARestoreOnTheHostBeforeTheFirstSaveOfADeviceIsTheSame) {
  if (node_here() < 0) GTEST_SKIP() << "the kernel does not tell where memory is";
  put_near(63);
  {
    Engine engine = open(automatic());
    ASSERT_TRUE(save(engine, 1).wait(Level::kCommitted));
  }
  Engine engine = open(automatic());
  Reader reader;
  ASSERT_TRUE(engine.restore({}, reader.plan()));
  EXPECT_EQ(reader.read, expected());
  queue_update();
  synchronize();
  ASSERT_TRUE(save(engine, 2).wait(Level::kCommitted));
  EXPECT_EQ(saved(2), expected());
  EXPECT_EQ(engine.stats().pool_numa_node, 63);
}

}  // namespace
}  // namespace slackwater::test
