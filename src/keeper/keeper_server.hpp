// KeeperServer: the keeper process. It holds the memory of one trainer, waits for the trainer's end, then flushes what
// the trainer had staged and not committed, and keeps the memory for the next trainer. It ends when it is told to, or
// after a time without a trainer.
//
//   main thread: answers requests, watches the trainer (its socket and its pidfd), watches the clock
//   "sw-flush":  writes to tier 0 after the trainer's death; never before. Once the next one has attached, it begins
//                nothing that others can see (PublishGate). What it is in the middle of may hang; then the trainer is
//                told, and leaves the names alone
//
// Owner: the command line (cli/keeper.cpp). Thread rule: run() belongs to one thread.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/guarded.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "keeper/flush.hpp"
#include "keeper/keeper_socket.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "version/names.hpp"

namespace slackwater {

struct KeeperOptions {
  std::string directory;  // absolute
  std::uint32_t rank = 0;
  std::chrono::milliseconds keep_for{600'000};
  // How long whoever takes over waits for an operation of the flush on names (PublishGate::wait_idle).
  std::chrono::milliseconds idle_within{1'000};
  // Until a flush that failed is tried again. Doubles with each failure, up to a minute, or a second after SIGTERM.
  std::chrono::milliseconds flush_pause{1'000};
  // How long a step may take to be written after SIGTERM, or after the trainer's end if that comes later. Kubernetes
  // kills 30 s after its SIGTERM.
  std::chrono::milliseconds end_within{20'000};
};

class KeeperServer {
 public:
  // `listener` listens at keeper_address(). `signals`: a signalfd; SIGTERM arrives there.
  KeeperServer(KeeperOptions options, FileSystem& fs, const Clock& clock, Log log, UniqueFd listener, UniqueFd signals);
  ~KeeperServer();

  // Returns when the keeper is to end. Its memory is released then. False: a thread hangs in the file system, and the
  // destructor would wait for it. The process should end at once.
  [[nodiscard]] bool run();

 private:
  struct Peer {
    UniqueFd socket;
    pid_t process = 0;
    UniqueFd process_end;  // pidfd; none on kernels without it: then the socket alone tells
  };
  struct Flush {
    PublishGate gate;
    std::unique_ptr<FileLock> lock;  // of the directory: nobody may delete under the flush
    std::atomic<bool> ended{false};
    std::atomic<bool> again{false};  // it failed, but need not fail the next time
    std::jthread thread;             // started last
  };

  [[nodiscard]] std::optional<int> wait_ms() const;
  void accept_peer();
  void serve(Peer& peer);
  void handle(Peer& peer, const KeeperMessage& request);
  void attach(Peer& peer);
  void make_memory(Peer& peer, std::uint64_t size_bytes);
  [[nodiscard]] bool trainer_gone(bool process_ended) const;
  void trainer_ended();
  void take_signals();
  [[nodiscard]] bool flushes_end_within(std::chrono::milliseconds limit);
  [[nodiscard]] Result<std::shared_ptr<const Region>> open_memory() const;
  [[nodiscard]] std::vector<Region::Kept> unsettled(const Region& region) const;
  void begin_flush();
  [[nodiscard]] bool start_flush();
  void try_again_later();
  void tell_lost(const std::string& why);
  [[nodiscard]] std::vector<Region::Kept> steps_to_flush(const Region& region);
  void flush(Flush& flush, const std::shared_ptr<const Region>& region, const std::vector<Region::Kept>& waiting);
  void hand_over();
  [[nodiscard]] bool earlier_flush_hangs() const;
  void send(Peer& peer, const KeeperMessage& message, const UniqueFd* descriptor = nullptr);

  const KeeperOptions options_;
  FileSystem& fs_;
  const Clock& clock_;
  const Log log_;
  UniqueFd listener_;  // until the memory is released
  const UniqueFd signals_;
  const UniqueFd flush_ended_;  // eventfd

  UniqueFd memory_;
  std::optional<Peer> trainer_;
  std::vector<Peer> peers_;  // connected, not attached
  std::optional<TimePoint> release_at_;
  std::optional<TimePoint> flush_at_;  // when to try again
  std::chrono::milliseconds flush_pause_{};
  unsigned lock_tries_ = 0;
  bool told_to_end_ = false;         // by SIGTERM: ends as soon as there is no trainer and nothing to flush
  std::optional<TimePoint> end_at_;  // told to end, and without a trainer: when to give up what is not written
  bool done_ = false;
  Guarded<std::set<VersionName>> settled_;       // in the memory, and committed by a flush of this keeper
  std::shared_ptr<Flush> flush_;                 // the current one; null: none
  std::vector<std::shared_ptr<Flush>> stopped_;  // their gates are closed, but they may hang in a write
};

}  // namespace slackwater
