#include "store/s3/object_client.hpp"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "store/s3/checksums.hpp"
#include "store/s3/hashes.hpp"

namespace slackwater::s3 {
namespace {

constexpr std::uint64_t kSignedBodyBytes = 1u << 20;  // larger bodies are covered by a checksum, not by the signature

struct StoreError {
  std::string code;
  std::string message;
  std::string region;
};

StoreError parse_store_error(std::string_view body) {
  const auto root = parse_xml(body);
  if (!root || root->name != "Error") return {};
  return {printable(root->text_of("Code")), printable(root->text_of("Message")), printable(root->text_of("Region"))};
}

bool is_any(std::string_view code, std::initializer_list<std::string_view> codes) {
  return std::ranges::find(codes, code) != codes.end();
}

ErrorKind kind_of_status(int status) {
  switch (status) {
    case 401:
    case 403: return ErrorKind::kPermission;
    case 404: return ErrorKind::kNotFound;
    case 405:
    case 501: return ErrorKind::kUnsupported;
    case 409: return ErrorKind::kBusy;
    case 412: return ErrorKind::kAlreadyExists;
    case 507: return ErrorKind::kNoSpace;
    default: break;
  }
  return status / 100 == 5 ? ErrorKind::kIo : ErrorKind::kInvalidArgument;
}

// "Wed, 18 Nov 2026 16:30:51 GMT"
std::optional<std::int64_t> parse_http_date(const std::string& text) {
  std::tm parts{};
  const char* const end = ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S", &parts);
  if (end == nullptr) return std::nullopt;
  return ::timegm(&parts);
}

// Whether a 404 with this error code can mean that an object or an upload is missing. A bucket that exists has a list,
// so for a list it cannot: what was not reached must never be taken for empty.
bool may_be_missing(const ObjectCall& call, std::string_view code) {
  const bool lists_uploads = !call.query.empty() && call.query.front().first == "uploads";
  if (call.key.empty()) return lists_uploads && code == "NoSuchUpload";  // rclone, as long as none was ever begun
  // Without a code, only a list tells: settle_missing().
  const bool plain = call.query.empty() && (call.method == "HEAD" || call.method == "GET" || call.method == "DELETE");
  return !code.empty() || plain;
}

// After a 404 without an error code. It is the answer to a HEAD, which has no body, or something else answers in place
// of the store.
Error settle_missing(ObjectClient& client, const std::string& key, Error missing) {
  constexpr unsigned kEnough = 4;
  auto page = client.list_page(key, "/", kEnough);
  if (!page) return std::move(page).error();
  if (std::ranges::find(page->objects, key, &ObjectInfo::key) == page->objects.end()) return missing;
  missing.kind = ErrorKind::kIo;
  missing.message += ", but it lists the object";
  missing.retryable = true;
  return missing;
}

Result<std::string> hash_payload(ByteSource* body) {
  Sha256Stream stream;
  for (std::uint64_t done = 0; body != nullptr && done < body->size_bytes();) {
    SW_ASSIGN(const std::span<const std::byte> bytes, body->at(done));
    if (bytes.empty()) return fail(ErrorKind::kInternal, "the bytes to be sent end too soon");
    stream.add(bytes);
    done += bytes.size();
  }
  return to_hex(stream.finish());
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t kMax = 200;
  std::string result(text.substr(0, kMax));
  for (char& c : result)
    if (c < ' ' || c > '~') c = '?';
  return result;
}

Result<std::unique_ptr<ObjectClient>> ObjectClient::make(const std::string& bucket, ClientOptions options) {
  SW_ASSIGN(StoreAddress address, find_address(options.store, bucket, options.environment));
  SW_ASSIGN(Credentials credentials, find_credentials(options.store, options.environment));
  SW_ASSIGN(auto curl, Curl::load());
  return std::unique_ptr<ObjectClient>(
      new ObjectClient(std::move(address), std::move(options), std::move(credentials), std::move(curl)));
}

ObjectClient::ObjectClient(StoreAddress address, ClientOptions options, Credentials credentials,
                           std::shared_ptr<const Curl> curl)
    : address_(std::move(address)),
      options_(std::move(options)),
      credentials_(options_.store, options_.environment, std::move(credentials)),
      http_(std::move(curl), address_.ca_file, options_.http) {}

std::string ObjectClient::path_of(std::string_view key) const {
  return fmt::format("{}{}{}{}", kScheme, address_.bucket, key.empty() ? "" : "/", key);
}

void ObjectClient::stop() {
  {
    const std::lock_guard lock(pause_mutex_);
    http_.stop();
  }
  pause_over_.notify_all();
}

bool ObjectClient::pause(std::chrono::milliseconds duration) {
  std::unique_lock lock(pause_mutex_);
  return !pause_over_.wait_for(lock, duration, [this] { return http_.stopping(); });
}

std::chrono::milliseconds ObjectClient::pause_before(unsigned attempt) {
  const RetryLimits& limits = options_.retry;
  const auto full = std::min(limits.longest_pause, limits.first_pause * (1u << std::min(attempt, 16u)));
  // By chance, so that a thousand ranks that were turned away together do not come back together.
  thread_local std::minstd_rand random{std::random_device{}()};
  return std::chrono::milliseconds(std::uniform_int_distribution<std::int64_t>(full.count() / 2, full.count())(random));
}

Result<HttpAnswer> ObjectClient::try_once(const ObjectCall& call, const std::string& payload_hash,
                                          const Credentials& credentials) {
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  HttpRequest request{.method = call.method, .url = address_.url(call.key, call.query), .body = call.body};
  request.headers = sign({.method = call.method,
                          .host = address_.host(),
                          .path = address_.path(call.key),
                          .query = call.query,
                          .headers = call.headers,
                          .payload_hash = payload_hash,
                          .region = address_.region,
                          .unix_seconds = now + clock_offset_seconds_},
                         credentials);
  request.sink = call.sink;
  ++calls_;
  return http_.call(request, call.expected_bytes, down_ ? std::optional(options_.retry.connect_if_down) : std::nullopt);
}

// What an answer means that is not a success. `again`: another try may succeed.
Error ObjectClient::error_of(const ObjectCall& call, const HttpAnswer& answer, const Credentials& used, bool& again) {
  const StoreError said = parse_store_error(answer.body);
  const bool hidden = answer.status / 100 == 2;  // <Error> in an answer that said 200
  Error error{.kind = hidden ? ErrorKind::kIo : kind_of_status(answer.status), .message = {}, .path = {}};
  error.message = fmt::format("{}: the object store answered {}{}{}{}", call.doing, answer.status,
                              said.code.empty() ? "" : " " + said.code, said.message.empty() ? "" : ": ", said.message);
  error.path = path_of(call.key);

  again = answer.status / 100 == 5 && answer.status != 501 && answer.status != 507;
  again |= answer.status == 408 || answer.status == 429 || answer.status == 409;
  again |= is_any(said.code, {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling",
                              "BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "IncompleteBody",
                              "OperationAborted", "ConditionalRequestConflict"});
  if (is_any(said.code, {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken",
                         "InvalidAccessKeyId", "RequestExpired"})) {
    // Somebody may have written new ones into the file. Another request may have fetched them already: what counts is
    // what this one was signed with.
    error.kind = ErrorKind::kPermission;
    again = credentials_.renew(used);
    if (!again) error.message += "; the credentials have expired or are unknown: renew them";
  }
  if (said.code == "NoSuchBucket") {
    error.kind = ErrorKind::kInvalidArgument;
    error.message = fmt::format(
        "{}: the bucket '{}' does not exist at {}; create it, or correct its name, the endpoint or the region",
        call.doing, address_.bucket, address_.endpoint.host);
  } else if (answer.status == 404 && !may_be_missing(call, said.code)) {
    error.kind = ErrorKind::kIo;
    again = true;  // a proxy says so while the store behind it starts
    error.message += fmt::format(
        "; no object store says that about a bucket that exists: is {} its endpoint, and is the store running?",
        address_.endpoint.host);
  }
  if (said.code == "RequestTimeTooSkewed") {
    // The signature holds the time. Take the server's, once.
    const auto server = parse_http_date(answer.header("date"));
    const std::int64_t offset = server ? *server - static_cast<std::int64_t>(std::time(nullptr)) : 0;
    again = server && std::abs(offset - clock_offset_seconds_.exchange(offset)) > 60;
    if (!again) error.message += "; set this machine's clock";
  }
  const std::string region = said.region.empty() ? answer.header("x-amz-bucket-region") : said.region;
  if (!region.empty() && region != address_.region &&
      (answer.status == 301 || answer.status == 400 || answer.status == 307)) {
    error.kind = ErrorKind::kInvalidArgument;
    error.message +=
        fmt::format("; the bucket is in region '{}', but the request went to '{}': set AWS_REGION or the option region",
                    printable(region), address_.region);
  }
  error.retryable = again;
  return error;
}

Result<HttpAnswer> ObjectClient::send(ObjectCall call) {
  std::string payload_hash(kUnsignedPayload);
  if (call.body == nullptr || call.sign_body) {
    SW_ASSIGN(payload_hash, hash_payload(call.body));
  }
  for (unsigned attempt = 0;; ++attempt) {
    if (call.before_try) call.before_try(call);
    const bool was_down = down_;
    const Credentials credentials = credentials_.current();
    auto answer = try_once(call, payload_hash, credentials);
    bool again = false;
    Error error;
    if (answer) {
      down_ = false;
      const bool good = answer->status / 100 == 2;
      const bool hidden_error =
          good && !call.sink && answer->body.size() < kSignedBodyBytes && !parse_store_error(answer->body).code.empty();
      if (good && !hidden_error) {
        const Status checked = call.check ? call.check(*answer) : Status();
        if (checked) return answer;
        error = checked.error();
        if (error.path.empty()) error.path = path_of(call.key);
        again = error.retryable;
      } else {
        error = error_of(call, *answer, credentials, again);
      }
    } else {
      error = std::move(answer).error();
      if (!error.path.empty()) return fail(std::move(error));  // of what was to be sent: the store is not to blame
      again = error.retryable;
      error.message = fmt::format("{}: {}", call.doing, error.message);
      error.path = path_of(call.key);
    }
    const bool last = attempt + 1 >= options_.retry.tries || (was_down && !answer);
    if (!again || last) {
      // Whoever calls next need not wait for all the tries again. The first answer ends this.
      if (!answer && again) down_ = true;
      if (answer && error.kind == ErrorKind::kNotFound && parse_store_error(answer->body).code.empty())
        error = settle_missing(*this, call.key, std::move(error));
      return fail(std::move(error));
    }
    if (!pause(pause_before(attempt))) return fail(ErrorKind::kClosed, "the object store is being closed");
  }
}

Result<XmlElement> ObjectClient::send_for_xml(ObjectCall call, std::string_view root) {
  XmlElement found;
  // An answer that was cut short, or comes from a proxy, is worth another try.
  call.check = [&, doing = call.doing](const HttpAnswer& answer) -> Status {
    auto parsed = parse_xml(answer.body);
    if (parsed && parsed->name == root) {
      found = std::move(*parsed);
      return {};
    }
    return fail(Error{.kind = ErrorKind::kIo,
                      .message = fmt::format("{}: {}", doing,
                                             parsed ? fmt::format("the object store answered with <{}> instead of <{}>",
                                                                  printable(parsed->name), root)
                                                    : parsed.error().message),
                      .retryable = true});
  };
  SW_TRY(send(std::move(call)));
  return found;
}

Result<std::uint64_t> ObjectClient::size_of(const std::string& key) {
  SW_ASSIGN(const HttpAnswer answer, send({.doing = "cannot find the object", .method = "HEAD", .key = key}));
  const std::string text = answer.header("content-length");
  std::uint64_t size = 0;
  const auto [stop, trouble] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (trouble != std::errc() || stop != text.data() + text.size())
    return fail(ErrorKind::kIo, "the object store does not say how large the object is", path_of(key));
  return size;
}

Status ObjectClient::remove(const std::string& key) {
  auto removed = send({.doing = "cannot remove the object", .method = "DELETE", .key = key});
  if (!removed && removed.error().kind != ErrorKind::kNotFound) return fail(std::move(removed).error());
  return {};
}

Status ObjectClient::put(const std::string& key, ByteSource& source, bool if_none) {
  const bool sign_body = source.size_bytes() <= kSignedBodyBytes;
  SW_ASSIGN(const Checksums checksums, checksums_of(source, capabilities_.crc32c != Capability::kYes || sign_body));
  ObjectCall call{.doing = "cannot write the object", .method = "PUT", .key = key, .body = &source};
  call.sign_body = sign_body;
  call.headers = checksum_headers(checksums);
  if (if_none) call.headers.emplace_back("if-none-match", "*");
  call.check = [&](const HttpAnswer& answer) { return check_echo(answer, checksums, source); };
  SW_TRY(send(std::move(call)));
  return {};
}

}  // namespace slackwater::s3
