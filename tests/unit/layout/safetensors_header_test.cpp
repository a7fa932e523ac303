#include "layout/safetensors_header.hpp"

#include <string>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

Result<ParsedHeader> parse(const std::string& json, std::uint64_t data_bytes) {
  return parse_header(json, 8 + json.size() + data_bytes, "file.safetensors");
}

void expect_error(const std::string& json, std::uint64_t data_bytes, std::string_view words,
                  ErrorKind kind = ErrorKind::kCorrupt) {
  const auto header = parse(json, data_bytes);
  ASSERT_FALSE(header.has_value()) << json;
  EXPECT_EQ(header.error().kind, kind) << json;
  EXPECT_EQ(header.error().path, "file.safetensors");
  EXPECT_NE(header.error().message.find(words), std::string::npos) << header.error().message;
}

std::string word(std::uint64_t length) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  return text;
}

constexpr const char* kOurs = R"("format":"pt","slackwater":"1","step":"5","attempt":"1","rank":"0","world":"1")";

std::string ours(const std::string& more_metadata, const std::string& tensors) {
  return std::string("{\"__metadata__\":{") + kOurs + more_metadata + "}" + tensors + "}";
}

TEST(HeaderBytes, LengthIsBoundedByTheFileAndByTheFormat) {
  EXPECT_EQ(header_bytes(word(100), 108, "f"), 100u);
  for (const std::uint64_t claimed :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{101}, std::uint64_t{1} << 60, UINT64_MAX}) {
    const auto length = header_bytes(word(claimed), 108, "f");
    ASSERT_FALSE(length.has_value()) << claimed;
    EXPECT_EQ(length.error().kind, ErrorKind::kCorrupt);
  }
  EXPECT_FALSE(header_bytes(word(kMaxHeaderBytes + 1), UINT64_MAX, "f").has_value());
  EXPECT_TRUE(header_bytes(word(kMaxHeaderBytes), UINT64_MAX, "f").has_value());
  EXPECT_FALSE(header_bytes("", 0, "f").has_value());
  EXPECT_FALSE(header_bytes(word(2).substr(0, 7), 100, "f").has_value());
}

TEST(ParseHeader, AFileOfTheStockLibraryHasNoIdentity) {
  // Not in the order of the data, and with spaces at the end.
  const std::string json =
      R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},"__metadata__":{"format":"pt","step":"x"},)"
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )";
  const auto header = parse(json, 11);
  ASSERT_TRUE(header.has_value()) << header.error().to_string();
  EXPECT_FALSE(header->has_identity);
  EXPECT_EQ(header->metadata.at("step"), "x");
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].offset, header->data_offset + 8);
  EXPECT_EQ(header->tensors[1].offset, header->data_offset);
  EXPECT_TRUE(parse("{}", 0).has_value());
}

