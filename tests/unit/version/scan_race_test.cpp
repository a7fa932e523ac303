// A reader takes no lock: it must cope with a writer that commits and deletes under its eyes.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "store_fixture.hpp"

namespace slackwater::test {
namespace {

using ScanRaceTest = StoreTest;

TEST_F(ScanRaceTest, AReaderAlwaysSeesACheckpointWhileOneIsKept) {
  auto store = open_store();
  const Attempt attempt = claim(*store);
  commit(*store, attempt, 1);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (std::uint64_t step = 2; step <= 40; ++step) {
      commit(*store, attempt, step);
      EXPECT_TRUE(store->clean_up({.keep = 1}).has_value());
    }
    done = true;
  });
  std::uint64_t newest = 1;
  int scans = 0;
  while (!done || scans == 0) {
    const auto catalog = scan_catalog(fs_, root());
    ++scans;
    if (!catalog) {
      ADD_FAILURE() << catalog.error().to_string();
      break;
    }
    for (const CatalogEntry& entry : catalog->entries) EXPECT_NE(entry.state, VersionState::kUnreadable);
    const auto versions = catalog->live_versions();
    if (versions.empty()) continue;  // possible only if the names changed during each of several listings
    EXPECT_GE(versions.back().step, newest);
    newest = versions.back().step;
  }
  writer.join();
  EXPECT_EQ(live(), "40.a1");
}

}  // namespace
}  // namespace slackwater::test
