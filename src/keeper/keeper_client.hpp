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

  // What the keeper held when this trainer attached; null: nothing, or make_memory() was called.
  [[nodiscard]] const std::shared_ptr<SharedMemory>& memory() const { return memory_; }
  // The keeper was writing a step, and hangs in that: files of its version may still be created and removed there. So
  // this trainer must not write them.
  [[nodiscard]] bool earlier_flush_hangs() const { return earlier_flush_hangs_; }
  // New memory, all zero. The keeper drops what it held, and so does this object. If nobody else has it mapped any
  // more, there is never more than one.
  [[nodiscard]] Result<std::shared_ptr<SharedMemory>> make_memory(std::uint64_t size_bytes);
  // The keeper releases its memory and ends. Without this call it takes the end of the connection for a crash.
  [[nodiscard]] Status release();

 private:
  explicit KeeperClient(UniqueFd socket);
  [[nodiscard]] Result<ReceivedMessage> ask(const KeeperMessage& request);

  UniqueFd socket_;
  std::shared_ptr<SharedMemory> memory_;
  bool earlier_flush_hangs_ = false;
  ForkGuard fork_guard_;  // last: its callback closes the socket
};

struct PeekedMemory {
  std::shared_ptr<SharedMemory> memory;  // to be read
  bool flushing = false;                 // the keeper is writing a step of a dead trainer, or will
  std::uint32_t progress = 0;            // of that: it grows with each slab
};
// What a keeper holds, without attaching to it: nothing changes for it. nullopt: there is none, or it holds nothing.
[[nodiscard]] Result<std::optional<PeekedMemory>> peek_at_keeper(const KeeperSettings& settings);
// Waits as long as the keeper of an earlier trainer writes a step, and no longer than `timeout` without any progress.
// Whoever attaches to it or ends it would stop that.
void wait_for_flush(const KeeperSettings& settings, std::chrono::milliseconds timeout);
// A run that cannot use the keeper of an earlier one takes over the directory. The keeper releases its memory and ends,
// and publishes nothing more.
void release_stale_keeper(const KeeperSettings& settings);

}  // namespace slackwater
