// The object store client against a server that misbehaves as the test says.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "os/durable.hpp"
#include "store/s3/multipart.hpp"
#include "store/s3/object_client.hpp"
#include "store/s3/object_file_system.hpp"
#include "store/s3/object_upload.hpp"
#include "unit/store/s3/object_store_fixture.hpp"
#include "version/catalog.hpp"
#include "version/version_store.hpp"

namespace slackwater::s3 {
namespace {

TEST_F(ObjectStoreTest, TriesAgainAfterPassingFaults) {
  objects_["k"] = "0123456789";
  const auto store = client();
  for (const WebAnswer& wrong :
       {WebAnswer{.status = 500, .body = error_xml("InternalError")},
        WebAnswer{.status = 503, .body = error_xml("SlowDown")}, WebAnswer{.status = 429},
        WebAnswer{.status = 400, .body = error_xml("RequestTimeout")}, WebAnswer{.no_answer = true}}) {
    first(2, "GET", wrong);
    std::string text(4, ' ');
    const Status read = store->read("k", std::as_writable_bytes(std::span(text)), 3, 10);
    ASSERT_TRUE(read) << wrong.status << ": " << read.error().to_string();
    EXPECT_EQ(text, "3456");
  }
}

TEST_F(ObjectStoreTest, GivesUpInTheEndAndSaysWhatWasAnswered) {
  const auto store = client();
  first(100, "GET", {.status = 503, .body = error_xml("SlowDown")});
  const auto read = store->read_whole("k", 10);
  ASSERT_FALSE(read);
  EXPECT_TRUE(read.error().retryable);
  EXPECT_NE(read.error().to_string().find("503 SlowDown"), std::string::npos);
  EXPECT_EQ(read.error().path, "s3://b/k");
  EXPECT_EQ(requests_["GET"], 4);
}

TEST_F(ObjectStoreTest, DoesNotRepeatWhatCannotSucceed) {
  const auto store = client();
  first(100, "GET", {.status = 403, .body = error_xml("AccessDenied")});
  EXPECT_EQ(store->read_whole("k", 10).error().kind, ErrorKind::kPermission);
  EXPECT_EQ(requests_["GET"], 1);
  first(100, "GET", {.status = 301, .body = "<Error><Code>PermanentRedirect</Code><Region>eu-1</Region></Error>"});
  const auto moved = store->read_whole("k", 10);
  EXPECT_EQ(moved.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_NE(moved.error().message.find("eu-1"), std::string::npos) << "it says where the bucket is";
}

TEST_F(ObjectStoreTest, AReadThatBreaksOffGoesOnWhereItStopped) {
  objects_["k"] = std::string(100'000, 'x') + "end";
  const auto store = client();
  first(1, "GET",
        {.status = 206,
         .body = objects_["k"],
         .headers = {{"Content-Range", "bytes 0-100002/100003"}},
         .sent_of_body = 50'000});
  std::string text(100'003, ' ');
  ASSERT_TRUE(store->read("k", std::as_writable_bytes(std::span(text)), 0, text.size()));
  EXPECT_EQ(text, objects_["k"]);
}

TEST_F(ObjectStoreTest, TakesItsRangeOutOfAWholeObject) {
  objects_["k"] = "0123456789";
  ignores_ranges_ = true;
  std::string text(3, ' ');
  ASSERT_TRUE(client()->read("k", std::as_writable_bytes(std::span(text)), 4, 10));
  EXPECT_EQ(text, "456");
}

TEST_F(ObjectStoreTest, RefusesAnotherRangeThanItAskedFor) {
  const auto store = client();
  first(100, "GET", {.status = 206, .body = "012", .headers = {{"Content-Range", "bytes 0-2/10"}}});
  std::string text(3, ' ');
  EXPECT_FALSE(store->read("k", std::as_writable_bytes(std::span(text)), 4, 10));
  first(100, "GET", {.status = 206, .body = "456", .headers = {{"Content-Range", "bytes 4-6/11"}}});
  EXPECT_FALSE(store->read("k", std::as_writable_bytes(std::span(text)), 4, 10)) << "the object has changed";
}

TEST_F(ObjectStoreTest, AnErrorInsideASuccessIsAnError) {
  const auto store = client();
  const UploadInfo upload{"run/big", "id1"};
  first(1, "POST", {.status = 200, .body = "<?xml version=\"1.0\"?>\n" + error_xml("InternalError")});
  EXPECT_TRUE(complete_upload(*store, upload, {{1, 1, "\"t\"", ""}})) << "and is tried again";
  EXPECT_EQ(requests_["POST"], 2);
  first(100, "POST", {.status = 200, .body = error_xml("InternalError")});
  EXPECT_FALSE(complete_upload(*store, upload, {{1, 1, "\"t\"", ""}}));
}

TEST_F(ObjectStoreTest, APartWhoseTagIsNotThatOfItsBytesIsSentAgain) {
  const auto store = client();
  const std::string bytes = "some bytes";
  const std::array pieces{bytes_of(bytes)};
  MemorySource source(pieces);
  const auto checksums = checksums_of(source, true).value();
  first(1, "PUT", {.headers = {{"ETag", "\"00000000000000000000000000000000\""}}});
  EXPECT_TRUE(upload_part(*store, {"k", "id1"}, 1, source, checksums));
  EXPECT_EQ(requests_["PUT"], 2);
  first(100, "PUT", {.headers = {{"ETag", "\"x\""}, {"x-amz-checksum-crc32c", "AAAAAA=="}}});
  const auto damaged = upload_part(*store, {"k", "id1"}, 1, source, checksums);
  ASSERT_FALSE(damaged);
  EXPECT_NE(damaged.error().message.find("other bytes than were sent"), std::string::npos);
}

TEST_F(ObjectStoreTest, NewCredentialsAreFetchedWhenTheOldOnesHaveExpired) {
  objects_["k"] = "v";
  const auto store = client();
  script_ = [this](const WebRequest& request) -> std::optional<WebAnswer> {
    if (request.headers.at("authorization").find("Credential=NEW/") != std::string::npos) return std::nullopt;
    variables_["AWS_ACCESS_KEY_ID"] = "NEW";  // somebody renews them meanwhile
    return WebAnswer{.status = 400, .body = error_xml("ExpiredToken")};
  };
  EXPECT_EQ(store->read_whole("k", 10).value_or("?"), "v");
  script_ = [](const WebRequest&) { return WebAnswer{.status = 400, .body = error_xml("ExpiredToken")}; };
  const auto expired = store->read_whole("k", 10);
  ASSERT_FALSE(expired);
  EXPECT_EQ(expired.error().kind, ErrorKind::kPermission);
  EXPECT_NE(expired.error().message.find("renew"), std::string::npos);
}

TEST_F(ObjectStoreTest, ExactlyOneWriterGetsAName) {
  for (const bool honours : {true, false}) {
    objects_.clear();
    honours_if_none_ = honours;
    const auto store = client();
    EXPECT_TRUE(store->create("k", "first"));
    EXPECT_EQ(store->capabilities().if_none, honours ? Capability::kYes : Capability::kNo);
    EXPECT_EQ(store->create("k", "second").error().kind, ErrorKind::kAlreadyExists) << honours;
    EXPECT_TRUE(store->create("k", "first")) << "our own bytes are ours";
    EXPECT_EQ(objects_["k"], "first") << honours;
  }
}

TEST_F(ObjectStoreTest, AReplyThatGotLostAfterTheWriteIsNotTakenForAnotherWriter) {
  const auto store = client();
  ASSERT_TRUE(store->create("warm", "up"));
  script_ = [this, lost = false](const WebRequest& request) mutable -> std::optional<WebAnswer> {
    if (request.method != "PUT" || lost) return std::nullopt;
    lost = true;
    objects_["k"] = request.body;
    return WebAnswer{.no_answer = true};
  };
  EXPECT_TRUE(store->create("k", "mine"));
  first(1, "PUT", {.status = 409, .body = error_xml("ConditionalRequestConflict")});
  EXPECT_TRUE(store->create("k2", "mine")) << "409 is tried again";
}

TEST_F(ObjectStoreTest, AServerThatRefusesConditionalWritesIsUsedWithoutThem) {
  script_ = [](const WebRequest& request) -> std::optional<WebAnswer> {
    if (!request.headers.contains("if-none-match")) return std::nullopt;
    return WebAnswer{.status = 501, .body = error_xml("NotImplemented")};
  };
  const auto store = client();
  EXPECT_TRUE(store->create("k", "first"));
  EXPECT_EQ(store->create("k", "second").error().kind, ErrorKind::kAlreadyExists);
}

TEST_F(ObjectStoreTest, AnUploadGoesOnWhereAnEarlierOneStopped) {
  const std::string bytes(20u << 20, 'p');
  const auto send_all = [&](FileUpload& upload, std::uint32_t parts) {
    for (std::uint32_t part = 0; part < parts; ++part) {
      const std::array pieces{bytes_of(bytes).subspan(
          part * upload.part_bytes(),
          std::min<std::size_t>(upload.part_bytes(), bytes.size() - part * upload.part_bytes()))};
      MemorySource source(pieces);
      ASSERT_TRUE(upload.send(part, source));
    }
  };
  const auto fs = file_system();
  {
    auto upload = fs->begin_upload("s3://b/run/big", bytes.size());
    ASSERT_TRUE(upload);
    EXPECT_EQ((*upload)->part_bytes(), 8u << 20);
    send_all(**upload, 2);
  }
  EXPECT_EQ(requests_["PUT"], 2);
  auto again = fs->begin_upload("s3://b/run/big", bytes.size());
  send_all(**again, 3);
  EXPECT_EQ(requests_["PUT"], 3) << "only the third part is sent";
  ASSERT_TRUE((*again)->finish());
  EXPECT_EQ(objects_["run/big"], bytes);
  EXPECT_TRUE(uploads_.empty());
}

TEST_F(ObjectStoreTest, AnUploadThatIsNotWholeIsNotFinished) {
  const auto fs = file_system();
  auto upload = fs->begin_upload("s3://b/run/big", 20u << 20);
  EXPECT_FALSE((*upload)->finish());
  EXPECT_FALSE(objects_.contains("run/big"));
  EXPECT_EQ(fs->list_uploads("s3://b/run")->size(), 1u);
  ASSERT_TRUE((*upload)->abandon());
  EXPECT_TRUE(fs->list_uploads("s3://b/run")->empty());
}

TEST_F(ObjectStoreTest, AWholeScanTakesOneList) {
  for (const char* key : {"run/.slackwater/attempt-0001.json", "run/step-0000000001.a1/index", "run/a", "run/g/h/i"})
    objects_[key] = "x";
  const auto fs = file_system(ListingCache::kOn);
  const auto names = fs->list("s3://b/run");
  ASSERT_TRUE(names);
  ASSERT_EQ(names->size(), 4u);
  EXPECT_EQ((*names)[1].name, "a");
  EXPECT_EQ((*names)[1].type, FileType::kRegular);
  EXPECT_EQ((*names)[2].type, FileType::kDirectory);
  EXPECT_EQ(fs->list("s3://b/run/g")->size(), 1u);
  EXPECT_EQ(fs->status("s3://b/run/step-0000000001.a1")->type, FileType::kDirectory);
  EXPECT_EQ(fs->open("s3://b/run/zz", OpenMode::kRead, false).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(fs->open("s3://b/run/a", OpenMode::kRead, false).value()->status()->size_bytes, 1u);
  EXPECT_EQ(log_.size(), 1u) << "all of this from one list";
  objects_.erase("run/a");
  std::byte byte{};
  EXPECT_FALSE(fs->open("s3://b/run/a", OpenMode::kRead, false).value()->read_at({&byte, 1}, 0));
  EXPECT_EQ(fs->status("s3://b/run/a").error().kind, ErrorKind::kNotFound) << "what is gone makes it list again";
}

TEST_F(ObjectStoreTest, OfABucketWithoutAPrefixOnlyOwnNamesAreListed) {
  for (const char* key : {".slackwater/attempt-0001.json", "step-0000000001.a1/index",
                          "step-0000000001.a1/manifest.json", "others", "others/1", "photos/1", "step", "zz"})
    objects_[key] = "x";
  for (const ListingCache cache : {ListingCache::kOff, ListingCache::kOn}) {
    const auto fs = file_system(cache, "");
    const auto names = fs->list("s3://b");
    ASSERT_TRUE(names) << names.error().to_string();
    ASSERT_EQ(names->size(), 2u);
    EXPECT_EQ((*names)[0].name, kControlDirectory);
    EXPECT_EQ((*names)[1].name, version_directory({1, 1}));
    for (const DirectoryEntry& entry : *names) EXPECT_EQ(entry.type, FileType::kDirectory);
    EXPECT_EQ(fs->list("s3://b/step-0000000001.a1")->size(), 2u);
    for (const std::string& request : log_)
      EXPECT_FALSE((request + "&").contains("prefix=&")) << "all of the bucket: " << request;
    EXPECT_EQ(fs->status("s3://b/photos/1")->type, FileType::kRegular) << "what is not listed is asked for";
  }
  const auto uploads = file_system({}, "")->list_uploads("s3://b");
  ASSERT_TRUE(uploads);
  EXPECT_NE(log_.back().find("prefix=step-"), std::string::npos) << log_.back();
}

TEST_F(ObjectStoreTest, PublishesExclusivelyWithoutLeavingPrivateNames) {
  const auto fs = file_system();
  ASSERT_TRUE(publish_exclusively(*fs, "s3://b/run", "manifest.json", "one", "u1"));
  EXPECT_EQ(publish_exclusively(*fs, "s3://b/run", "manifest.json", "two", "u2").error().kind,
            ErrorKind::kAlreadyExists);
  EXPECT_EQ(objects_, (std::map<std::string, std::string>{{"run/manifest.json", "one"}}));
}

TEST_F(ObjectStoreTest, AFailedWriteDoesNotRemoveTheFileOfAnother) {
  const auto fs = file_system();
  ASSERT_TRUE(write_durably(*fs, "s3://b/run/pin", "theirs"));
  EXPECT_EQ(write_durably(*fs, "s3://b/run/pin", "ours").error().kind, ErrorKind::kAlreadyExists);
  EXPECT_EQ(objects_["run/pin"], "theirs");
  EXPECT_TRUE(fs->unlink("s3://b/run/pin")) << "later it can be removed";
  EXPECT_TRUE(objects_.empty());
}

TEST_F(ObjectStoreTest, CallsEndSoonAfterStop) {
  const auto fs = file_system();
  first(100, "GET", {.status = 503, .body = error_xml("SlowDown")});
  fs->stop_transfers();
  EXPECT_EQ(fs->list("s3://b/run").error().kind, ErrorKind::kClosed);
}

TEST_F(ObjectStoreTest, AConnectionIsUsedAgain) {
  objects_["k"] = "v";
  const auto store = client();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(store->read_whole("k", 10));
  EXPECT_EQ(server_.connections(), 1);
}

TEST_F(ObjectStoreTest, AVersionStoreWorksOnIt) {
  const auto fs = file_system();
  const SystemClock clock;
  const Log quiet([](LogLevel, std::string_view) {});
  auto store = VersionStore::open(*fs, clock, "s3://b/run", quiet);
  ASSERT_TRUE(store) << store.error().to_string();
  const auto attempt = (*store)->attempt().claim("name", {});
  ASSERT_TRUE(attempt) << attempt.error().to_string();
  EXPECT_EQ(attempt->number, 1u);
  EXPECT_TRUE(objects_.contains("run/.slackwater/attempt-0001.json"));
  EXPECT_EQ((*store)->attempt().claim("name", {})->number, 2u);
  const auto catalog = scan_catalog(*fs, "s3://b/run");
  ASSERT_TRUE(catalog);
  EXPECT_EQ(catalog->newest_attempt->number, 2u);
}

}  // namespace
}  // namespace slackwater::s3
