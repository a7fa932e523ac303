// main() of a program that several tests are linked into (slackwater_test(... PROGRAM) in tests/**/CMakeLists.txt).
// Each test is a link to the program. Called by the name of a test, it runs that test's source files only, with
// whatever --gtest_filter asks for among them. Called by its own name it runs everything.
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace slackwater::test {
namespace {

// SLACKWATER_TEST_SOURCES is "test=file.cpp,test=file.cpp".
std::set<std::string> sources_of(const std::string& name) {
  std::set<std::string> sources;
  std::istringstream entries(SLACKWATER_TEST_SOURCES);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t equals = entry.find('=');
    if (entry.substr(0, equals) == name) sources.insert(entry.substr(equals + 1));
  }
  return sources;
}

// GoogleTest has no way to select by source file, but a filter can take away: what the other files hold, by name.
std::string without_other_sources(std::string filter, const std::set<std::string>& sources) {
  char separator = filter.find('-') == std::string::npos ? '-' : ':';
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (sources.contains(std::filesystem::path(test.file()).filename().string())) continue;
      filter += separator;
      filter += std::string(suite.name()) + "." + test.name();
      separator = ':';
    }
  }
  return filter;
}

}  // namespace
}  // namespace slackwater::test

int main(int argc, char** argv) {
  namespace test = slackwater::test;
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  testing::InitGoogleTest(&argc, argv);
  const std::set<std::string> sources = test::sources_of(name);
  if (!sources.empty()) {
    GTEST_FLAG_SET(filter, test::without_other_sources(GTEST_FLAG_GET(filter), sources));
  } else if (name != SLACKWATER_TEST_PROGRAM) {
    std::fprintf(stderr, "%s: no test of this program has that name\n", argv[0]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
