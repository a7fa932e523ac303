#include "store/s3/http_client.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace slackwater::s3 {
namespace {

constexpr std::size_t kMaxIdle = 64;
constexpr std::size_t kMaxHeaders = 200;
constexpr std::size_t kMaxHeaderBytes = 16u << 10;
constexpr long kBufferBytes = 256 << 10;

// TLS libraries write to a socket that the server has closed and get SIGPIPE for it. This thread must not take it.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec at_once{};
    if (!was_pending_) (void)::sigtimedwait(&pipe_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

}  // namespace

std::string HttpAnswer::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, &Headers::value_type::first);
  return found == headers.end() ? std::string() : found->second;
}

// The callbacks are called by libcurl, from within easy_perform. No exception may pass through it.
struct HttpClient::Exchange {
  const HttpRequest& request;
  HttpClient& client;
  std::uint64_t max_body_bytes = 0;
  HttpAnswer answer = {};
  std::uint64_t sent = 0;                  // of the body
  std::optional<Error> source_error = {};  // of the body
  bool satisfied = false;                  // the sink wants no more
  bool too_long = false;
  bool broken = false;  // a callback ran out of memory

  static std::size_t send(char* into, std::size_t size, std::size_t count, void* self) noexcept {
    auto& exchange = *static_cast<Exchange*>(self);
    ByteSource* const body = exchange.request.body;
    if (body == nullptr || exchange.sent >= body->size_bytes()) return 0;
    const std::uint64_t left = body->size_bytes() - exchange.sent;
    try {
      auto bytes = body->at(exchange.sent);
      if (bytes && !bytes->empty()) {
        const auto taken = bytes->first(std::min({size * count, bytes->size(), static_cast<std::size_t>(left)}));
        std::memcpy(into, taken.data(), taken.size());
        exchange.sent += taken.size();
        exchange.client.sent_bytes_ += taken.size();
        return taken.size();
      }
      exchange.source_error = bytes ? Error{.kind = ErrorKind::kInternal,
                                            .message = "the bytes of a request end too soon",
                                            .path = exchange.request.url}
                                    : std::move(bytes).error();
    } catch (const std::exception&) {
      exchange.broken = true;
    }
    return kCurlAbort;
  }

  // A kept connection may turn out to be dead after some bytes were sent. libcurl then begins again on a new one.
  static int seek(void* self, std::int64_t offset, int origin) noexcept {
    auto& exchange = *static_cast<Exchange*>(self);
    constexpr int kFail = 1;
    if (origin != SEEK_SET || offset < 0) return kFail;
    exchange.sent = static_cast<std::uint64_t>(offset);
    return 0;
  }

  static std::size_t receive_header(char* data, std::size_t size, std::size_t count, void* self) noexcept {
    auto& exchange = *static_cast<Exchange*>(self);
    try {
      exchange.take_header(std::string_view(data, size * count));
    } catch (const std::exception&) {
      exchange.broken = true;
      return 0;
    }
    return size * count;
  }
  void take_header(std::string_view line) {
    while (line.ends_with('\n') || line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // a new answer: one such as 100 may come before the real one
      answer.headers.clear();
      answer.status = 0;
      const std::size_t space = line.find(' ');
      for (std::size_t i = space + 1; space != line.npos && i < line.size() && i < space + 4; ++i)
        answer.status = line[i] >= '0' && line[i] <= '9' ? answer.status * 10 + (line[i] - '0') : 0;
      return;
    }
    const std::size_t colon = line.find(':');
    if (colon == line.npos || answer.headers.size() >= kMaxHeaders || line.size() > kMaxHeaderBytes) return;
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
    answer.headers.emplace_back(lower(line.substr(0, colon)), std::string(value));
  }

  static std::size_t receive(char* data, std::size_t size, std::size_t count, void* self) noexcept {
    auto& exchange = *static_cast<Exchange*>(self);
    const std::size_t bytes = size * count;
    try {
      if (exchange.request.sink && exchange.answer.status / 100 == 2) {
        if (exchange.request.sink(exchange.answer, std::as_bytes(std::span(data, bytes)))) return bytes;
        exchange.satisfied = true;
        return 0;
      }
      if (exchange.answer.body.size() + bytes > exchange.max_body_bytes) {
        exchange.too_long = true;
        return 0;
      }
      exchange.answer.body.append(data, bytes);
    } catch (const std::exception&) {
      exchange.broken = true;
      return 0;
    }
    return bytes;
  }

  // Called about once per second at least.
  static int progress(void* self, std::int64_t, std::int64_t, std::int64_t, std::int64_t) noexcept {
    return static_cast<Exchange*>(self)->client.stopping() ? 1 : 0;
  }
};

HttpClient::HttpClient(std::shared_ptr<const Curl> curl, std::string ca_file, HttpLimits limits)
    : curl_(std::move(curl)), ca_file_(std::move(ca_file)), limits_(limits), guard_([this] { disowned_ = true; }) {}

HttpClient::~HttpClient() {
  // In a child, closing a TLS connection would say goodbye to the server in the parent's name.
  if (disowned_) return;
  for (CurlEasy* const handle : idle_) curl_->easy_cleanup(handle);
}

CurlEasy* HttpClient::take_handle() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      CurlEasy* const handle = idle_.back();
      idle_.pop_back();
      return handle;
    }
  }
  return curl_->easy_init();
}

void HttpClient::give_back(CurlEasy* handle) {
  curl_->easy_reset(handle);  // keeps the connection
  {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdle) {
      idle_.push_back(handle);
      return;
    }
  }
  curl_->easy_cleanup(handle);
}

