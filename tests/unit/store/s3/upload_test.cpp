// What is sent to an object store: credentials of requests that travel together, and whether the bytes arrived.
#include <array>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/s3/multipart.hpp"
#include "store/s3/object_client.hpp"
#include "unit/store/s3/object_store_fixture.hpp"

namespace slackwater::s3 {
namespace {

TEST_F(ObjectStoreTest, RequestsThatAreRefusedTogetherAllUseTheNewCredentials) {
  constexpr unsigned kReaders = 8;
  objects_["k"] = "v";
  Gathering refused(kReaders);
  const auto is_old = [](const WebRequest& request) {
    return request.headers.at("authorization").find("Credential=NEW/") == std::string::npos;
  };
  // All of them are on their way before the first is refused. So the first to renew finds new ones, and nobody else.
  server_.set_on_arrival([&](const WebRequest& request) {
    if (is_old(request)) EXPECT_TRUE(refused.arrive([&] { variables_["AWS_ACCESS_KEY_ID"] = "NEW"; }));
  });
  script_ = [&](const WebRequest& request) -> std::optional<WebAnswer> {
    if (!is_old(request)) return std::nullopt;
    return WebAnswer{.status = 400, .body = error_xml("ExpiredToken")};
  };
  const auto store = client();
  std::array<std::string, kReaders> read;
  {
    std::vector<std::jthread> readers;
    for (unsigned i = 0; i < kReaders; ++i) {
      readers.emplace_back([&, i] {
        auto text = store->read_whole("k", 10);
        read[i] = text ? *text : text.error().to_string();
      });
    }
  }
  for (const std::string& text : read) EXPECT_EQ(text, "v");
}

TEST_F(ObjectStoreTest, AnObjectWhoseTagIsNotThatOfItsBytesIsSentAgain) {
  const auto store = client();
  store->capabilities().crc32c = Capability::kYes;  // as an earlier part has shown
  const std::string bytes(3u << 20, 'x');
  const std::array pieces{bytes_of(bytes)};
  MemorySource source(pieces);
  first(1, "PUT", {.headers = {{"ETag", "\"00000000000000000000000000000000\""}}});
  EXPECT_TRUE(store->put("k", source, false));
  EXPECT_EQ(requests_["PUT"], 2);
  first(100, "PUT", {.headers = {{"ETag", "\"00000000000000000000000000000000\""}}});
  const Status damaged = store->put("k", source, false);
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.error().message.find("other bytes than were sent"), std::string::npos);
}

// Hands out its bytes in small portions, and none of the second half from a certain call on.
class FailingSource final : public ByteSource {
 public:
  FailingSource(std::string_view bytes, std::uint64_t good_passes) : bytes_(bytes_of(bytes)), left_(good_passes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return bytes_.size(); }
  [[nodiscard]] Result<std::span<const std::byte>> at(std::uint64_t offset) override {
    if (offset == 0) passes_ += 1;
    if (passes_ > left_ && offset >= bytes_.size() / 2)
      return fail(Error{.kind = ErrorKind::kCorrupt, .message = "damaged", .path = "/source"});
    return bytes_.subspan(offset, std::min<std::size_t>(1000, bytes_.size() - offset));
  }

 private:
  const std::span<const std::byte> bytes_;
  const std::uint64_t left_;
  std::uint64_t passes_ = 0;
};

TEST_F(ObjectStoreTest, BytesThatComeInPortionsArriveWhole) {
  const auto store = client();
  std::string bytes;
  for (int i = 0; i < 300'000; ++i) bytes += std::to_string(i);
  FailingSource source(bytes, 100);
  first(1, "PUT", {.no_answer = true});
  ASSERT_TRUE(store->put("k", source, false));
  EXPECT_EQ(objects_["k"], bytes);
}

TEST_F(ObjectStoreTest, AnErrorOfTheSourceIsNotTheStores) {
  const auto store = client();
  const std::string bytes(3u << 20, 'x');
  for (const std::uint64_t good_passes : {0, 1}) {  // while the checksum is computed, while the bytes are sent
    FailingSource source(bytes, good_passes);
    const Status sent = store->put("k", source, false);
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().kind, ErrorKind::kCorrupt);
    EXPECT_EQ(sent.error().path, "/source");
    EXPECT_EQ(sent.error().message, "damaged");
  }
  EXPECT_FALSE(objects_.contains("k"));
  EXPECT_EQ(store->calls(), 1u) << "it is not tried again";
}

TEST_F(ObjectStoreTest, AListIsHandedToAnotherProcess) {
  for (const char* key : {"run/.slackwater/attempt-0001.json", "run/step-0000000001.a1/index", "run/a b+%/\xc3\xa9"})
    objects_[key] = std::string(7, 'x');
  const auto leader = file_system(ListingCache::kOn);
  const auto text = leader->remembered_names();
  ASSERT_TRUE(text) << text.error().to_string();
  const auto member = file_system(ListingCache::kOn);
  ASSERT_TRUE(member->learn_names(*text));
  log_.clear();
  EXPECT_EQ(member->list("s3://b/run")->size(), 3u);
  EXPECT_EQ(member->status("s3://b/run/a b+%/\xc3\xa9")->size_bytes, 7u);
  EXPECT_TRUE(member->open("s3://b/run/step-0000000001.a1/index", OpenMode::kRead, false));
  EXPECT_FALSE(member->open("s3://b/run/none", OpenMode::kRead, false));
  EXPECT_TRUE(log_.empty()) << log_.front();
  for (const char* wrong : {"x", "12 a", "12\n", "-1 a\n", "1 a\n2"}) EXPECT_FALSE(member->learn_names(wrong)) << wrong;
  EXPECT_EQ(member->list("s3://b/run")->size(), 3u) << "what is wrong changes nothing";
  EXPECT_TRUE(member->learn_names("")) << "an empty place is one too";
  EXPECT_FALSE(member->list("s3://b/run"));
  EXPECT_TRUE(log_.empty());
}

}  // namespace
}  // namespace slackwater::s3
