// ObjectClient: signed requests to one bucket, with retries. Backs off with jitter, fetches new credentials when they
// have expired, and takes a 200 that carries <Error> for the error it is. What is asked with several requests, such as
// an upload in parts, is in multipart.hpp.
// Owner: ObjectFileSystem. Thread rule: thread-safe; calls block. stop() makes them end soon.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/options.hpp"
#include "store/s3/credential_cache.hpp"
#include "store/s3/http_client.hpp"
#include "store/s3/settings.hpp"
#include "store/s3/xml.hpp"

namespace slackwater::s3 {

struct RetryLimits {
  unsigned tries = 6;
  std::chrono::milliseconds first_pause{100};  // doubled after each try, and shortened by chance to a half at least
  std::chrono::milliseconds longest_pause{5'000};
  std::chrono::milliseconds connect_if_down{2'000};  // after the store could not be reached
};

struct ClientOptions {
  S3Options store;
  HttpLimits http;
  RetryLimits retry;
  Environment environment = process_environment();
  std::uint64_t least_part_bytes = 64u << 20;  // smaller in tests
};

struct ObjectCall {
  std::string doing;  // "cannot list the objects", for errors
  std::string method;
  std::string key;
  Query query = {};
  Headers headers = {};
  ByteSource* body = nullptr;
  bool sign_body = false;            // hash it for the signature; otherwise only its headers are signed
  std::uint64_t expected_bytes = 0;  // of the answer
  std::function<bool(const HttpAnswer&, std::span<const std::byte>)> sink = {};
  std::function<void(ObjectCall&)> before_try = {};     // may change the headers
  std::function<Status(const HttpAnswer&)> check = {};  // of a good answer; a retryable error means another try
};

struct ObjectInfo {
  std::string key;
  std::uint64_t size_bytes = 0;
};

struct ObjectPage {
  std::vector<ObjectInfo> objects;
  std::vector<std::string> prefixes;  // each with the slash at its end
  std::string next;                   // continuation; empty: this was the last page
};

// Whether this server can do something, as far as we have found out.
enum class Capability : std::uint8_t { kUnknown, kYes, kNo };

struct Capabilities {
  std::atomic<Capability> crc32c = Capability::kUnknown;   // confirms a CRC32C
  std::atomic<Capability> if_none = Capability::kUnknown;  // honours If-None-Match
};

class ObjectClient {
 public:
  // kUnsupported: there is no libcurl. kPermission: there are no credentials.
  [[nodiscard]] static Result<std::unique_ptr<ObjectClient>> make(const std::string& bucket, ClientOptions options);

  [[nodiscard]] const ClientOptions& options() const { return options_; }
  [[nodiscard]] const std::string& bucket() const { return address_.bucket; }
  [[nodiscard]] std::string path_of(std::string_view key) const;  // "s3://bucket/key", for errors

  // Errors: kNotFound (the object or the upload is missing, as the store itself says), kAlreadyExists (412),
  // kPermission (401, 403), kUnsupported (405, 501), kBusy (409, in the end), kInvalidArgument (no such bucket, a wrong
  // region, a bad request); kIo and kTimeout, retryable, if all tries failed. Any other 404 is kIo. An error of the
  // body's source is returned as it is, with its path.
  [[nodiscard]] Result<HttpAnswer> send(ObjectCall call);
  // The same, for answers in XML whose root has this name.
  [[nodiscard]] Result<XmlElement> send_for_xml(ObjectCall call, std::string_view root);

  [[nodiscard]] Result<std::uint64_t> size_of(const std::string& key);
  // Fills `into` with the object's bytes from `offset` on. `size_bytes` is the object's size: another one is an error.
  [[nodiscard]] Status read(const std::string& key, std::span<std::byte> into, std::uint64_t offset,
                            std::uint64_t size_bytes);
  [[nodiscard]] Result<std::string> read_whole(const std::string& key, std::uint64_t max_bytes);
  [[nodiscard]] Status put(const std::string& key, ByteSource& source, bool if_none);
  // Exactly one writer gets the name; kAlreadyExists for the others. If the object there has our bytes, it is ours.
  [[nodiscard]] Status create(const std::string& key, std::string_view bytes);
  [[nodiscard]] Status remove(const std::string& key);
  // One page, or all of them (`next` is then empty). `delimiter`: "/" or empty.
  [[nodiscard]] Result<ObjectPage> list_page(const std::string& prefix, std::string_view delimiter, unsigned max_keys,
                                             const std::string& token = {});
  [[nodiscard]] Result<ObjectPage> list(const std::string& prefix, std::string_view delimiter);

  void stop();
  [[nodiscard]] std::uint64_t sent_bytes() const { return http_.sent_bytes(); }  // of bodies, finished or not
  // Sleeps unless stop() is called. False: it was.
  [[nodiscard]] bool pause(std::chrono::milliseconds duration);

  [[nodiscard]] Capabilities& capabilities() { return capabilities_; }
  [[nodiscard]] std::uint64_t calls() const { return calls_; }  // requests sent so far

 private:
  ObjectClient(StoreAddress address, ClientOptions options, Credentials credentials, std::shared_ptr<const Curl> curl);
  [[nodiscard]] Result<HttpAnswer> try_once(const ObjectCall& call, const std::string& payload_hash,
                                            const Credentials& credentials);
  [[nodiscard]] Error error_of(const ObjectCall& call, const HttpAnswer& answer, const Credentials& used, bool& again);
  [[nodiscard]] std::chrono::milliseconds pause_before(unsigned attempt);
  [[nodiscard]] Result<bool> holds(const std::string& key, std::string_view bytes);

  // Constant after construction.
  const StoreAddress address_;
  const ClientOptions options_;

  CredentialCache credentials_;
  Capabilities capabilities_;
  std::atomic<std::int64_t> clock_offset_seconds_ = 0;  // the server's clock less ours, if they differ too much
  std::atomic<bool> down_ = false;                      // the last call could not reach the store: try once only
  std::atomic<std::uint64_t> calls_ = 0;
  std::mutex pause_mutex_;
  std::condition_variable pause_over_;
  HttpClient http_;
};

// Pure; for answers of list requests.
[[nodiscard]] Result<ObjectPage> parse_object_page(const XmlElement& root);

// One line of printable text of at most 200 characters. For what servers say.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace slackwater::s3
