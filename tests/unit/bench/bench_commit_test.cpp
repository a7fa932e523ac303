// `slackwater_bench commit`: its short form from outside, and what its figures rest on.
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/commit/counting_store.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(BenchCommitTest, ShowsTheWayOfADecisionOverBothMediaAndWhatItCosts) {
  const test::TempDir directory(test::TempDir::in_memory());
  const std::string file = directory / "figures.json";
  const std::string command = std::string(SLACKWATER_BENCH_BINARY) + " commit --quick --dir " + directory.path() +
                              " --json " + file + " >" + (directory / "stdout") + " 2>" + (directory / "stderr");
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 0) << test::read_file_text(directory / "stderr");
  const std::string out = test::read_file_text(directory / "stdout");
  EXPECT_THAT(out, HasSubstr("The way of a decision"));
  EXPECT_THAT(out, HasSubstr("The plan to restore"));

  const json figures = json::parse(test::read_file_text(file));
  ASSERT_EQ(figures["commits"].size(), 4u);  // 4 and 32 ranks, directory and store
  for (const json& row : figures["commits"]) {
    EXPECT_GT(row["path_s"], 0) << row;
    EXPECT_GT(row["total_cpu_s"], row["leader_cpu_s"]) << row;
    EXPECT_GT(row["index_bytes"], 0) << row;
    EXPECT_EQ(row["report_s"] > 0, row["ranks"] == 32) << "only where there are several groups: " << row;
    EXPECT_EQ(row["at_once_s"] > 0, row["ranks"] == 4) << row;
    if (row["medium"] != "store") continue;
    // Of 32 ranks in groups of 8 the leader hears 7 members and 3 group leaders, a group leader 7 members; a member
    // hears the outcome.
    const double messages = row["leader"]["messages"];
    EXPECT_GE(messages, row["ranks"] == 32 ? 10 : 3) << row;
    EXPECT_LT(row["member"]["messages"], 10) << row;
    EXPECT_LT(row["leader"]["bytes"], row["first_leader"]["bytes"]) << "the index goes over once: " << row;
  }
  ASSERT_EQ(figures["saves"].size(), 2u);
  EXPECT_EQ(figures["saves"][1]["ranks"], 8);
  ASSERT_EQ(figures["restores"].size(), 1u);
  EXPECT_EQ(figures["restores"][0]["shards"], 10'000);
  EXPECT_GT(figures["restores"][0]["reads"], 0);
  // Everything it made is gone.
  EXPECT_NE(std::system(("ls -d " + directory.path() + "/slackwater-bench-* >/dev/null 2>&1").c_str()), 0);
}

TEST(CountingStoreTest, CountsWhatPassesAndPassesItUnchanged) {
  MemoryStore memory;
  CountingStore store(memory);
  ASSERT_TRUE(store.set("key", "value"));
  const auto got = store.get({"key", "missing"});
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->at(0), "value");
  EXPECT_EQ(got->at(1), std::nullopt);
  const CountingStore::Counts counts = store.take();
  EXPECT_EQ(counts.calls, 2u);
  EXPECT_EQ(counts.values, 2u);
  EXPECT_EQ(counts.bytes, 3u + 5 + 3 + 7 + 5);
  EXPECT_EQ(store.take().calls, 0u);
  store.remove({"key"});
  EXPECT_EQ(memory.get({"key"}).value().at(0), std::nullopt);
}

}  // namespace
}  // namespace slackwater::bench
