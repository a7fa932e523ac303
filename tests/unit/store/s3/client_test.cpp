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
#include "support/http_server.hpp"
#include "version/catalog.hpp"
#include "version/version_store.hpp"

namespace slackwater::s3 {
namespace {

using test::HttpServer;
using test::WebAnswer;
using test::WebRequest;

std::string error_xml(const std::string& code) {
  return "<Error><Code>" + code + "</Code><Message>m</Message></Error>";
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// A small object store in memory, with right answers. Tests put wrong ones before it.
class ObjectStoreTest : public testing::Test {
 protected:
  ObjectStoreTest() : server_([this](const WebRequest& request) { return answer(request); }) {}

  std::unique_ptr<ObjectClient> client() {
    ClientOptions options{.store = {.endpoint = server_.endpoint()}};
    options.environment = [this](const char* name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    options.retry = {.tries = 4, .first_pause = std::chrono::milliseconds(1)};
    options.least_part_bytes = 8u << 20;
    auto made = ObjectClient::make("b", options);
    EXPECT_TRUE(made) << made.error().to_string();
    return std::move(*made);
  }
  std::unique_ptr<ObjectFileSystem> file_system(Names names = Names::kFresh) {
    return std::make_unique<ObjectFileSystem>(client(), "run", names);
  }

  WebAnswer answer(const WebRequest& request) {
    ++requests_[request.method];
    log_.push_back(request.method + " " + request.target);
    if (script_) {
      if (const auto scripted = script_(request)) return *scripted;
    }
    const std::size_t question = request.target.find('?');
    const std::string key = request.target.substr(0, question).substr(std::min<std::size_t>(3, question));
    const std::string query = question == std::string::npos ? "" : request.target.substr(question + 1);
    if (query.find("list-type=2") != std::string::npos) return list(query);
    if (query.starts_with("uploads=") && request.method == "POST") {
      uploads_["id1"] = {};
      return {.body = "<InitiateMultipartUploadResult><UploadId>id1</UploadId></InitiateMultipartUploadResult>"};
    }
    if (query.find("uploads=") != std::string::npos) {
      std::string body = "<ListMultipartUploadsResult>";
      for (const auto& [id, parts] : uploads_)
        body += "<Upload><Key>" + upload_key_ + "</Key><UploadId>" + id + "</UploadId></Upload>";
      return {.body = body + "</ListMultipartUploadsResult>"};
    }
    if (query.find("uploadId=") != std::string::npos) return multipart(request, key, query);
    if (request.method == "PUT") {
      if (honours_if_none_ && request.headers.contains("if-none-match") && objects_.contains(key))
        return {.status = 412, .body = error_xml("PreconditionFailed")};
      objects_[key] = request.body;
      const std::array pieces{bytes_of(request.body)};
      return {.headers = {{"ETag", "\"" + to_hex(md5(pieces)) + "\""}}};
    }
    if (request.method == "DELETE") {
      objects_.erase(key);
      return {.status = 204};
    }
    const auto found = objects_.find(key);
    if (found == objects_.end()) return {.status = 404, .body = error_xml("NoSuchKey")};
    const auto range = request.headers.find("range");
    if (range == request.headers.end() || ignores_ranges_) return {.body = found->second};
    const std::size_t first = std::stoull(range->second.substr(6));
    const std::size_t last = std::stoull(range->second.substr(range->second.find('-') + 1));
    return {.status = 206,
            .body = found->second.substr(first, last - first + 1),
            .headers = {{"Content-Range", "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" +
                                              std::to_string(found->second.size())}}};
  }

  WebAnswer list(const std::string& query) {
    const auto value = [&](const std::string& name) {
      const std::size_t at = ("&" + query).find("&" + name + "=");
      if (at == std::string::npos) return std::string();
      const std::size_t begin = at + name.size() + 1;
      return decode_percent(query.substr(begin, query.find('&', begin) - begin));
    };
    const std::string prefix = value("prefix");
    std::string body = "<ListBucketResult>";
    std::string last;
    for (const auto& [key, bytes] : objects_) {
      if (!key.starts_with(prefix)) continue;
      const std::size_t slash = value("delimiter").empty() ? std::string::npos : key.find('/', prefix.size());
      const std::string common = slash == std::string::npos ? "" : key.substr(0, slash + 1);
      if (common.empty())
        body += "<Contents><Key>" + key + "</Key><Size>" + std::to_string(bytes.size()) + "</Size></Contents>";
      else if (common != last)
        body += "<CommonPrefixes><Prefix>" + common + "</Prefix></CommonPrefixes>";
      last = common;
    }
    return {.body = body + "</ListBucketResult>"};
  }

  WebAnswer multipart(const WebRequest& request, const std::string& key, const std::string& query) {
    auto& parts = uploads_["id1"];
    if (request.method == "PUT") {
      const auto number = std::stoul(query.substr(query.find("partNumber=") + 11));
      parts[number] = request.body;
      const std::array pieces{bytes_of(request.body)};
      return {.headers = {{"ETag", "\"" + to_hex(md5(pieces)) + "\""}}};
    }
    if (request.method == "GET") {
      std::string body = "<ListPartsResult>";
      for (const auto& [number, bytes] : parts) {
        const std::array pieces{bytes_of(bytes)};
        body += "<Part><PartNumber>" + std::to_string(number) + "</PartNumber><Size>" + std::to_string(bytes.size()) +
                "</Size><ETag>" + to_hex(md5(pieces)) + "</ETag></Part>";
      }
      return {.body = body + "</ListPartsResult>"};
    }
    if (request.method == "DELETE") {
      uploads_.erase("id1");
      return {.status = 204};
    }
    for (const auto& [number, bytes] : parts) objects_[key] += bytes;
    uploads_.erase("id1");
    return {.body = "<CompleteMultipartUploadResult/>"};
  }

  // Answers the first `count` requests of this method with this, and everything else as it should be.
  void first(int count, const std::string& method, WebAnswer wrong) {
    script_ = [=, left = count](const WebRequest& request) mutable -> std::optional<WebAnswer> {
      if (request.method != method || left == 0) return std::nullopt;
      --left;
      return wrong;
    };
  }

  std::map<std::string, std::string> variables_{{"AWS_ACCESS_KEY_ID", "A"}, {"AWS_SECRET_ACCESS_KEY", "S"}};
  std::map<std::string, std::string> objects_;
  std::map<std::string, std::map<unsigned long, std::string>> uploads_;
  std::string upload_key_ = "run/big";
  bool honours_if_none_ = true;
  bool ignores_ranges_ = false;
  std::function<std::optional<WebAnswer>(const WebRequest&)> script_;
  std::map<std::string, int> requests_;
  std::vector<std::string> log_;
  HttpServer server_;  // last: its threads use the rest
};

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
  const auto checksums = checksums_of(pieces, true);
  first(1, "PUT", {.headers = {{"ETag", "\"00000000000000000000000000000000\""}}});
  EXPECT_TRUE(upload_part(*store, {"k", "id1"}, 1, pieces, checksums));
  EXPECT_EQ(requests_["PUT"], 2);
  first(100, "PUT", {.headers = {{"ETag", "\"x\""}, {"x-amz-checksum-crc32c", "AAAAAA=="}}});
  const auto damaged = upload_part(*store, {"k", "id1"}, 1, pieces, checksums);
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
    EXPECT_EQ(store->honours_if_none(), honours ? Known::kYes : Known::kNo);
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
      ASSERT_TRUE(upload.send(part, pieces));
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
  const auto fs = file_system(Names::kRemembered);
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
  const auto attempt = (*store)->claim("name", {});
  ASSERT_TRUE(attempt) << attempt.error().to_string();
  EXPECT_EQ(attempt->number, 1u);
  EXPECT_TRUE(objects_.contains("run/.slackwater/attempt-0001.json"));
  EXPECT_EQ((*store)->claim("name", {})->number, 2u);
  const auto catalog = scan_catalog(*fs, "s3://b/run");
  ASSERT_TRUE(catalog);
  EXPECT_EQ(catalog->newest_attempt->number, 2u);
}

}  // namespace
}  // namespace slackwater::s3
