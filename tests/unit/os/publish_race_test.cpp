#include <atomic>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/thread.hpp"
#include "os/durable.hpp"
#include "support/temp_dir.hpp"

namespace slackwater {
namespace {

TEST(PublishExclusively, OneOfManyWritersWinsAndAllSeeItsBytes) {
  const test::TempDir dir;
  const auto fs = make_posix_file_system();
  for (int round = 0; round < 5; ++round) {
    const std::string name = "manifest-" + std::to_string(round);
    std::atomic<int> winners = 0;
    std::atomic<int> winner = -1;
    std::atomic<int> losers = 0;
    {
      std::vector<std::jthread> writers;
      for (int id = 0; id < 4; ++id) {
        writers.push_back(start_thread("writer", [&, id](std::stop_token) {
          const Status published =
              publish_exclusively(*fs, dir.path(), name, "writer " + std::to_string(id), std::to_string(id));
          if (published) {
            ++winners;
            winner = id;
          } else if (published.error().kind == ErrorKind::kAlreadyExists) {
            ++losers;
          }
        }));
      }
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(losers, 3);
    EXPECT_EQ(read_whole(*fs, dir / name, 100).value(), "writer " + std::to_string(winner));
  }
  EXPECT_EQ(fs->list(dir.path())->size(), 5u);
}

}  // namespace
}  // namespace slackwater
