// How a trainer and a keeper talk: messages of fixed size on a Unix socket, some with a descriptor. The address follows
// from the checkpoint directory, the user and the rank. It is abstract, so it is gone when the keeper is. Each side
// checks that the other runs as the same user, whoever has taken the name.
// Thread rule: one thread per socket.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

enum class MessageKind : std::uint32_t {
  // Requests.
  kAttach = 1,  // a trainer takes over: from the reply on, the keeper publishes nothing of earlier attempts
  kMakeMemory,  // the attached trainer wants memory of `bytes`; what there was is dropped
  kPeek,        // anybody of this user may read the memory
  kRelease,     // release the memory and end
  // Replies.
  kMemory = 64,  // with a descriptor; `bytes` is its size
  kNoMemory,     // there is none, or none could be made (`sys_errno`)
  kRefused,      // a trainer that runs is attached
  kReleased,
};

struct KeeperMessage {
  static constexpr std::uint32_t kMagic = 0x736b7031;
  std::uint32_t magic = kMagic;
  MessageKind kind = MessageKind::kAttach;
  std::uint64_t bytes = 0;
  std::int32_t sys_errno = 0;
  std::int32_t pid = 0;  // kRefused: of the trainer that is attached
  // Reply to kPeek: 1 while a step of a dead trainer is being written, or will be. Reply to kAttach: 1 if a write of
  // such a step hangs.
  std::uint32_t flushing = 0;
  std::uint32_t progress = 0;  // reply to kPeek: grows while that step is being written
};

// A name in the abstract namespace, without the leading NUL. kNotFound if there is no such directory.
[[nodiscard]] Result<std::string> keeper_address(const std::string& directory, std::uint32_t rank);

[[nodiscard]] Result<UniqueFd> listen_at(const std::string& address);  // kAlreadyExists: somebody listens there
// kNotFound: nobody listens. kPermission: another user does. Calls on the socket fail after `timeout`.
[[nodiscard]] Result<UniqueFd> connect_to(const std::string& address, std::chrono::milliseconds timeout);

// The process at the other end. kPermission: it runs as another user, or outside of what this process can see.
[[nodiscard]] Result<pid_t> check_peer(const UniqueFd& socket);

[[nodiscard]] Status send_message(const UniqueFd& socket, const KeeperMessage& message,
                                  const UniqueFd* descriptor = nullptr);
struct ReceivedMessage {
  KeeperMessage message;
  UniqueFd descriptor;  // if one came with it
};
// nullopt: the other end is closed. kCorrupt: that was no message.
[[nodiscard]] Result<std::optional<ReceivedMessage>> receive_message(const UniqueFd& socket);

}  // namespace slackwater
