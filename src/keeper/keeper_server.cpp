#include "keeper/keeper_server.hpp"

#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.hpp"
#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"

namespace slackwater {
namespace {

constexpr unsigned kLockTries = 200;
constexpr std::chrono::milliseconds kLockPause{25};
constexpr std::chrono::milliseconds kLastFlushPause{60'000};
constexpr std::chrono::milliseconds kPauseAfterSigterm{1'000};
constexpr std::size_t kMaxPeers = 16;  // connected at once without being the trainer

UniqueFd watch_process(pid_t process) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))); }

// Not what the memory or the directory says about the version, but trouble that may pass: a full disk, an I/O error, a
// lock that somebody holds.
bool may_pass(const Error& error) {
  const ErrorKind kind = error.kind;
  return kind != ErrorKind::kAborted && kind != ErrorKind::kCorrupt && kind != ErrorKind::kMismatch &&
         kind != ErrorKind::kUnsupported;
}

// "step 7 is", "steps 6, 7 are"
std::string listed(const std::vector<Region::Kept>& kept) {
  std::vector<std::uint64_t> steps;
  for (const Region::Kept& each : kept) steps.push_back(each.version.name.step);
  return fmt::format("{} {} {}", steps.size() == 1 ? "step" : "steps", fmt::join(steps, ", "),
                     steps.size() == 1 ? "is" : "are");
}

bool ready(const pollfd& watched) { return watched.revents != 0; }

// The other end is closed, whatever it sent before.
bool hung_up(const UniqueFd& socket) {
  pollfd end{.fd = socket.get(), .events = 0, .revents = 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & POLLHUP) != 0;
}

}  // namespace

KeeperServer::KeeperServer(KeeperOptions options, FileSystem& fs, const Clock& clock, Log log, UniqueFd listener,
                           UniqueFd signals)
    : options_(std::move(options)),
      fs_(fs),
      clock_(clock),
      log_(std::move(log)),
      listener_(std::move(listener)),
      signals_(std::move(signals)),
      flush_ended_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      release_at_(clock.now() + options_.keep_for) {}

KeeperServer::~KeeperServer() = default;

bool KeeperServer::run() {
  while (!done_) {
    std::vector<pollfd> watched;
    const auto watch = [&](const UniqueFd& descriptor) {
      watched.push_back({.fd = descriptor ? descriptor.get() : -1, .events = POLLIN, .revents = 0});
    };
    watch(listener_);
    watch(signals_);
    watch(flush_ended_);
    static const UniqueFd kNone;
    watch(trainer_ ? trainer_->socket : kNone);
    watch(trainer_ ? trainer_->process_end : kNone);
    for (const Peer& peer : peers_) watch(peer.socket);
    const int count = ::poll(watched.data(), watched.size(), wait_ms().value_or(-1));
    if (count < 0 && errno != EINTR) {
      log_.error("{}", error_from_errno(errno, "the keeper cannot wait for its trainer").to_string());
      break;
    }
    if (count < 0) continue;

    if (ready(watched[1])) take_signals();
    // The trainer first: one that is gone must not keep the next one out.
    if (trainer_ && (ready(watched[3]) || ready(watched[4]))) {
      if (trainer_gone(ready(watched[4]))) {
        trainer_ended();
      } else {
        serve(*trainer_);
      }
    }
    for (std::size_t i = 0; i < peers_.size() && 5 + i < watched.size(); ++i)
      if (ready(watched[5 + i])) serve(peers_[i]);
    std::erase_if(peers_, [](const Peer& peer) { return !peer.socket; });
    // One that could not be answered, or that sent garbage. Its process may live on, without a memory tier.
    if (trainer_ && !trainer_->socket) trainer_ended();
    if (ready(watched[0])) accept_peer();
    if (ready(watched[2])) {
      std::uint64_t ended = 0;
      if (::read(flush_ended_.get(), &ended, sizeof ended) < 0) ended = 0;
      if (flush_ && flush_->ended) {
        if (flush_->again) try_again_later();
        flush_.reset();
      }
      std::erase_if(stopped_, [](const auto& old) { return old->ended.load(); });
    }
    if (!trainer_ && flush_at_ && clock_.now() >= *flush_at_) begin_flush();
    if (!trainer_ && release_at_ && clock_.now() >= *release_at_) {
      const std::string waited = format_seconds(std::chrono::duration<double>(options_.keep_for).count());
      log_.info("no trainer attached for {}: the memory is released", waited);
      tell_lost(fmt::format("not written within {} of the trainer's end (memory_timeout)", waited));
      done_ = true;
    }
    if (!done_ && told_to_end_ && !trainer_ && !flush_ && !flush_at_) {
      tell_lost("the keeper was told to end");
      done_ = true;
    }
    if (!done_ && !trainer_ && end_at_ && clock_.now() >= *end_at_) {
      tell_lost(fmt::format("not written within {} of SIGTERM, or of the trainer's end",
                            format_seconds(std::chrono::duration<double>(options_.end_within).count())));
      done_ = true;
    }
  }
  // Closed before the threads are joined: the flush ends after the slab in hand, and publishes nothing more.
  hand_over();
  memory_ = UniqueFd();
  return flushes_end_within(options_.idle_within);
}

