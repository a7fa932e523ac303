// HttpClient: one HTTP request at a time on each of several connections, which are used again. It knows nothing of S3.
// Never hangs: a connection that stands still, or moves too slowly for its size, is given up.
// Owner: ObjectClient. Thread rule: thread-safe; a call blocks the calling thread. stop() makes calls end soon.
// Fork: in a forked child every call returns kClosed, and no connection is touched.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fork_guard.hpp"
#include "os/byte_source.hpp"
#include "slackwater/error.hpp"
#include "store/s3/curl.hpp"
#include "store/s3/signature.hpp"

namespace slackwater::s3 {

struct HttpAnswer {
  int status = 0;
  Headers headers;   // names in lower case
  std::string body;  // unless it went to HttpRequest::sink

  [[nodiscard]] std::string header(std::string_view name) const;  // empty if there is none
};

struct HttpRequest {
  std::string method;
  std::string url;
  Headers headers;
  ByteSource* body = nullptr;  // sent from where it lies; null: none
  // Takes the body of an answer with a status of 2xx; the answer has status and headers by then. False: it wants no
  // more, and the call ends well. Without it, the body is kept in the answer.
  std::function<bool(const HttpAnswer&, std::span<const std::byte>)> sink;
};

struct HttpLimits {
  std::chrono::milliseconds connect{5'000};
  std::chrono::seconds stall{30};  // less than `stall_bytes` per second for this long
  std::uint64_t stall_bytes = 1024;
  std::chrono::seconds call{120};  // for a call in all, and another second for each `call_bytes`
  std::uint64_t call_bytes = 16u << 10;
  std::uint64_t max_body_bytes = 64u << 20;  // of an answer that is kept in memory
};

class HttpClient {
 public:
  HttpClient(std::shared_ptr<const Curl> curl, std::string ca_file, HttpLimits limits);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any answer is a success here, whatever its status. kIo and kTimeout: there was none, or not all of it; retryable.
  // kClosed: stop() was called. Only an error of the body's source has a path. `body_bytes`: how much of a body is
  // expected, which decides how long the call may take.
  [[nodiscard]] Result<HttpAnswer> call(const HttpRequest& request, std::uint64_t body_bytes,
                                        std::optional<std::chrono::milliseconds> connect = {});

  // Of bodies, so far: given to libcurl, which reads no more than it can send.
  [[nodiscard]] std::uint64_t sent_bytes() const { return sent_bytes_; }
  void stop() { stopping_ = true; }
  [[nodiscard]] bool stopping() const { return stopping_; }

 private:
  struct Exchange;  // one call under way
  [[nodiscard]] CurlEasy* take_handle();
  void give_back(CurlEasy* handle);

  // Constant after construction.
  const std::shared_ptr<const Curl> curl_;
  const std::string ca_file_;
  const HttpLimits limits_;

  std::atomic<std::uint64_t> sent_bytes_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> disowned_ = false;  // in a forked child
  std::mutex mutex_;
  std::vector<CurlEasy*> idle_;  // guarded by mutex_; each keeps its connection
  ForkGuard guard_;
};

}  // namespace slackwater::s3
