#include "base/error.hpp"

#include <cerrno>
#include <system_error>

namespace slackwater {
namespace {

ErrorKind kind_of(int sys_errno) {
  switch (sys_errno) {
    case ENOSPC:
    case EDQUOT: return ErrorKind::kNoSpace;  // not EFBIG: deleting files does not raise a limit on file size
    case EACCES:
    case EPERM:
    case EROFS: return ErrorKind::kPermission;
    case ENOENT:
    case ENOTDIR: return ErrorKind::kNotFound;
    case EEXIST: return ErrorKind::kAlreadyExists;
    case EBADMSG:  // the file system's own checksum did not match
    case EUCLEAN:  // the file system's structure is damaged
      return ErrorKind::kCorrupt;
    case ETIMEDOUT: return ErrorKind::kTimeout;
    case ENOMEM: return ErrorKind::kOutOfMemory;
    case ENOSYS:
    case EOPNOTSUPP: return ErrorKind::kUnsupported;
    default: return ErrorKind::kIo;
  }
}

bool is_retryable(int sys_errno) {
  switch (sys_errno) {
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
    case ENFILE:
    case ETIMEDOUT: return true;
    default: return false;
  }
}

}  // namespace

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "invalid argument";
    case ErrorKind::kNotFound: return "not found";
    case ErrorKind::kAlreadyExists: return "already exists";
    case ErrorKind::kPermission: return "permission";
    case ErrorKind::kNoSpace: return "no space";
    case ErrorKind::kIo: return "i/o";
    case ErrorKind::kCorrupt: return "corrupt";
    case ErrorKind::kMismatch: return "mismatch";
    case ErrorKind::kTimeout: return "timeout";
    case ErrorKind::kBusy: return "busy";
    case ErrorKind::kTorn: return "torn";
    case ErrorKind::kAborted: return "aborted";
    case ErrorKind::kInDoubt: return "in doubt";
    case ErrorKind::kClosed: return "closed";
    case ErrorKind::kUnsupported: return "unsupported";
    case ErrorKind::kOutOfMemory: return "out of memory";
    case ErrorKind::kDevice: return "device";
    case ErrorKind::kInternal: return "internal";
  }
  return "unknown";
}

std::string Error::to_string() const {
  std::string text = message.empty() ? std::string(slackwater::to_string(kind)) : message;
  if (!path.empty()) text.append(": ").append(path);
  if (sys_errno != 0) text.append(" (").append(std::generic_category().message(sys_errno)).append(")");
  return text;
}

Error error_from_errno(int sys_errno, std::string doing, std::string path) {
  return Error{.kind = kind_of(sys_errno),
               .message = std::move(doing),
               .path = std::move(path),
               .sys_errno = sys_errno,
               .retryable = is_retryable(sys_errno)};
}

Status status_from_errno(int answer, const char* doing, const std::string& path) {
  if (answer == 0) return {};
  return fail(error_from_errno(errno, doing, path));
}

}  // namespace slackwater
