#include "ranks/message_names.hpp"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "version/names.hpp"

namespace slackwater {
namespace {

std::vector<DirectoryEntry> entries_of(const std::vector<std::string>& names) {
  std::vector<DirectoryEntry> entries;
  for (const std::string& name : names) entries.push_back({name, FileType::kRegular});
  std::ranges::sort(entries, {}, &DirectoryEntry::name);
  return entries;
}

TEST(MessageNames, AFileIsCalledByWhatItIsAbout) {
  const Topic topic{"votes", 7, 42};
  EXPECT_EQ(message_file(topic, 3), "7.42.3");
  const auto parsed = parse_message_file("7.42.3");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->attempt, 7u);
  EXPECT_EQ(parsed->step, 42u);
  EXPECT_EQ(parsed->rank, 3u);
  EXPECT_FALSE(parse_name_piece("7.42.3")) << "it holds the whole text";
  EXPECT_NE(message_file({"votes", 7, 43}, 3), "7.42.3");
  EXPECT_NE(message_file({"votes", 8, 42}, 3), "7.42.3");
}

TEST(MessageNames, OtherNamesAreNone) {
  for (const char* const name : {"", "7.42", "7.42.", "7.42.3x", "7.42.3.4", "-7.42.3", ".7.42.3.abc.tmp", "7.42.3=",
                                 "7.42.3=abc", "7.42.3=01234567.0.1", "7.42.3=01234567.1.1.00", "7.42.3=01234567.0.1.0",
                                 "7.42.3=01234567.0.1.zz", "7.42.3=01234567.0.0.00", "reserve"}) {
    EXPECT_FALSE(parse_message_file(name)) << name;
    EXPECT_FALSE(parse_name_piece(name)) << name;
  }
}

TEST(MessageNames, ATextIsSpelledInNamesAndReadBackOnceAllAreThere) {
  std::string text;
  for (int byte = 0; byte < 1000; ++byte) text += static_cast<char>(byte);
  for (const std::size_t size : {1u, 95u, 96u, 97u, 192u, 1000u}) {
    SCOPED_TRACE(size);
    const std::string part = text.substr(0, size);
    const std::vector<std::string> names = spell_in_names("7.42.3", part);
    ASSERT_EQ(names.size(), (size + 95) / 96);
    for (std::size_t number = 0; number < names.size(); ++number) {
      const auto parsed = parse_name_piece(names[number]);
      ASSERT_TRUE(parsed);
      EXPECT_FALSE(parse_message_file(names[number])) << "it is only a piece";
      EXPECT_EQ(parsed->completes(), number + 1 == names.size());
    }
    const NamePiece last = parse_name_piece(names.back()).value();
    EXPECT_EQ(last.file, "7.42.3");
    EXPECT_EQ(spelled_text(entries_of(names), last), part);
    for (std::size_t missing = 0; missing < names.size(); ++missing) {
      std::vector<std::string> rest = names;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(missing));
      EXPECT_EQ(spelled_text(entries_of(rest), last), std::nullopt);
    }
  }
}

TEST(MessageNames, PiecesOfOtherTextsDoNotMix) {
  std::vector<std::string> names;
  std::vector<std::pair<NamePiece, std::string>> said;  // the name that completes it, and the text
  const auto say = [&](const Topic& topic, std::uint32_t rank, char letter) {
    for (std::string& name : spell_in_names(message_file(topic, rank), std::string(300, letter)))
      names.push_back(std::move(name));
    said.emplace_back(parse_name_piece(names.back()).value(), std::string(300, letter));
  };
  say({"votes", 7, 42}, 3, 'a');
  say({"votes", 7, 42}, 3, 'b');
  say({"votes", 7, 42}, 2, 'a');
  say({"votes", 7, 41}, 3, 'a');
  say({"votes", 6, 42}, 3, 'a');
  names.emplace_back("7.42.3");
  for (const auto& [last, text] : said) EXPECT_EQ(spelled_text(entries_of(names), last), text);
  // Of the same text, and so of the same digest: each is complete by itself or not at all.
  for (const auto& [last, text] : said) {
    std::vector<std::string> rest = names;
    const std::string first = spell_in_names(last.file, text).front();
    std::erase(rest, first);
    EXPECT_EQ(spelled_text(entries_of(rest), last), std::nullopt) << first;
  }
}

TEST(MessageNames, NoNameIsLongerThanAFileSystemTakes) {
  constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
  const Topic topic{"votes", kMost, std::numeric_limits<std::uint64_t>::max()};
  const std::string file = message_file(topic, kMost);
  const std::vector<std::string> names = spell_in_names(file, std::string(4096 * 96, 'x'));
  ASSERT_EQ(names.size(), 4096u);
  for (const std::string& name : names) EXPECT_TRUE(is_plain_name(name)) << name.size();
  EXPECT_TRUE(spell_in_names(file, std::string(4096 * 96 + 1, 'x')).empty());
}

}  // namespace
}  // namespace slackwater