void KeeperServer::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (std::exchange(told_to_end_, true)) continue;
    log_.info("told to end (SIGTERM){}", trainer_ ? "; the keeper ends after its trainer" : "");
    if (!trainer_) end_at_ = clock_.now() + options_.end_within;
    if (flush_at_) flush_at_ = clock_.now();  // a long pause would use up the time that is left
  }
}

// Before the memory goes, without a trainer that would know better. A decision that is being written may still come
// into force: then the step is there, and the log only said too little.
void KeeperServer::tell_lost(const std::string& why) {
  if (!memory_) return;
  const auto region = open_memory();
  if (!region) return log_.error("the memory cannot be read: {}", region.error().to_string());
  const std::vector<Region::Kept> lost = unsettled(**region);
  if (lost.empty()) return;
  log_.error("{} only in this memory, as far as the keeper knows, and lost with it: {}{}", listed(lost), why,
             stopped_.empty() ? "" : ", because an earlier write hangs");
}

// Their gates are closed: they end after the call in hand. That may hang.
bool KeeperServer::flushes_end_within(std::chrono::milliseconds limit) {
  const auto all_ended = [this] {
    return std::ranges::all_of(stopped_, [](const auto& old) { return old->ended.load(); });
  };
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!all_ended()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd ended{.fd = flush_ended_.get(), .events = POLLIN, .revents = 0};
    std::uint64_t count = 0;
    if (::poll(&ended, 1, static_cast<int>(left)) > 0 && ::read(flush_ended_.get(), &count, sizeof count) < 0)
      count = 0;
  }
  return true;
}

std::optional<int> KeeperServer::wait_ms() const {
  if (trainer_ || !release_at_) return std::nullopt;
  TimePoint next = flush_at_ ? std::min(*flush_at_, *release_at_) : *release_at_;
  if (end_at_) next = std::min(next, *end_at_);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - clock_.now()).count() + 1;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void KeeperServer::accept_peer() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  const auto process = check_peer(socket);
  if (!process) return log_.warn("a connection was refused: {}", process.error().to_string());
  // The one that has been silent for longest goes, so that nobody can keep trainers out by saying nothing.
  if (peers_.size() == kMaxPeers) peers_.erase(peers_.begin());
  peers_.push_back({.socket = std::move(socket), .process = *process, .process_end = watch_process(*process)});
}

// One message, if there is one. A peer that is gone, or that says what nobody understands, is dropped.
void KeeperServer::serve(Peer& peer) {
  auto mail = receive_message(peer.socket);
  if (!mail && mail.error().kind == ErrorKind::kTimeout) return;  // nothing there after all
  if (!mail) log_.warn("closed the connection of process {}: {}", peer.process, mail.error().to_string());
  if (!mail || !*mail) {
    (void)peer.socket.close();
    return;
  }
  handle(peer, (*mail)->message);
}

void KeeperServer::handle(Peer& peer, const KeeperMessage& request) {
  const bool is_trainer = trainer_ && &*trainer_ == &peer;
  switch (request.kind) {
    case MessageKind::kAttach: return attach(peer);
    case MessageKind::kMakeMemory:
      if (is_trainer) return make_memory(peer, request.bytes);
      break;
    case MessageKind::kPeek: {
      // The news of the trainer's death may be on its way. Whoever asks must not be told that nothing is being written.
      if (trainer_ && !is_trainer && trainer_gone(false)) trainer_ended();
      const std::uint32_t flushing = flush_ || flush_at_ ? 1 : 0;
      const std::uint32_t progress = flush_ ? flush_->gate.progress() : 0;
      const auto reader = memory_ ? reopen_read_only(memory_) : fail(ErrorKind::kNotFound, "there is no memory");
      if (!reader) return send(peer, {.kind = MessageKind::kNoMemory});
      return send(peer, {.kind = MessageKind::kMemory, .flushing = flushing, .progress = progress}, &*reader);
    }
    case MessageKind::kRelease:
      if (trainer_ && !is_trainer && !trainer_gone(false)) break;
      log_.info("process {} asks to release the memory: the keeper ends", peer.process);
      if (!is_trainer) tell_lost(fmt::format("process {} does not use it", peer.process));
      hand_over();
      memory_ = UniqueFd();
      done_ = true;
      listener_ = UniqueFd();  // before the reply: whoever has it may start another keeper at once
      return send(peer, {.kind = MessageKind::kReleased});
    case MessageKind::kMemory:
    case MessageKind::kNoMemory:
    case MessageKind::kRefused:
    case MessageKind::kReleased: break;
  }
  send(peer, {.kind = MessageKind::kRefused, .pid = trainer_ ? trainer_->process : 0});
}

