#include "commit/names.hpp"

#include <string>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(Names, VersionDirectoriesLeadBack) {
  EXPECT_EQ(version_directory({42, 7}), "step-0000000042.a7");
  for (const VersionName version : {VersionName{0, 1}, VersionName{42, 7}, VersionName{UINT64_MAX, UINT32_MAX}}) {
    EXPECT_EQ(parse_version_directory(version_directory(version)), version);
    EXPECT_EQ(parse_pin_file(pin_file(version)), version);
  }
}

TEST(Names, OnlyOurOwnSpellingIsAVersion) {
  for (const char* name :
       {"", "step-", "step-42.a7", "step-0000000042", "step-0000000042.a", "step-0000000042.a07", "step-0000000042.a7x",
        "step--000000042.a7", "step-00000000042.a7", "step-0000000042.a7/..", "step-99999999999999999999.a1",
        "step-0000000042.a4294967296", "Step-0000000042.a7", "pin-0000000042.a7"}) {
    EXPECT_FALSE(parse_version_directory(name).has_value()) << name;
  }
}

TEST(Names, AttemptFilesLeadBack) {
  EXPECT_EQ(attempt_file(7), "attempt-0007.json");
  EXPECT_EQ(parse_attempt_file("attempt-0007.json"), 7u);
  EXPECT_EQ(parse_attempt_file(attempt_file(123456)), 123456u);
  for (const char* name :
       {"attempt-7.json", "attempt-0007.json.tmp", ".attempt-0007.json", "attempt-00007.json", "attempt-.json"}) {
    EXPECT_FALSE(parse_attempt_file(name).has_value()) << name;
  }
}

TEST(Names, OnlyFilesWeMakeAreOurs) {
  for (const std::string& name :
       {data_file(0, 0), data_file(12, 3), data_file(123456, 0), record_file(0), std::string(kIndexName),
        std::string(kManifestName), std::string(".manifest.json.abc-0.tmp")}) {
    EXPECT_TRUE(is_version_file(name)) << name;
  }
  for (const char* name :
       {"", "notes.txt", "rank-0.safetensors", "rank-00000.safetensors.bak", "rank-00000-0.safetensors",
        "rank-00000.bin", "manifest.json.bak", ".manifest.json", "Index", "rank-00000-.safetensors", "rank-.record"}) {
    EXPECT_FALSE(is_version_file(name)) << name;
  }
}

TEST(Names, PlainNamesStayInTheirDirectory) {
  EXPECT_TRUE(is_plain_name("rank-00000.safetensors"));
  EXPECT_TRUE(is_plain_name("..."));
  EXPECT_TRUE(is_plain_name(std::string(255, 'x')));
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../x"), std::string("/etc/passwd"),
        std::string("a/b"), std::string("a\0b", 3), std::string(256, 'x')}) {
    EXPECT_FALSE(is_plain_name(name)) << name;
  }
}

}  // namespace
}  // namespace slackwater
