// What a 404 means: that an object is missing, that the bucket is, or that no object store has answered at all.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/s3/multipart.hpp"
#include "store/s3/object_client.hpp"
#include "store/s3/object_file_system.hpp"
#include "unit/store/s3/object_store_fixture.hpp"
#include "version/catalog.hpp"

namespace slackwater::s3 {
namespace {

constexpr const char* kPage = "<html><body>404 page not found</body></html>";  // of a proxy in front of the store

template <class T>
Status status_of(const Result<T>& result) {
  return result ? Status() : fail(result.error());
}

WebAnswer missing(const std::string& body) { return {.status = 404, .body = body}; }

TEST_F(ObjectStoreTest, A404ToAListIsNeverAnEmptyPlace) {
  objects_["run/step-0000000001.a1/manifest.json"] = "x";
  const std::vector<std::string> bodies{error_xml("NoSuchBucket"), kPage, "", error_xml("NoSuchKey")};
  for (const std::string& body : bodies) {
    const bool no_bucket = body == error_xml("NoSuchBucket");
    for (const ListingCache cache : {ListingCache::kOff, ListingCache::kOn}) {
      const auto fs = file_system(cache);
      first(1'000'000, "GET", missing(body));
      const std::vector<Status> answers{
          status_of(fs->list("s3://b/run")),          status_of(fs->status("s3://b/run/step-0000000001.a1")),
          status_of(scan_catalog(*fs, "s3://b/run")), status_of(newest_attempt_number(*fs, "s3://b/run")),
          status_of(fs->list_uploads("s3://b/run")),
      };
      for (const Status& answer : answers) {
        ASSERT_FALSE(answer) << body;
        const Error& error = answer.error();
        EXPECT_EQ(error.kind, no_bucket ? ErrorKind::kInvalidArgument : ErrorKind::kIo) << error.to_string();
        EXPECT_EQ(error.retryable, !no_bucket) << body;
        const char* const said = no_bucket ? "the bucket 'b' does not exist at 127.0.0.1" : "is the store running?";
        EXPECT_NE(error.message.find(said), std::string::npos) << error.to_string();
      }
    }
  }
}

TEST_F(ObjectStoreTest, AListIsTriedAgainAfterA404OfAProxyButNotAfterThatOfAMissingBucket) {
  objects_["run/a"] = "x";
  const auto fs = file_system();
  first(2, "GET", missing(kPage));
  EXPECT_EQ(fs->list("s3://b/run")->size(), 1u);
  EXPECT_EQ(requests_["GET"], 3);
  first(100, "GET", missing(error_xml("NoSuchBucket")));
  EXPECT_FALSE(fs->list("s3://b/run"));
  EXPECT_EQ(requests_["GET"], 4);
}

TEST_F(ObjectStoreTest, AMissingBucketIsSaidByEveryRequest) {
  const auto store = client();
  script_ = [](const WebRequest&) { return missing(error_xml("NoSuchBucket")); };
  const std::string text = "bytes";
  const std::array pieces{bytes_of(text)};
  MemorySource source(pieces);
  const std::vector<Status> answers{
      status_of(store->size_of("k")),
      status_of(store->read_whole("k", 10)),
      store->put("k", source, false),
      store->create("k", text),
      store->remove("k"),
      status_of(create_upload(*store, "k")),
      status_of(list_parts(*store, {"k", "id"})),
      abort_upload(*store, {"k", "id"}),
  };
  for (const Status& answer : answers) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_NE(answer.error().message.find("the bucket 'b' does not exist"), std::string::npos);
  }
}

TEST_F(ObjectStoreTest, WhetherAnObjectIsMissingIsSettledByAListIfTheAnswerDoesNotSay) {
  objects_["run/k"] = "v";
  objects_["run/k2"] = "v";
  const auto store = client();
  EXPECT_EQ(store->size_of("run/kk").error().kind, ErrorKind::kNotFound) << "a HEAD has no body";
  EXPECT_EQ(log_.size(), 2u) << "HEAD, and one list";
  for (const char* method : {"HEAD", "GET", "DELETE"}) {
    const auto ask = [&](const std::string& key) -> Status {
      if (method == std::string("HEAD")) return status_of(store->size_of(key));
      if (method == std::string("GET")) return status_of(store->read_whole(key, 10));
      return store->remove(key);
    };
    script_ = [=](const WebRequest& request) -> std::optional<WebAnswer> {
      const bool list = request.target.find("list-type=2") != std::string::npos;
      return request.method == method && !list ? std::optional(missing(kPage)) : std::nullopt;
    };
    const Status there = ask("run/k");
    ASSERT_FALSE(there) << method;
    EXPECT_EQ(there.error().kind, ErrorKind::kIo) << method << ": it is in the list";
    const Status gone = ask("run/kk");
    if (method == std::string("DELETE")) {
      EXPECT_TRUE(gone) << "what is missing need not be removed";
    } else {
      EXPECT_EQ(gone.error().kind, ErrorKind::kNotFound) << method;
    }
    script_ = [](const WebRequest&) { return missing(kPage); };
    const Status nobody = ask("run/kk");
    ASSERT_FALSE(nobody) << method;
    EXPECT_EQ(nobody.error().kind, ErrorKind::kIo) << method << ": the list is not there either";
  }
}

TEST_F(ObjectStoreTest, AWriteThatAProxyAnswersWith404IsTriedAgain) {
  const auto store = client();
  const std::string text = "bytes";
  const std::array pieces{bytes_of(text)};
  MemorySource source(pieces);
  first(1, "PUT", missing(kPage));
  EXPECT_TRUE(store->put("k", source, false));
  EXPECT_EQ(objects_["k"], text);
  uploads_["id1"] = {};
  first(1, "POST", missing(kPage));
  EXPECT_TRUE(complete_upload(*store, {"run/big", "id1"}, {{1, 1, "\"t\"", ""}}))
      << "an upload that a proxy does not know is not finished";
  EXPECT_TRUE(uploads_.empty());
}

TEST_F(ObjectStoreTest, NoUploadsAtAllIsNoError) {
  const auto fs = file_system();
  first(100, "GET", missing(error_xml("NoSuchUpload")));  // rclone, as long as none was ever begun
  const auto uploads = fs->list_uploads("s3://b/run");
  ASSERT_TRUE(uploads) << uploads.error().to_string();
  EXPECT_TRUE(uploads->empty());
  EXPECT_EQ(requests_["GET"], 1);
  EXPECT_EQ(fs->list("s3://b/run").error().kind, ErrorKind::kIo) << "a list of objects is another question";
}

}  // namespace
}  // namespace slackwater::s3
