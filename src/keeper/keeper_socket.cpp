#include "keeper/keeper_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/result.hpp"

namespace slackwater {
namespace {

constexpr int kBacklog = 16;

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address abstract(const std::string& words) {
  Address address;
  address.name.sun_family = AF_UNIX;
  const std::size_t size = std::min(words.size(), sizeof(address.name.sun_path) - 1);
  std::memcpy(address.name.sun_path + 1, words.data(), size);  // the first byte stays NUL
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

Result<UniqueFd> make_socket(int flags) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!socket) return fail(error_from_errno(errno, "cannot make a socket for the keeper"));
  return socket;
}

}  // namespace

Result<std::string> keeper_address(const std::string& directory, std::uint32_t rank) {
  // By the directory itself, not by its name: several names may lead to it, and two containers that share a network may
  // have different directories of one name.
  struct stat info{};
  if (::stat(directory.c_str(), &info) != 0)
    return fail(error_from_errno(errno, "cannot look at the checkpoint directory", directory));
  const std::string identity = fmt::format("{}:{}:{}", info.st_dev, info.st_ino, ::geteuid());
  return fmt::format("slackwater-keeper-{}-{}", to_hex(digest128(identity)), rank);
}

Result<UniqueFd> listen_at(const std::string& words) {
  SW_ASSIGN(UniqueFd socket, make_socket(SOCK_NONBLOCK));
  const Address address = abstract(words);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0) {
    Error error = error_from_errno(errno, "cannot listen for a trainer");
    if (error.sys_errno == EADDRINUSE) error.kind = ErrorKind::kAlreadyExists;
    return fail(std::move(error));
  }
  if (::listen(socket.get(), kBacklog) != 0) return fail(error_from_errno(errno, "cannot listen for a trainer"));
  return socket;
}

Result<UniqueFd> connect_to(const std::string& words, std::chrono::milliseconds timeout) {
  SW_ASSIGN(UniqueFd socket, make_socket(0));
  const timeval limit{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    if (::setsockopt(socket.get(), SOL_SOCKET, option, &limit, sizeof limit) != 0)
      return fail(error_from_errno(errno, "cannot set a time limit for the keeper's answers"));
  const Address address = abstract(words);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0) {
    Error error = error_from_errno(errno, "cannot reach a keeper");
    if (error.sys_errno == ECONNREFUSED) error.kind = ErrorKind::kNotFound;
    return fail(std::move(error));
  }
  SW_TRY(check_peer(socket));
  return socket;
}

Result<pid_t> check_peer(const UniqueFd& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return fail(error_from_errno(errno, "cannot find out who is at the other end of the keeper's socket"));
  if (peer.uid != ::geteuid() || peer.pid <= 0)
    return fail(ErrorKind::kPermission,
                fmt::format("the process at the other end of the keeper's socket belongs to user {}, and this one to "
                            "user {}",
                            peer.uid, ::geteuid()));
  return peer.pid;
}

Status send_message(const UniqueFd& socket, const KeeperMessage& message, const UniqueFd* descriptor) {
  iovec bytes{.iov_base = const_cast<KeeperMessage*>(&message), .iov_len = sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  if (descriptor != nullptr) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = descriptor->get();
    std::memcpy(CMSG_DATA(rights), &number, sizeof number);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket.get(), &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(sizeof message))
    return fail(error_from_errno(sent < 0 ? errno : EIO, "cannot send a message between trainer and keeper"));
  return {};
}

Result<std::optional<ReceivedMessage>> receive_message(const UniqueFd& socket) {
  ReceivedMessage mail;
  iovec bytes{.iov_base = &mail.message, .iov_len = sizeof mail.message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    Error error = error_from_errno(errno, "no message came between trainer and keeper");
    if (error.sys_errno == EAGAIN) error.kind = ErrorKind::kTimeout;
    return fail(std::move(error));
  }
  // Every descriptor that came is ours to close, also those of a message that is refused.
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof number, sizeof number);
      mail.descriptor = UniqueFd(number);
    }
  }
  if (got == 0) return std::optional<ReceivedMessage>();
  if (got != static_cast<ssize_t>(sizeof mail.message) || mail.message.magic != KeeperMessage::kMagic ||
      (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
    return fail(ErrorKind::kCorrupt, "what came over the keeper's socket is not a message of this release");
  return std::optional<ReceivedMessage>(std::move(mail));
}

}  // namespace slackwater
