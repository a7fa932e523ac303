// Curl: the libcurl of this machine, loaded by dlopen when the first s3:// location is opened. So the wheel links no
// libcurl, and `import slackwater` works where there is none. A table of the functions that we need, and the few
// constants, as libcurl's stable ABI (libcurl.so.4, since 2006) numbers them. docs/decisions/0019-object-store.md.
// Thread rule: constant after load(); the functions are thread-safe as long as each handle is used by one thread.
// Lifetime: the library stays loaded until the process ends.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "slackwater/error.hpp"

namespace slackwater::s3 {

// Of an easy handle's options: the type in ten thousands, the number below.
enum class CurlOption : int {
  kTimeoutMs = 155,
  kLowSpeedLimit = 19,
  kLowSpeedTime = 20,
  kNoProgress = 43,
  kNoBody = 44,
  kUpload = 46,
  kSslVerifyPeer = 64,
  kSslVerifyHost = 81,
  kHttpVersion = 84,
  kBufferSize = 98,
  kNoSignal = 99,
  kTcpNoDelay = 121,
  kConnectTimeoutMs = 156,
  kTcpKeepAlive = 213,
  kPathAsIs = 234,
  kUploadBufferSize = 280,  // since 7.62; an older libcurl refuses it and goes on without
  kWriteData = 10001,
  kUrl = 10002,
  kReadData = 10009,
  kErrorBuffer = 10010,
  kUserAgent = 10018,
  kHttpHeader = 10023,
  kHeaderData = 10029,
  kCustomRequest = 10036,
  kProgressData = 10057,
  kCaInfo = 10065,
  kSeekData = 10168,
  kWriteFunction = 20011,
  kReadFunction = 20012,
  kHeaderFunction = 20079,
  kSeekFunction = 20167,
  kProgressFunction = 20219,
  kUploadSize = 30115,
};

// The results that are treated in a way of their own. Every other one but kOk is trouble on the way.
enum class CurlCode : int {
  kOk = 0,
  kUnsupportedProtocol = 1,
  kBadUrl = 3,
  kCannotResolve = 6,
  kCannotConnect = 7,
  kWriteError = 23,
  kOutOfMemory = 27,
  kTimedOut = 28,
  kAborted = 42,
  kPeerNotTrusted = 60,
  kBadCaFile = 77,
};

inline constexpr int kCurlInfoStatus = 0x200002;
inline constexpr long kCurlHttp11 = 2;
inline constexpr std::size_t kCurlErrorBytes = 256;
inline constexpr std::size_t kCurlAbort = 0x10000000;  // from a read callback

struct CurlEasy;   // a handle; opaque
struct CurlSlist;  // a list of headers; opaque

struct Curl {
  int (*global_init)(long) = nullptr;
  CurlEasy* (*easy_init)() = nullptr;
  CurlCode (*easy_setopt)(CurlEasy*, CurlOption, ...) = nullptr;
  CurlCode (*easy_perform)(CurlEasy*) = nullptr;
  CurlCode (*easy_getinfo)(CurlEasy*, int, ...) = nullptr;
  void (*easy_reset)(CurlEasy*) = nullptr;
  void (*easy_cleanup)(CurlEasy*) = nullptr;
  const char* (*easy_strerror)(CurlCode) = nullptr;
  CurlSlist* (*slist_append)(CurlSlist*, const char*) = nullptr;
  void (*slist_free_all)(CurlSlist*) = nullptr;
  const char* (*version)() = nullptr;

  // Loads the first of these libraries that is there. kUnsupported says what to install.
  [[nodiscard]] static Result<std::shared_ptr<const Curl>> load(std::span<const std::string> libraries);
  // The one that SLACKWATER_LIBCURL names, or else the usual ones.
  [[nodiscard]] static Result<std::shared_ptr<const Curl>> load();
};

}  // namespace slackwater::s3
