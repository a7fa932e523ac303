#include "version/names.hpp"

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

TEST(Names, AThousandAndTwentyFourRanksShareADirectory) {
  for (const std::uint32_t world : {1u, 4u, 1024u}) {
    const RankFiles files = RankFiles::of_world(world);
    EXPECT_EQ(files.directory(world - 1), "");
    EXPECT_EQ(files.data(world - 1, 2), data_file(world - 1, 2));
    EXPECT_EQ(files.record(world - 1), record_file(world - 1));
  }
  const RankFiles files = RankFiles::of_world(1025);
  EXPECT_EQ(files.directory(1023), "g0000");
  EXPECT_EQ(files.directory(1024), "g0001");
  EXPECT_EQ(files.record(3072), "g0003/rank-03072.record");
  EXPECT_EQ(files.data(3071, 0), "g0002/rank-03071.safetensors");
  EXPECT_EQ(files.data(3072, 1), "g0003/rank-03072-1.safetensors");
  EXPECT_EQ(RankFiles{.ranks_in_directory = 1}.directory(123'456), "g123456");
}

TEST(Names, FilesOfARankAreKnownInItsSubdirectoryAndNowhereElse) {
  const RankFiles files = RankFiles::of_world(4096);
  for (const std::uint32_t part : {0u, 1u, 17u}) {
    EXPECT_EQ(rank_of_file(files.data(3072, part)), 3072u);
    EXPECT_TRUE(files.is_data(files.data(3072, part), 3072));
    EXPECT_FALSE(files.is_data(files.data(3072, part), 3073));
    EXPECT_FALSE(files.is_data(data_file(3072, part), 3072));
    EXPECT_FALSE(files.is_data(data_file(3072, part, "g0002"), 3072)) << "the wrong group";
    EXPECT_FALSE(RankFiles{}.is_data(files.data(3072, part), 3072));
    EXPECT_TRUE(RankFiles{}.is_data(data_file(3072, part), 3072));
  }
  EXPECT_EQ(rank_of_file(files.record(3072)), 3072u);
  EXPECT_FALSE(files.is_data(files.record(3072), 3072));
}

TEST(Names, FailureNotesAreOursAndNoFilesOfARank) {
  const std::string name = failure_note_file({.rank = 3, .attempt = 7});
  EXPECT_EQ(name, "rank-00003.a7.failed");
  const auto note = parse_failure_note_file(name);
  ASSERT_TRUE(note);
  EXPECT_EQ(note->rank, 3u);
  EXPECT_EQ(note->attempt, 7u);
  EXPECT_TRUE(is_version_file(name)) << "it is deleted with its version";
  EXPECT_FALSE(rank_of_file(name));
  for (const char* other : {"rank-3.a7.failed", "rank-00003.a07.failed", "rank-00003.failed", "rank-00003.a7.failed2",
                            "rank-00003.a.failed", "xrank-00003.a7.failed"})
    EXPECT_FALSE(parse_failure_note_file(other)) << other;
}

TEST(Names, OnlyOurOwnSpellingIsASubdirectory) {
  for (const char* name : {"g0000", "g0003", "g9999", "g12345"}) EXPECT_TRUE(is_rank_directory(name)) << name;
  for (const char* name : {"", "g", "g3", "g003", "g00003", "g-001", "g+001", "G0003", "g0003/", "g0003x", "xg0003",
                           "g4294967296", "..", "g0003/g0003"}) {
    EXPECT_FALSE(is_rank_directory(name)) << name;
  }
}

TEST(Names, NamesInSubdirectoriesLeadNowhereElse) {
  for (const char* name : {"rank-00000.safetensors", "notes.txt", "g0003/rank-03072.safetensors",
                           "g0003/rank-03072-2.safetensors", "g0000/rank-00000.record"}) {
    EXPECT_TRUE(stays_in_version(name)) << name;
  }
  using namespace std::string_literals;
  for (const std::string& name : {""s,
                                  "."s,
                                  ".."s,
                                  "/x"s,
                                  "/rank-00000.record"s,
                                  "g0003/"s,
                                  "g0003/../x"s,
                                  "g0003/../rank-00000.record"s,
                                  "g0003//x"s,
                                  "g0003//rank-03072.record"s,
                                  "g3/.."s,
                                  "g3/rank-00003.record"s,
                                  "g0003/.."s,
                                  "g0003/index"s,
                                  "g0003/manifest.json"s,
                                  "g0003/notes.txt"s,
                                  "g0003/g0003/rank-03072.record"s,
                                  "../g0003/rank-03072.record"s,
                                  "./g0003/rank-03072.record"s,
                                  "/g0003/rank-03072.record"s,
                                  "g0003/./rank-03072.record"s,
                                  "g0003/rank-03072.record/"s,
                                  "g0003/rank-3072.record"s,
                                  "g0003/rank-03072.record\0"s,
                                  "g0003\0/rank-03072.record"s,
                                  "G0003/rank-03072.record"s,
                                  "step-0000000001.a1/rank-00000.record"s}) {
    EXPECT_FALSE(stays_in_version(name)) << name;
    EXPECT_FALSE(is_version_file(name)) << name;
  }
  EXPECT_FALSE(is_version_file("g0003/rank-03072.record")) << "it is a name of one directory";
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