Result<HttpAnswer> HttpClient::call(const HttpRequest& request, std::uint64_t body_bytes,
                                    std::optional<std::chrono::milliseconds> connect) {
  if (disowned_) return fail(ErrorKind::kClosed, "this connection to the object store belongs to the parent process");
  if (stopping_) return fail(ErrorKind::kClosed, "the object store is being closed");
  CurlEasy* const handle = take_handle();
  if (handle == nullptr) return fail(ErrorKind::kOutOfMemory, "libcurl has no memory for a connection");

  Exchange exchange{.request = request, .client = *this, .max_body_bytes = limits_.max_body_bytes};
  std::array<char, kCurlErrorBytes> trouble{};
  CurlSlist* headers = nullptr;
  const auto add_header = [&](const std::string& line) { headers = curl_->slist_append(headers, line.c_str()); };
  for (const auto& [name, value] : request.headers)
    if (name != "host") add_header(fmt::format("{}: {}", name, value));  // libcurl's own is the same
  add_header("Expect:");                                                 // no pause before a body is sent
  add_header("Accept:");

  const auto set = [&](CurlOption option, auto value) { (void)curl_->easy_setopt(handle, option, value); };
  set(CurlOption::kUrl, request.url.c_str());
  set(CurlOption::kPathAsIs, 1L);
  set(CurlOption::kCustomRequest, request.method.c_str());
  set(CurlOption::kHttpHeader, headers);
  set(CurlOption::kUserAgent, "slackwater");
  set(CurlOption::kHttpVersion, kCurlHttp11);  // one connection for each request under way is faster than one for all
  set(CurlOption::kNoSignal, 1L);
  set(CurlOption::kTcpNoDelay, 1L);
  set(CurlOption::kTcpKeepAlive, 1L);
  set(CurlOption::kBufferSize, kBufferBytes);
  set(CurlOption::kUploadBufferSize, kBufferBytes);
  set(CurlOption::kErrorBuffer, trouble.data());
  set(CurlOption::kSslVerifyPeer, 1L);
  set(CurlOption::kSslVerifyHost, 2L);
  if (!ca_file_.empty()) set(CurlOption::kCaInfo, ca_file_.c_str());
  set(CurlOption::kConnectTimeoutMs, static_cast<long>(connect.value_or(limits_.connect).count()));
  set(CurlOption::kLowSpeedLimit, static_cast<long>(limits_.stall_bytes));
  set(CurlOption::kLowSpeedTime, static_cast<long>(limits_.stall.count()));
  const std::uint64_t size_bytes = request.body != nullptr ? request.body->size_bytes() : 0;
  set(CurlOption::kTimeoutMs, static_cast<long>(1000 * (static_cast<std::uint64_t>(limits_.call.count()) +
                                                        (size_bytes + body_bytes) / limits_.call_bytes)));
  set(CurlOption::kWriteFunction, &Exchange::receive);
  set(CurlOption::kWriteData, static_cast<void*>(&exchange));
  set(CurlOption::kHeaderFunction, &Exchange::receive_header);
  set(CurlOption::kHeaderData, static_cast<void*>(&exchange));
  set(CurlOption::kNoProgress, 0L);
  set(CurlOption::kProgressFunction, &Exchange::progress);
  set(CurlOption::kProgressData, static_cast<void*>(&exchange));
  if (request.method == "HEAD") {
    set(CurlOption::kNoBody, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    set(CurlOption::kUpload, 1L);
    set(CurlOption::kUploadSize, static_cast<std::int64_t>(size_bytes));
    set(CurlOption::kReadFunction, &Exchange::send);
    set(CurlOption::kReadData, static_cast<void*>(&exchange));
    set(CurlOption::kSeekFunction, &Exchange::seek);
    set(CurlOption::kSeekData, static_cast<void*>(&exchange));
  }

  const CurlCode code = [&] {
    const WithoutSigpipe without;
    return curl_->easy_perform(handle);
  }();
  give_back(handle);
  curl_->slist_free_all(headers);

  if (exchange.source_error) return fail(std::move(*exchange.source_error));
  if (exchange.broken)
    return fail(ErrorKind::kOutOfMemory, "there is no memory for what goes to the object store and comes back");
  if (exchange.too_long)
    return fail(ErrorKind::kCorrupt, "the object store's answer is longer than any that we expect");
  if (code == CurlCode::kOk || (code == CurlCode::kWriteError && exchange.satisfied)) {
    if (exchange.answer.status >= 200) return std::move(exchange.answer);
    return fail(Error{.kind = ErrorKind::kIo, .message = "the object store did not answer in HTTP", .retryable = true});
  }
  if (code == CurlCode::kAborted && stopping_) return fail(ErrorKind::kClosed, "the object store is being closed");
  const char* const reason = trouble[0] != '\0' ? trouble.data() : curl_->easy_strerror(code);
  Error error{.kind = ErrorKind::kIo,
              .message = fmt::format("the object store could not be reached, or broke off: {}", reason),
              .retryable = true};
  if (code == CurlCode::kTimedOut) error.kind = ErrorKind::kTimeout;
  if (code == CurlCode::kPeerNotTrusted || code == CurlCode::kBadCaFile) {
    error =
        Error{.kind = ErrorKind::kPermission,
              .message = fmt::format("the object store's certificate is not trusted ({}); name its authority's file "
                                     "in AWS_CA_BUNDLE",
                                     reason)};
  } else if (code == CurlCode::kUnsupportedProtocol || code == CurlCode::kBadUrl) {
    error.kind = ErrorKind::kInvalidArgument;
    error.retryable = false;
  }
  return fail(std::move(error));
}

}  // namespace slackwater::s3
