#include "os/posix_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include "base/error.hpp"

namespace slackwater {
namespace {

std::string holder_text() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return fmt::format("process {} on {}\n", ::getpid(), host.data());
}

// A regular file with no other name. What we write into it must not reach some other file through a hard link.
bool is_lock_file(int descriptor) {
  struct stat info{};
  return ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink <= 1;
}

Error not_a_lock_file(const std::string& path) {
  return {.kind = ErrorKind::kCorrupt,
          .message = "the lock is not a plain file (a link, pipe or device has its name); remove it",
          .path = path};
}

LockHolder read_holder(int descriptor) {
  std::array<char, kMaxLockTextBytes> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  return parse_lock_holder({text.data(), size > 0 ? static_cast<std::size_t>(size) : 0});
}

std::string busy_message(const LockHolder& holder) {
  const std::string process = holder.process.empty() ? "" : fmt::format(" ({})", holder.process);
  if (holder.doing.empty())
    return fmt::format("another run{} uses this directory; end it first or choose another directory", process);
  return fmt::format("{}{}{}{}", holder.doing, process, holder.remedy.empty() ? "" : "; ", holder.remedy);
}

void write_holder(int descriptor, const std::string& text) {
  // If a full disk refuses the text, messages do not name the holder. It can go on.
  if (::ftruncate(descriptor, 0) != 0) return;
  [[maybe_unused]] const ssize_t written = ::pwrite(descriptor, text.data(), text.size(), 0);
}

}  // namespace

LockHolder parse_lock_holder(std::string_view text) {
  LockHolder holder;
  for (std::string* line : {&holder.process, &holder.doing, &holder.remedy}) {
    while (!text.empty() && text[0] >= ' ' && text[0] <= '~') {
      *line += text[0];
      text.remove_prefix(1);
    }
    if (!text.starts_with('\n')) break;
    text.remove_prefix(1);
  }
  return holder;
}

bool locks_unknown(const Error& error) {
  return error.sys_errno == ENOLCK || error.sys_errno == ENOSYS || error.sys_errno == EOPNOTSUPP;
}

PosixLock::PosixLock() : guard_([this] { (void)descriptor_.close(); }) {}

PosixLock::~PosixLock() {
  // Unlock explicitly, in case a child has not closed its copy yet. In the child, the descriptor is already closed.
  if (descriptor_) ::flock(descriptor_.get(), LOCK_UN);
}

Result<std::unique_ptr<FileLock>> PosixLock::acquire(const std::string& path) {
  std::unique_ptr<PosixLock> lock(new PosixLock);
  // O_NONBLOCK: the open does not wait, whatever somebody planted under this name.
  lock->descriptor_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!lock->descriptor_) {
    if (errno == ELOOP || errno == ENXIO) return fail(not_a_lock_file(path));
    return fail(error_from_errno(errno, "cannot open the lock file", path));
  }
  const int descriptor = lock->descriptor_.get();
  if (!is_lock_file(descriptor)) return fail(not_a_lock_file(path));

  int answer = 0;
  do {
    answer = ::flock(descriptor, LOCK_EX | LOCK_NB);
  } while (answer != 0 && errno == EINTR);
  if (answer != 0 && errno == EWOULDBLOCK) {
    return fail(Error{
        .kind = ErrorKind::kBusy, .message = busy_message(read_holder(descriptor)), .path = path, .retryable = true});
  }
  if (answer != 0) return fail(error_from_errno(errno, "cannot lock the file", path));

  write_holder(descriptor, holder_text());  // the lock is ours
  return lock;
}

void PosixLock::explain(std::string_view doing, std::string_view remedy) {
  if (descriptor_) write_holder(descriptor_.get(), fmt::format("{}{}\n{}\n", holder_text(), doing, remedy));
}

}  // namespace slackwater
