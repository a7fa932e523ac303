// KeeperClient: a trainer's connection to the keeper of its directory and rank. The keeper is our own binary, started
// with exec in a session of its own, so that it survives whatever ends the trainer. While the connection is open, the
// keeper knows that the trainer lives.
// Owner: the engine's MemoryTier. Thread rule: one thread at a time. The descriptor is closed in forked children, so
// that a data loader does not look like a living trainer.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"
#include "keeper/keeper_socket.hpp"
#include "os/shared_memory.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct KeeperSettings {
  std::string directory;  // of tier 0
  std::uint32_t rank = 0;
  std::string program = "slackwater";              // the binary, by name or path
  std::chrono::milliseconds keep_for{600'000};     // how long a keeper without a trainer holds its memory
  std::chrono::milliseconds answer_within{5'000};  // how long a keeper may take to answer
};

class KeeperClient {
 public:
  // Attaches to the keeper that runs for this directory and rank. nullopt: there is none. kBusy: another trainer is
  // attached to it.
  [[nodiscard]] static Result<std::optional<std::unique_ptr<KeeperClient>>> attach(const KeeperSettings& settings);
  // The same, but starts a keeper if there is none.
  [[nodiscard]] static Result<std::unique_ptr<KeeperClient>> start(const KeeperSettings& settings);

  // What the keeper held when this trainer attached; null: nothing.
  [[nodiscard]] const std::shared_ptr<SharedMemory>& memory() const { return memory_; }
  // New memory, all zero. What memory() was is dropped by the keeper.
  [[nodiscard]] Result<std::shared_ptr<SharedMemory>> make_memory(std::uint64_t size_bytes);
  // The keeper releases its memory and ends. Without this call it takes the end of the connection for a crash.
  [[nodiscard]] Status release();

 private:
  explicit KeeperClient(UniqueFd socket);
  [[nodiscard]] Result<ReceivedMessage> ask(const KeeperMessage& request);

  UniqueFd socket_;
  std::shared_ptr<SharedMemory> memory_;
  ForkGuard fork_guard_;  // last: its callback closes the socket
};

// The memory of the keeper of another rank, to be read. nullopt: there is no keeper, or it holds nothing.
[[nodiscard]] Result<std::optional<std::shared_ptr<SharedMemory>>> peek_at_keeper(const KeeperSettings& settings);
// A run that does not use a memory tier takes over the directory: a keeper of an earlier run must publish nothing.
void release_stale_keeper(const KeeperSettings& settings);

}  // namespace slackwater
