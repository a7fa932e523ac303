// A small object store in memory behind HttpServer, for tests of the client. It answers as it should; a test puts wrong
// answers before that. Thread rule: as HttpServer.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/s3/hashes.hpp"
#include "store/s3/object_client.hpp"
#include "store/s3/object_file_system.hpp"
#include "support/http_server.hpp"

namespace slackwater::s3 {

using test::HttpServer;
using test::WebAnswer;
using test::WebRequest;

inline std::string error_xml(const std::string& code) {
  return "<Error><Code>" + code + "</Code><Message>m</Message></Error>";
}

// Holds those who come until there are so many of them. Later ones pass.
class Gathering {
 public:
  explicit Gathering(unsigned count) : count_(count) {}

  // False: the others did not come, for a time that no healthy machine needs.
  bool arrive(const std::function<void()>& on_last = [] {}) {
    std::unique_lock lock(mutex_);
    if (++arrived_ == count_) {
      on_last();
      complete_.notify_all();
    }
    complete_.wait_for(lock, std::chrono::seconds(60), [&] { return arrived_ >= count_; });
    return arrived_ >= count_;
  }
  [[nodiscard]] bool complete() {
    const std::lock_guard lock(mutex_);
    return arrived_ >= count_;
  }

 private:
  const unsigned count_;
  std::mutex mutex_;
  std::condition_variable complete_;
  unsigned arrived_ = 0;
};

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

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
  std::unique_ptr<ObjectFileSystem> file_system(ListingCache cache = ListingCache::kOff,
                                                const std::string& root_key = "run") {
    return std::make_unique<ObjectFileSystem>(client(), root_key, cache);
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

}  // namespace slackwater::s3