TEST(ParseHeader, DamageIsNamedWithTheTensor) {
  expect_error("", 0, "an object is expected");
  expect_error("[]", 0, "an object is expected");
  expect_error("{} x", 0, "the end of the text");
  expect_error(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8, "near byte");
  expect_error(R"({"t":{"dtype":"F32","shape":[2]}})", 0, "lacks dtype, shape or data_offsets of tensor 't'");
  expect_error(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8, "unknown field 'x' in tensor 't'");
  expect_error(R"({"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, "twice");
  expect_error(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "no pair of offsets for tensor 't'");
  expect_error(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8, "no pair of offsets");
  expect_error(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}})", 8, "places tensor 't' at bytes 0 to 9");
  expect_error(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "places tensor 't'");
  expect_error(R"({"t":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "gives tensor 't' 8 bytes");
  expect_error(R"({"t":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
               "gives tensor 't' 0 bytes");
  expect_error(R"({"t":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "whole number");
  expect_error(R"({"t":{"dtype":"F32","shape":[[[[2]]]],"data_offsets":[0,8]}})", 8, "whole number");
  expect_error(R"({"t":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}})", 8, "2^64");
  expect_error("{\"t\xff\":{}}", 0, "UTF-8");
}

TEST(ParseHeader, HolesAndOverlapsAreFound) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  expect_error("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9,
               "leaves a hole before tensor 'b'");
  expect_error("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7,
               "has an overlap with tensor 'b'");
  expect_error("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, "overlap");
  expect_error("{" + a + "}", 5, "describes 4 bytes of data, the file has 5");
  expect_error(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "hole");
}

TEST(ParseHeader, DuplicateKeysAreRefused) {
  const std::string t = R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_error("{" + t + "," + t + "}", 0, "has the tensor 't' twice");
  expect_error(R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' twice");
  expect_error(R"({"__metadata__":{"a":"1","a":"2"}})", 0, "metadata key 'a' twice");
  expect_error(R"({"__metadata__":{"a":1}})", 0, "a text in quotes");
}

TEST(ParseHeader, UnknownDtypeOrFormatIsUnsupported) {
  expect_error(R"({"t":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1, "'F4'", ErrorKind::kUnsupported);
  expect_error(R"({"__metadata__":{"slackwater":"2"}})", 0, "format '2'", ErrorKind::kUnsupported);
}

TEST(ParseHeader, OurMetadataMustBeWhole) {
  EXPECT_TRUE(parse(ours("", ""), 0).has_value());
  expect_error(R"({"__metadata__":{"slackwater":"1","step":"5","attempt":"1","rank":"0"}})", 0, "'world'");
  expect_error(R"({"__metadata__":{"slackwater":"1","step":"-5","attempt":"1","rank":"0","world":"1"}})", 0, "'step'");
  expect_error(R"({"__metadata__":{"slackwater":"1","step":"5","attempt":"4294967296","rank":"0","world":"1"}})", 0,
               "'attempt'");
  expect_error(R"({"__metadata__":{"slackwater":"1","step":"5","attempt":"1","rank":"1","world":"1"}})", 0,
               "rank 1 of a world of 1");
  expect_error(ours(R"(,"metadata":"[]")", ""), 0, "wrong metadata 'metadata'");
}

TEST(ParseHeader, AliasesAndDtypesMustReferToTensorsThatExist) {
  const std::string t = R"(,"t":{"dtype":"F64","shape":[1,2],"data_offsets":[0,16]})";
  EXPECT_TRUE(parse(ours(R"(,"aliases":"{\"u\":\"t\"}")", t), 16).has_value());
  expect_error(ours(R"(,"aliases":"{\"u\":\"x\"}")", t), 16, "ties 'u' to 'x'");
  expect_error(ours(R"(,"aliases":"{\"t\":\"t\"}")", t), 16, "has the tensor 't' twice");
  expect_error(ours(R"(,"aliases":"{\"u\":\"t\",\"v\":\"u\"}")", t), 16, "ties 'v' to 'u'");
  EXPECT_TRUE(parse(ours(R"(,"dtypes":"{\"t\":\"complex128\"}")", t), 16).has_value());
  expect_error(ours(R"(,"dtypes":"{\"t\":\"complex32\"}")", t), 16, "does not store it as such");
  expect_error(ours(R"(,"dtypes":"{\"t\":\"float32\"}")", t), 16, "does not store it as such");
  expect_error(ours(R"(,"dtypes":"{\"x\":\"complex128\"}")", t), 16, "gives a dtype to 'x'");
  expect_error(ours(R"(,"dtypes":"{\"t\":\"complex256\"}")", t), 16, "complex256", ErrorKind::kUnsupported);
}

TEST(ParseHeader, ACutHeaderNeverParses) {
  const std::string json =
      ours(R"(,"aliases":"{\"u\":\"t\"}")", R"(,"t":{"dtype":"F64","shape":[1,2],"data_offsets":[0,16]})");
  for (std::size_t length = 0; length < json.size(); ++length)
    EXPECT_FALSE(parse(json.substr(0, length), 16).has_value()) << length;
}

TEST(ParseHeader, NoChangedByteIsFollowedOutOfBounds) {
  const std::string json =
      ours(R"(,"aliases":"{\"u\":\"t\"}")", R"(,"t":{"dtype":"F64","shape":[1,2],"data_offsets":[0,16]})");
  for (std::size_t at = 0; at < json.size(); ++at) {
    for (const char c : {'\0', '"', '\\', '{', '}', '9', '\xff'}) {
      std::string changed = json;
      changed[at] = c;
      const auto header = parse(changed, 16);
      if (!header) continue;
      for (const TensorInfo& tensor : header->tensors) {
        EXPECT_LE(tensor.offset + tensor.size_bytes, 8 + json.size() + 16);
      }
    }
  }
}

}  // namespace
}  // namespace slackwater
