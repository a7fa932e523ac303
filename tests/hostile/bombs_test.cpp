// Small files that ask for much memory or time: each is refused with one sentence, and the step before is used. Their
// digests fit: whoever can write the directory can write those too.
#include <fcntl.h>

#include "base/json.hpp"
#include "hostile_fixture.hpp"
#include "layout/safetensors_header.hpp"
#include "support/effort.hpp"
#include "version/fields.hpp"
#include "version/index.hpp"

namespace slackwater {
namespace {

using test::HostileTest;
using testing::HasSubstr;

constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;
// A file of step 2 as the engine would have written it; `more` are further members of its metadata.
std::string identity(const std::string& more = {}) {
  return R"("__metadata__":{"slackwater":"1","step":"2","attempt":"1","rank":"0","world":"1")" + more + "}";
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string result;
  result.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) result += text;
  return result;
}

class BombsTest : public HostileTest {
 protected:
  void expect_refused(const std::string& file, const std::string& why) {
    const Status read = read_step(2);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().kind, ErrorKind::kCorrupt);
    EXPECT_THAT(read.error().to_string(), HasSubstr(why));
    EXPECT_THAT(read.error().to_string(), HasSubstr(file));
    EXPECT_LT(read.error().to_string().size(), 1000u);
    EXPECT_EQ(*restore_newest(), 1u);
  }
};

TEST_F(BombsTest, AManifestOfManyLevelsIsRefused) {
  test::write_file_text(in_version(kManifestName),
                        seal_json_text("{\"a\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']')));
  expect_refused(kManifestName, "nested deeper");
  EXPECT_THAT(command("ls --all " + root()).out, HasSubstr("2"));
}

TEST_F(BombsTest, AManifestOfManySmallValuesIsRefusedBeforeTheyFillTheMemory) {
  test::write_file_text(in_version(kManifestName), seal_json_text("{\"a\":[" + repeated("0,", kMaxJsonValues) + "0]"));
  EXPECT_THAT(read_step(2).error().to_string(), HasSubstr("more than 4000000 values"));
  if (!test::kSanitized) expect_refused(kManifestName, "more than 4000000 values");  // which reads it five times
}

TEST_F(BombsTest, AManifestWithTheSameKeyTwiceIsRefused) {
  std::string text = test::read_file_text(in_version(kManifestName));
  text = text.substr(0, text.find(",\"digest\":\"", text.find("tensor_count")));
  test::write_file_text(in_version(kManifestName), seal_json_text(text + ",\"world\":1"));
  expect_refused(kManifestName, "twice");
}

TEST_F(BombsTest, SparseFilesOfATebibyteAreRefusedUnread) {
  for (const std::string& path : {in_version(kManifestName), in_version(kRecord), in_version(kData)}) {
    const std::string text = test::read_file_text(path);
    ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(kTiB)), 0);
    EXPECT_EQ(read_step(2).error().kind, ErrorKind::kCorrupt) << path;
    EXPECT_EQ(*restore_newest(), 1u) << path;
    test::write_file_text(path, text);
  }
  for (const std::string& path : {in_version(kIndexName), control(attempt_file(1))}) {
    const std::string text = test::read_file_text(path);
    ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(kTiB)), 0);
    EXPECT_EQ(*restore_newest(), 2u) << path;
    const Outcome verified = command("verify " + root());
    EXPECT_THAT(verified.out + verified.err, HasSubstr("larger (1 TiB)")) << path;
    test::write_file_text(path, text);
  }
}

TEST_F(BombsTest, ARecordOfAHundredThousandFilesTakesNoSquareOfThem) {
  Record record = test::must(parse_record(test::read_file_text(in_version(kRecord)), "record"));
  const std::size_t many = test::kSanitized ? 10'000 : 100'000;
  for (std::size_t i = 0; i < many; ++i)
    record.files.push_back({fmt::format("rank-00000-{}.safetensors", i + 1), 0, 0, {}});
  EXPECT_EQ(test::must(parse_record(serialize(record), "record")).files.size(), many + 1);
  publish(serialize(record), record.files[0].size_bytes);
  expect_refused("rank-00000-1.safetensors", "missing");
  record.files.push_back(record.files.back());
  EXPECT_THAT(parse_record(serialize(record), "record").error().message, HasSubstr("twice"));
}

