// What the object store client is made of, without a server: hashes, locations, signatures, settings, XML, part sizes.
#include <array>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/s3/curl.hpp"
#include "store/s3/hashes.hpp"
#include "store/s3/multipart.hpp"
#include "store/s3/settings.hpp"
#include "store/s3/signature.hpp"
#include "store/s3/uri.hpp"
#include "store/s3/xml.hpp"
#include "support/sha256.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::s3 {
namespace {

std::span<const std::byte> view_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string pattern(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 131 + i / 251);
  return text;
}

TEST(S3Hashes, MatchPublishedVectors) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string key = "Jefe";  // RFC 4231, case 2
  EXPECT_EQ(to_hex(hmac_sha256(view_of(key), "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::array abc{view_of("abc")};
  EXPECT_EQ(to_hex(md5(abc)), "900150983cd24fb0d6963f7d28e17f72");  // RFC 1321
  const std::array digits{view_of("123456789")};
  EXPECT_EQ(crc32c(digits), 0xE3069283u);
  EXPECT_EQ(crc_base64(crc32c(digits)), "4waSgw==");
  std::string zeros(32, '\0');  // RFC 3720, B.4
  EXPECT_EQ(crc32c_next_portable(0, view_of(zeros)), 0x8A9136AAu);
  EXPECT_EQ(to_base64(view_of("a")), "YQ==");
  EXPECT_EQ(to_base64(view_of("ab")), "YWI=");
  EXPECT_EQ(to_base64(view_of("abc")), "YWJj");
}

TEST(S3Hashes, AreTheSameHoweverTheBytesAreCutIntoPieces) {
  for (const std::size_t size : {0u, 1u, 55u, 56u, 63u, 64u, 65u, 119u, 120u, 1000u, 4099u}) {
    const std::string text = pattern(size);
    const std::array whole{view_of(text)};
    EXPECT_EQ(sha256(text), test::sha256(view_of(text))) << size;
    EXPECT_EQ(crc32c_next(0, view_of(text)), crc32c_next_portable(0, view_of(text))) << size;
    for (const std::size_t cut : {1u, 7u, 64u, 100u}) {
      std::vector<std::span<const std::byte>> pieces;
      for (std::size_t at = 0; at < size; at += cut)
        pieces.push_back(view_of(text).subspan(at, std::min(cut, size - at)));
      EXPECT_EQ(sha256(Pieces(pieces)), sha256(Pieces(whole))) << size << " by " << cut;
      EXPECT_EQ(md5(pieces), md5(whole)) << size << " by " << cut;
      EXPECT_EQ(crc32c(pieces), crc32c(whole)) << size << " by " << cut;
    }
  }
}

TEST(S3Locations, NameABucketAndAPrefix) {
  const auto location = parse_object_location("s3://bucket/runs//gpt/");
  ASSERT_TRUE(location);
  EXPECT_EQ(location->bucket, "bucket");
  EXPECT_EQ(location->key, "runs/gpt");
  EXPECT_EQ(parse_object_location("s3://bucket")->key, "");
  for (const char* wrong : {"s3://", "s3:///key", "/tmp/x", "s3://b u/x", "s3://b\n/x", "s3://.b/x"})
    EXPECT_EQ(parse_object_location(wrong).error().kind, ErrorKind::kInvalidArgument) << wrong;
}

TEST(S3Locations, EncodeEveryByteThatIsNotPlain) {
  EXPECT_EQ(encode_key("a/b c+é~_-.*"), "a/b%20c%2B%C3%A9~_-.%2A");
  EXPECT_EQ(encode_query("a/b=c"), "a%2Fb%3Dc");
  EXPECT_EQ(canonical_query({{"b", "2"}, {"a", ""}, {"a-", "x y"}}), "a=&a-=x%20y&b=2");
  std::string all;
  for (int c = 1; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(decode_percent(encode_query(all)), all);
  EXPECT_EQ(decode_percent("100%"), "100%");
  EXPECT_EQ(decode_percent("%zz%4"), "%zz%4");
}

// The example "GET Object" of the S3 API reference.
TEST(S3Signatures, MatchTheExampleOfTheApiReference) {
  SignedRequest request{.method = "GET",
                        .host = "examplebucket.s3.amazonaws.com",
                        .path = "/test.txt",
                        .query = {},
                        .headers = {{"range", "bytes=0-9"}},
                        .payload_hash = to_hex(sha256("")),
                        .region = "us-east-1",
                        .unix_seconds = 1369353600};
  const Headers headers = sign(request, {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""});
  EXPECT_EQ(headers.back().second,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

class S3Settings : public testing::Test {
 protected:
  Environment environment() {
    return [this](const char* name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      if (found == variables_.end()) return std::nullopt;
      return found->second;
    };
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(directory_.path() + "/.aws");
    std::ofstream(directory_.path() + "/.aws/" + name) << text;
    variables_["HOME"] = directory_.path();
  }
  test::TempDir directory_;
  std::map<std::string, std::string> variables_;
};

TEST_F(S3Settings, CredentialsComeFromTheNamedProfileThenTheEnvironmentThenTheFile) {
  write("credentials",
        "[default]\naws_access_key_id = FILE\naws_secret_access_key=S1\n\n# note\n[other]\n"
        "aws_access_key_id=OTHER\naws_secret_access_key = S2\naws_session_token = T\n");
  EXPECT_EQ(find_credentials({}, environment())->access_key, "FILE");
  variables_["AWS_PROFILE"] = "other";
  EXPECT_EQ(*find_credentials({}, environment()), (Credentials{"OTHER", "S2", "T"}));
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "S3";
  EXPECT_EQ(find_credentials({}, environment())->access_key, "ENV");
  EXPECT_EQ(find_credentials({.profile = "default"}, environment())->access_key, "FILE");
  const auto none = find_credentials({.profile = "missing"}, environment());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::kPermission);
  EXPECT_NE(none.error().message.find("missing"), std::string::npos) << "it names the profile";
}

TEST_F(S3Settings, TheAddressFollowsOptionsThenTheEnvironmentThenTheProfile) {
  write("config", "[profile p]\nregion = eu-west-1\nendpoint_url = https://files.example\n");
  EXPECT_EQ(find_address({}, "b", environment())->host(), "b.s3.us-east-1.amazonaws.com");
  EXPECT_EQ(find_address({.profile = "p"}, "b", environment())->url("k y", {}), "https://b.files.example/k%20y");
  variables_["AWS_REGION"] = "ap-south-1";
  EXPECT_EQ(find_address({.profile = "p"}, "b", environment())->region, "ap-south-1");
  EXPECT_EQ(find_address({.region = "x-1"}, "b", environment())->region, "x-1");
  EXPECT_EQ(find_address({.endpoint = "http://127.0.0.1:9000/"}, "b", environment())->url("k", {{"uploads", ""}}),
            "http://127.0.0.1:9000/b/k?uploads=")
      << "no bucket stands before an address of IP";
  EXPECT_EQ(find_address({.endpoint = "https://h.example", .path_style = true}, "b", environment())->url("", {}),
            "https://h.example/b");
  EXPECT_TRUE(find_address({}, "b.c", environment())->path_style) << "its name would not fit the certificate";
  EXPECT_FALSE(find_address({.endpoint = "ftp://h"}, "b", environment()));
  EXPECT_FALSE(find_address({.endpoint = "http://h\r\nx: y"}, "b", environment()));
}

TEST(S3Library, IsNamedWithARemedyIfItIsMissing) {
  const std::vector<std::string> libraries{"libcurl-of-nobody.so.9"};
  const auto curl = Curl::load(libraries);
  ASSERT_FALSE(curl);
  EXPECT_EQ(curl.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(curl.error().message.find("libcurl4"), std::string::npos);
}

TEST(S3Xml, IsReadWithNamespacesReferencesAndEmptyElements) {
  const auto root = parse_xml(
      "<?xml version=\"1.0\"?>\n<!-- x --><s:List xmlns:s='u'><Key>a&amp;b&#x41;&#66;<![CDATA[<c>]]></Key><E/>"
      "<Size a=\"1\" >12</Size></s:List>\n");
  ASSERT_TRUE(root) << root.error().message;
  EXPECT_EQ(root->name, "List");
  EXPECT_EQ(root->text_of("Key"), "a&bAB<c>");
  EXPECT_EQ(root->number_of("Size"), 12u);
  EXPECT_NE(root->find("E"), nullptr);
  EXPECT_EQ(root->number_of("Key"), std::nullopt);
  EXPECT_EQ(parse_xml("<a>" + escape_xml("<&>\"'") + "</a>")->text, "<&>\"'");
}

TEST(S3Xml, RefusesWhatItDoesNotKnow) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "<a>";
  for (const std::string& wrong :
       {std::string(""), std::string("text"), std::string("<a>"), std::string("<a></b>"), std::string("<a/><b/>"),
        std::string("<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>"), std::string("<a>&x;</a>"), std::string("<a>&#0;</a>"),
        std::string("<a>&#xD800;</a>"), std::string("<a b></a>"), std::string("<a b=c></a>"), std::string("<a>&"),
        deep})
    EXPECT_EQ(parse_xml(wrong).error().kind, ErrorKind::kCorrupt) << wrong;
}

TEST(S3Lists, AreReadWithEncodedNamesAndContinuations) {
  const auto root = parse_xml(
      "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>t+1</NextContinuationToken><Contents><Key>a%2Fb%20c</Key><Size>7</Size></Contents>"
      "<CommonPrefixes><Prefix>d%2F</Prefix></CommonPrefixes></ListBucketResult>");
  const auto page = parse_object_page(*root);
  ASSERT_TRUE(page);
  EXPECT_EQ(page->objects.at(0).key, "a/b c");
  EXPECT_EQ(page->objects.at(0).size_bytes, 7u);
  EXPECT_EQ(page->prefixes.at(0), "d/");
  EXPECT_EQ(page->next, "t+1");
  EXPECT_FALSE(parse_object_page(*parse_xml("<L><Contents><Key>a</Key></Contents></L>"))) << "no size";
  EXPECT_FALSE(parse_object_page(*parse_xml("<L><IsTruncated>true</IsTruncated></L>"))) << "no continuation";
}

TEST(S3Parts, AreOfWholeSlabsAndNeverMoreThanTheStoreTakes) {
  constexpr std::uint64_t kMiB = 1u << 20;
  EXPECT_EQ(part_size(0), 64 * kMiB);
  EXPECT_EQ(part_size(9000 * 64 * kMiB), 64 * kMiB);
  EXPECT_EQ(part_size(9000 * 64 * kMiB + 1), 72 * kMiB);
  for (const std::uint64_t size : {1ull << 33, 1ull << 39, 1ull << 40, 5ull << 40}) {
    EXPECT_EQ(part_size(size) % kSlabMultiple, 0u);
    EXPECT_LE((size + part_size(size) - 1) / part_size(size), kMaxParts) << size;
  }
}

}  // namespace
}  // namespace slackwater::s3