void KeeperServer::attach(Peer& peer) {
  // It has waited for too long, and goes on without us. A flush must not end for it.
  if (hung_up(peer.socket)) {
    log_.warn("process {} asked to attach, but has hung up", peer.process);
    (void)peer.socket.close();
    return;
  }
  if (trainer_ && !trainer_gone(false)) {
    return send(peer, {.kind = MessageKind::kRefused, .pid = trainer_->process});
  }
  if (trainer_) trainer_.reset();
  // From here on nothing is published any more: the trainer goes on with what the memory holds, under a new attempt.
  hand_over();
  Peer moved = std::move(peer);
  (void)peer.socket.close();  // what is left of it is removed by run()
  trainer_ = std::move(moved);
  release_at_.reset();
  end_at_.reset();
  log_.info("process {} is attached", trainer_->process);
  const std::uint32_t hangs = earlier_flush_hangs() ? 1 : 0;
  if (memory_) return send(*trainer_, {.kind = MessageKind::kMemory, .flushing = hangs}, &memory_);
  send(*trainer_, {.kind = MessageKind::kNoMemory});
}

void KeeperServer::make_memory(Peer& peer, std::uint64_t size_bytes) {
  memory_ = UniqueFd();  // before the new memory: there is never more than one
  settled_.lock()->clear();
  auto made = make_shared_memory("slackwater", size_bytes);
  if (!made) {
    log_.error("{}", made.error().to_string());
    return send(peer, {.kind = MessageKind::kNoMemory, .sys_errno = made.error().sys_errno});
  }
  memory_ = std::move(*made);
  log_.info("memory for up to {} created", format_bytes(size_bytes));
  send(peer, {.kind = MessageKind::kMemory, .bytes = size_bytes}, &memory_);
}