TEST_F(BombsTest, TiedTensorsThatRepeatALongShapeAreRefused) {
  std::string aliases;
  for (int i = 0; i < 10'000; ++i) aliases += fmt::format("\\\"{}\\\":\\\"w\\\",", i);
  aliases.pop_back();
  const std::string metadata = fmt::format(R"(,"aliases":"{{{}}}")", aliases);
  publish_data("{" + identity(metadata) + R"(,"w":{"dtype":"U8","shape":[)" + repeated("1,", 2999) +
                   R"(1],"data_offsets":[0,1]}})",
               1);
  expect_refused(kData, "dimensions in all");
}

TEST_F(BombsTest, OverlappingAndOverflowingOffsetsAreRefused) {
  const auto tensor = [](const char* name, const std::string& shape, std::uint64_t begin, std::uint64_t end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":{},"data_offsets":[{},{}]}})", name, shape, begin, end);
  };
  const std::string front = "{" + identity() + ",";
  publish_data(front + tensor("a", "[3]", 0, 3) + "," + tensor("w", "[2]", 2, 4) + "}", 4);
  expect_refused(kData, "overlap");
  publish_data(front + tensor("w", "[18446744073709551615]", 0, 4) + "}", 4);
  expect_refused(kData, "2^63");
  publish_data(front + tensor("w", "[4294967296,4294967296,4]", 0, 4) + "}", 4);
  expect_refused(kData, "not its shape");
  publish_data(front + tensor("w", "[4]", 0, 4) + "," + tensor("w", "[4]", 0, 4) + "}", 4);
  expect_refused(kData, "overlap");
  publish_data(front + tensor("w", "[4]", std::uint64_t{1} << 60, (std::uint64_t{1} << 60) + 4) + "}", 4);
  expect_refused(kData, "of 4 bytes of data");
}

TEST_F(BombsTest, ShardsThatRepeatALongShapeAreRefused) {
  const auto index = [](const std::string& shape, const std::string& shards) {
    return parse_index(seal_json_text(R"({"format":1,"files":["f"],"tensors":[{"name":"a","dtype":"uint8","shape":[)" +
                                      shape + "],\"shards\":[" + shards + "]}]"),
                       "index");
  };
  EXPECT_TRUE(index("1", repeated("[0,0,1],", 9) + "[0,0,1]"));
  const auto refused = index(repeated("1,", 2999) + "1", repeated("[0,0,1],", 9999) + "[0,0,1]");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("dimensions"));
}

TEST_F(BombsTest, AShapeThatFollowsItsShardsDoesNotUndoTheirCheck) {
  const std::string entry = R"({"name":"a","dtype":"uint8","shape":[9],"shards":[[0,0,9]],"shape":[1]})";
  const auto refused = parse_index(seal_json_text(R"({"format":1,"files":["f"],"tensors":[)" + entry + "]"), "index");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("twice or in the wrong place"));
}

TEST_F(BombsTest, ADirectoryFullOfStrangersIsListedInOneGo) {
  const int many = test::kSanitized ? 10'000 : 100'000;
  for (int i = 0; i < many; ++i) {
    const int file = ::open(fmt::format("{}/{}{}", root(), i % 2 == 0 ? "x" : "step-x", i).c_str(),
                            O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    ::close(file);
  }
  EXPECT_EQ(*restore_newest(), 2u);
  const Outcome listed = command("ls " + root());
  EXPECT_EQ(listed.code, 0);
  EXPECT_LT(std::ranges::count(listed.err, '\n'), 30) << "a line for each would hide what matters";
  EXPECT_THAT(listed.err, HasSubstr(fmt::format("{} more like these", many / 2 - 20)));
}

TEST_F(BombsTest, ManyAttemptsWithoutTheirFilesTakeNoSquareOfThem) {
  constexpr std::uint32_t kMany = 5'000;
  for (std::uint32_t i = 0; i < kMany; ++i)
    ASSERT_EQ(::mkdir((root() + "/" + version_directory({1000 + i, 10 + i})).c_str(), 0700), 0);
  EXPECT_EQ(*restore_newest(), 2u);
  EXPECT_EQ(test::must(list_versions(root())).size(), 2u);
}

TEST_F(BombsTest, ATreeOfManyLevelsIsShownWithoutIndentingThemAll) {
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  publish_data("{" + identity(fmt::format(R"(,"tree":"{}")", deep)) + "}", 0);
  const Outcome shown = command("show " + root());
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_LT(shown.out.size(), 10'000u);
}

TEST_F(BombsTest, NamesThatDriveATerminalComeOutEscaped) {
  publish_data("{" + identity(R"(,"metadata":"{\"k\":\"\\u001b[2J\"}")") +
                   R"(,"\u001b]0;gone\u0007":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
               1);
  ASSERT_EQ(::mkdir((root() + "/step-\x1b[2J").c_str(), 0700), 0);
  for (const char* verb : {"ls ", "show ", "verify "}) {
    const Outcome outcome = command(verb + root());
    EXPECT_EQ((outcome.out + outcome.err).find('\x1b'), std::string::npos) << verb;
  }
  EXPECT_THAT(command("show " + root()).out, HasSubstr("\\u001b]0;gone"));
}

}  // namespace
}  // namespace slackwater
