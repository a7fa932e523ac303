#include "tiers/tier_probes.hpp"

#include <gtest/gtest.h>

#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {
namespace {

TEST(TierProbes, AProbeThatEndsWithAnExceptionIsAnAnswer) {
  const TempDir directory;
  const auto real = make_posix_file_system();
  FaultFileSystem fs(*real);
  fs.raise(FsCall::kList);
  TierProbes probes;
  const std::vector<TierPlace> tiers{{&fs, directory.path()}};
  const auto first = probes.ask(tiers, {});
  ASSERT_TRUE(first.unreachable.contains(0));
  EXPECT_EQ(first.unreachable.at(0).kind, ErrorKind::kOutOfMemory);
  EXPECT_TRUE(probes.ask(tiers, {}).unreachable.empty()) << "the next restore asks again";
}

}  // namespace
}  // namespace slackwater::test
