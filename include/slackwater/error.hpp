// Error and Result: how every call of Slackwater reports failure.
// No exception crosses this interface. Value types, free to copy and to move between threads.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace slackwater {

enum class ErrorKind : std::uint8_t {
  kInvalidArgument,  // misuse: wrong type, wrong order of calls, a step saved twice
  kNotFound,         // no such file, directory, step or tensor
  kAlreadyExists,    // an exclusive create found the name taken
  kPermission,       // the operating system denies access
  kNoSpace,          // disk or quota full
  kIo,               // any other failure of a system call
  kCorrupt,          // bytes on storage are not the bytes that were saved
  kMismatch,         // saved and given tensors differ in name, shape or dtype
  kTimeout,          // something did not happen in time
  kBusy,             // another run holds the directory
  kTorn,             // a tensor changed while it was being captured
  kAborted,          // the ranks decided to give this version up
  kInDoubt,          // the last sync failed: nobody knows whether the version is committed
  kClosed,           // the engine is closed, or belongs to the parent process
  kUnsupported,      // a format, feature, dtype or facility this build does not know
  kOutOfMemory,
  kDevice,    // the driver of a GPU reports a failure, or lost the device
  kInternal,  // a bug in Slackwater
};

[[nodiscard]] std::string_view to_string(ErrorKind kind);

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;      // one sentence: what was done, what went wrong, what to do
  std::string path;         // file or directory it happened to, empty if none
  int sys_errno = 0;        // 0 if no system call failed
  bool retryable = false;   // whether the same call may succeed later
  std::string tensor = {};  // name of the tensor it is about, empty if none; the message names it as well

  // "message: path (errno text)"; what people read.
  [[nodiscard]] std::string to_string() const;
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

[[nodiscard]] inline std::unexpected<Error> fail(Error error) { return std::unexpected<Error>(std::move(error)); }
[[nodiscard]] inline std::unexpected<Error> fail(ErrorKind kind, std::string message, std::string path = {}) {
  return std::unexpected<Error>(Error{kind, std::move(message), std::move(path), 0, false});
}

}  // namespace slackwater