// The socket alone does not tell: a child that the trainer forked may have it open.
bool KeeperServer::trainer_gone(bool process_ended) const {
  if (process_ended || !trainer_->socket) return true;
  pollfd end{.fd = trainer_->process_end ? trainer_->process_end.get() : -1, .events = POLLIN, .revents = 0};
  if (::poll(&end, 1, 0) > 0) return true;
  char byte = 0;
  return ::recv(trainer_->socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

void KeeperServer::trainer_ended() {
  log_.info("process {} has ended or disconnected", trainer_->process);
  trainer_.reset();
  release_at_ = clock_.now() + options_.keep_for;
  if (told_to_end_) end_at_ = clock_.now() + options_.end_within;
  lock_tries_ = 0;
  flush_pause_ = options_.flush_pause;
  begin_flush();
}

void KeeperServer::begin_flush() {
  flush_at_.reset();
  if (!memory_) return;
  bool again = false;
  try {
    again = !start_flush();
  } catch (const std::exception& trouble) {
    // No memory or no thread, perhaps because of what ended the trainer. The step is only here, so it is tried again.
    flush_.reset();
    log_.error("unsaved steps could not be written to disk yet, and the keeper tries again: {}", trouble.what());
    try_again_later();
  }
  if (again) flush_at_ = clock_.now() + kLockPause;
}

void KeeperServer::try_again_later() {
  flush_at_ = clock_.now() + (told_to_end_ ? std::min(flush_pause_, kPauseAfterSigterm) : flush_pause_);
  flush_pause_ = std::min(2 * flush_pause_, kLastFlushPause);
}

Result<std::shared_ptr<const Region>> KeeperServer::open_memory() const {
  SW_ASSIGN(auto memory, SharedMemory::map(memory_, SharedMemory::Access::kRead));
  SW_ASSIGN(Region region, Region::open(std::move(memory)));
  return std::make_shared<const Region>(std::move(region));
}

// What the last trainer staged and nobody has committed since, as far as this keeper knows.
std::vector<Region::Kept> KeeperServer::unsettled(const Region& region) const {
  std::vector<Region::Kept> staged = region.kept();
  const auto settled = settled_.lock();
  std::erase_if(staged, [&](const Region::Kept& kept) {
    return kept.state != KeptState::kStaged || settled->contains(kept.version.name);
  });
  return staged;
}

// False: not yet.
bool KeeperServer::start_flush() {
  if (earlier_flush_hangs()) return false;  // it may still remove what this one writes
  const auto memory = open_memory();
  if (!memory) {
    log_.error("the memory cannot be read now: {}", memory.error().to_string());
    if (memory.error().kind != ErrorKind::kCorrupt) try_again_later();
    return true;
  }
  const std::shared_ptr<const Region>& region = *memory;
  std::vector<Region::Kept> waiting = steps_to_flush(*region);
  if (waiting.empty()) return true;
  // The lock keeps others from deleting a version that is being written. Without it, nothing is flushed. A trainer that
  // was killed a moment ago may still hold it: the kernel closes its descriptors one after the other. That takes long
  // if it hangs in the file system.
  auto lock = fs_.try_lock(lock_path(options_.directory));
  if (!lock && lock.error().kind == ErrorKind::kBusy && ++lock_tries_ < kLockTries) return false;
  if (!lock) {
    log_.error("{} not written to disk yet, and the keeper tries again: {}", listed(waiting), lock.error().to_string());
    try_again_later();
    return true;
  }
  flush_ = std::make_shared<Flush>();
  flush_->lock = std::move(*lock);
  flush_->lock->explain(
      fmt::format("a memory keeper is writing the last step of a trainer that died to this directory, at most until {} "
                  "after the trainer's end (memory_timeout)",
                  format_seconds(std::chrono::duration<double>(options_.keep_for).count())),
      "wait until it is done, or start the trainer again, which goes on from that step");
  flush_->thread = start_thread(
      "sw-flush", [this, current = flush_.get(), region, waiting = std::move(waiting)](const std::stop_token&) {
        flush(*current, region, waiting);
        current->ended = true;
        const std::uint64_t one = 1;
        if (::write(flush_ended_.get(), &one, sizeof one) < 0)
          log_.error("internal: cannot signal the end of the flush");
      });
  return true;
}

// Of those, what one keeper can commit. The log says what is held otherwise.
std::vector<Region::Kept> KeeperServer::steps_to_flush(const Region& region) {
  std::vector<Region::Kept> staged = unsettled(region);
  if (staged.empty()) {
    log_.info("the memory holds nothing unsaved");
  } else if (region.shape().world > 1) {
    log_.info("{} held for the restart, because one keeper cannot commit a step of several ranks", listed(staged));
    staged.clear();
  }
  return staged;
}

void KeeperServer::flush(Flush& flush, const std::shared_ptr<const Region>& region,
                         const std::vector<Region::Kept>& waiting) {
  for (const Region::Kept& kept : waiting) {
    const std::uint64_t step = kept.version.name.step;
    try {
      const RankPart part{.region = region, .entry = kept.entry, .version = kept.version};
      const auto flushed =
          flush_version(fs_, clock_, options_.directory, {&part, 1}, kept.members[0], flush.gate, log_);
      if (flushed) {
        log_.info("step {} is committed", step);
        settled_.lock()->insert(kept.version.name);
      } else {
        log_.error("step {} could not be written: {}", step, flushed.error().to_string());
        if (may_pass(flushed.error())) flush.again = true;
      }
    } catch (const std::exception& trouble) {
      log_.error("step {} could not be written yet, and the keeper tries again: {}", step, trouble.what());
      flush.again = true;
    }
  }
}

void KeeperServer::hand_over() {
  flush_at_.reset();
  if (!flush_) return;
  if (!done_) {
    flush_->gate.close();
    static_cast<void>(flush_->gate.wait_idle(options_.idle_within));
  } else if (!flush_->gate.close_within(options_.idle_within)) {  // the keeper ends: nobody reads what was decided
    log_.warn(
        "the decision about a step is still being written: whether it is committed will be seen at the next start");
  }
  // At once, and not when its thread ends: that may hang in a write.
  flush_->lock.reset();
  stopped_.push_back(std::exchange(flush_, nullptr));
}

bool KeeperServer::earlier_flush_hangs() const {
  return std::ranges::any_of(stopped_,
                             [](const auto& old) { return !old->gate.wait_idle(std::chrono::milliseconds(0)); });
}

void KeeperServer::send(Peer& peer, const KeeperMessage& message, const UniqueFd* descriptor) {
  if (const Status sent = send_message(peer.socket, message, descriptor); !sent) {
    log_.warn("process {} gets no answer: {}", peer.process, sent.error().to_string());
    (void)peer.socket.close();
  }
}

}  // namespace slackwater
