#include "base/units.hpp"

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(ParseBytes, TakesPlainNumbersDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096u);
  EXPECT_EQ(parse_bytes("0").value(), 0u);
  EXPECT_EQ(parse_bytes("512MiB").value(), 512u << 20);
  EXPECT_EQ(parse_bytes("1.5 GiB").value(), 3ull << 29);
  EXPECT_EQ(parse_bytes("64kB").value(), 64'000u);
  EXPECT_EQ(parse_bytes(" 2gb ").value(), 2'000'000'000u);
  EXPECT_EQ(parse_bytes("3 B").value(), 3u);
  EXPECT_EQ(parse_bytes("0.1 MB").value(), 100'000u);
  EXPECT_EQ(parse_bytes("18446744073709551615").value(), ~std::uint64_t{0});
}

TEST(ParseBytes, NamesTheTextItDoesNotUnderstand) {
  for (const std::string_view bad :
       {"", " ", "MiB", "-1", "+1", "1.", ".5", "1e3", "5 apples", "1 2", "0x10", "512M", "1.5.2 GB", "nan"}) {
    const auto parsed = parse_bytes(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("'" + std::string(bad) + "'"), std::string::npos);
  }
}

TEST(ParseBytes, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(parse_bytes("18446744073709551616"));
  EXPECT_FALSE(parse_bytes("16384 PiB"));
  EXPECT_FALSE(parse_bytes("18446744073709551615 KiB"));
}

TEST(FormatBytes, KeepsThreeDigitsAndTheRightUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1000), "1000 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(4096), "4 KiB");
  EXPECT_EQ(format_bytes(10u << 10), "10 KiB");
  EXPECT_EQ(format_bytes((1u << 20) - 1), "1 MiB");
  EXPECT_EQ(format_bytes(1'320'000'000), "1.23 GiB");
  EXPECT_EQ(format_bytes(~std::uint64_t{0}), "16 EiB");
}

TEST(FormatBytes, IsReadByParseBytes) {
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, std::uint64_t{1536}, std::uint64_t{8} << 20, std::uint64_t{3} << 29}) {
    EXPECT_EQ(parse_bytes(format_bytes(bytes)).value(), bytes);
  }
}

TEST(FormatSeconds, ChoosesTheUnit) {
  EXPECT_EQ(format_seconds(0), "0 us");
  EXPECT_EQ(format_seconds(0.0000123), "12.3 us");
  EXPECT_EQ(format_seconds(0.0013), "1.3 ms");
  EXPECT_EQ(format_seconds(0.9999), "1 s");
  EXPECT_EQ(format_seconds(2.04), "2.04 s");
  EXPECT_EQ(format_seconds(61), "61 s");
  EXPECT_EQ(format_seconds(125), "2 min 5 s");
  EXPECT_EQ(format_seconds(7265), "2 h 1 min");
  EXPECT_EQ(format_seconds(-0.5), "-500 ms");
}

TEST(Round, GoesToTheMultipleOrStays) {
  EXPECT_EQ(round_up(0, 4096), 0u);
  EXPECT_EQ(round_up(1, 4096), 4096u);
  EXPECT_EQ(round_up(4096, 4096), 4096u);
  EXPECT_EQ(round_down(4095, 4096), 0u);
  EXPECT_EQ(round_down(8191, 4096), 4096u);
}

}  // namespace
}  // namespace slackwater
