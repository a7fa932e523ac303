// Each phase of a step x each role among the ranks x error, hang and death. The step is committed on all ranks or on
// none, every rank reports the same outcome, no rank waits beyond the time-out, and the next step commits (after a
// death, once the ranks were restarted).
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

#include "base/unique_fd.hpp"
#include "fault/ranks_fixture.hpp"

namespace slackwater::test {
namespace {

using Table = std::map<std::tuple<Phase, Role>, std::string>;

void print(const char* trouble, const Table& table) {
  fmt::print("\n{:<8} | {:<20} | {:<20} | {:<20}\n", trouble, "leader", "group_leader", "member");
  for (const Phase phase : kPhases) {
    fmt::print("{:<8}", to_string(phase));
    for (const Role role : kRoles) fmt::print(" | {:<20}", table.at({phase, role}));
    fmt::print("\n");
  }
}

class RanksMatrixTest : public ::testing::Test {
 protected:
  RanksMatrixTest() { run_->commit_all(step_); }

  // Every rank reports the same: committed, or one error. The rank in trouble, `own`, may use its own words, which the
  // error of the others repeats.
  void expect_one_outcome(std::vector<Status> statuses, std::optional<std::uint32_t> own) {
    const Status& first = statuses[own == 0u ? 1 : 0];
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      const Status& status = statuses[rank];
      EXPECT_EQ(status.has_value(), first.has_value()) << "rank " << rank;
      if (status || first.has_value()) continue;
      const bool same = status.error().kind == first.error().kind && status.error().message == first.error().message;
      const bool repeated = rank == own && first.error().message.find(status.error().message) != std::string::npos;
      EXPECT_TRUE(same || repeated) << "rank " << rank << ": " << status.error().to_string()
                                    << "\nthe others: " << first.error().to_string();
    }
    EXPECT_EQ(run_->visible(step_), first.has_value());
    words_ = first ? "committed" : first.error().message;
  }

  // The outcome is on its way to a rank that cannot hear it: the leader goes on only when the rank is in trouble.
  void strike_at_learning(std::uint32_t rank, const FaultSite& site, bool hang) {
    (*run_)[0].fs->wait_hung(++hung_[0]);
    if (hang) {
      (*run_)[rank].fs->hang(site.call, {.path = site.path});
      (*run_)[rank].fs->wait_hung(++hung_[rank]);
    } else {
      (*run_)[rank].fs->fail(site.call, EIO, {.times = kAlways, .path = site.path});
    }
    (*run_)[0].fs->release_hung();
  }

  std::vector<Status> run_step(Phase phase, Role role, bool hang) {
    Ranks& run = *run_;
    const std::uint32_t victim = rank_of(role);
    FaultFileSystem& fs = *run[victim].fs;
    const FaultSite site = site_of(phase, role);
    const bool torn = phase == Phase::kStage && !hang;
    const bool deaf = phase == Phase::kLearn && role != Role::kLeader;
    ++step_;
    if (deaf) {
      run[0].fs->hang(FsCall::kLink, {.path = "/manifest.json"});
    } else if (hang) {
      fs.hang(site.call, {.path = site.path});
    } else if (!torn) {
      fs.fail(site.call, EIO, {.path = site.path});
    }

    std::vector<Snapshot> snapshots;
    for (std::uint32_t rank = 0; rank < kWorld; ++rank)
      snapshots.push_back(run[rank].save(step_, torn && rank == victim));
    if (torn) snapshots[victim].seal({"w"});
    if (deaf) {
      strike_at_learning(victim, site, hang);
      EXPECT_TRUE(snapshots[0].wait(Level::kCommitted, kRealTimeLimit));
    } else if (hang) {
      fs.wait_hung(++hung_[victim]);
    }
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if (rank != victim) static_cast<void>(snapshots[rank].wait(Level::kDurable, kRealTimeLimit));
    }

    std::vector<Status> statuses(kWorld);
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      if (rank != victim || !hang) statuses[rank] = run.end_of(snapshots[rank]);
    }
    if (hang) {
      EXPECT_FALSE(snapshots[victim].error()) << "it was to hang";
      fs.release_hung();
      statuses[victim] = run.end_of(snapshots[victim]);
    }
    for (const auto& rank : run.ranks) rank->fs->clear_faults();
    return statuses;
  }

  std::string run_case(Phase phase, Role role, bool hang) {
    SCOPED_TRACE(fmt::format("{} in phase {} at the {}", hang ? "hang" : "error", to_string(phase), to_string(role)));
    const std::vector<Status> statuses = run_step(phase, role, hang);
    expect_one_outcome(statuses, hang ? std::nullopt : std::optional(rank_of(role)));
    EXPECT_EQ(statuses[1].has_value(), phase == Phase::kLearn) << words_;
    EXPECT_TRUE(statuses[1] || statuses[1].error().kind == ErrorKind::kAborted) << words_;
    run_->commit_all(++step_);
    return statuses[1] ? "committed" : "aborted";
  }

  TempDir directory_{TempDir::in_memory()};
  std::unique_ptr<Ranks> run_ = std::make_unique<Ranks>(directory_ / "run", 1);
  std::uint64_t step_ = 1;
  std::map<std::uint32_t, std::uint64_t> hung_;  // calls of each rank that ever hung
  std::string words_;
};

TEST_F(RanksMatrixTest, AnErrorIsOneOutcomeForAllAndTheNextStepCommits) {
  Table table;
  for (const Phase phase : kPhases) {
    for (const Role role : kRoles) table[{phase, role}] = run_case(phase, role, false);
  }
  print("error", table);
  const std::uint64_t last = step_;
  run_.reset();
  run_ = std::make_unique<Ranks>(directory_ / "run", 1);
  EXPECT_EQ(run_->restore_all(1), last);
}

TEST_F(RanksMatrixTest, AHangIsOneOutcomeForAllAndTheNextStepCommits) {
  Table table;
  for (const Phase phase : kPhases) {
    for (const Role role : kRoles) table[{phase, role}] = run_case(phase, role, true);
  }
  print("hang", table);
  const std::uint64_t last = step_;
  run_.reset();
  run_ = std::make_unique<Ranks>(directory_ / "run", 1);
  EXPECT_EQ(run_->restore_all(1), last);
}

TEST_F(RanksMatrixTest, ADecisionWhoseSyncFailsIsInDoubtOnAllRanks) {
  ++step_;
  // The record, the index, and then the decision.
  (*run_)[0].fs->fail(FsCall::kSyncDirectory, EIO, {.nth = 3, .path = "/step-"});
  std::vector<Snapshot> snapshots = run_->save_all(step_);
  for (Snapshot& snapshot : snapshots) {
    const Status status = snapshot.wait(Level::kCommitted, kRealTimeLimit);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, ErrorKind::kInDoubt) << status.error().to_string();
  }
  EXPECT_TRUE(run_->visible(step_)) << "it is there, and whole, only not safe from a power cut";
  run_->commit_all(++step_);
}

// What the processes of the ranks tell the test.
struct Event {
  enum class Kind : std::uint8_t { kRestored, kHangs, kWaits, kEnded, kWrong };
  Kind kind;
  std::uint32_t rank;
  std::uint64_t step;
  bool committed;
  char words[400];
};

// Four ranks, each a process. One of them may be told to hang at a place, to be killed there.
class RankProcesses {
 public:
  struct Victim {
    std::uint32_t rank;
    FaultSite site;
  };
  RankProcesses(const std::string& path, std::optional<Victim> victim) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
    in_ = UniqueFd(ends[0]);
    out_ = UniqueFd(ends[1]);
    void* const memory = ::mmap(nullptr, sizeof(*clock_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot share memory");
    clock_ = new (memory) std::atomic<std::int64_t>(0);
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
      const pid_t process = ::fork();
      if (process < 0) throw std::runtime_error("cannot fork");
      if (process == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        live(path, rank, victim && victim->rank == rank ? std::optional(victim->site) : std::nullopt);
        ::_exit(0);
      }
      processes_.push_back(process);
    }
  }
  ~RankProcesses() {
    for (std::uint32_t rank = 0; rank < kWorld; ++rank) kill(rank);
    ::munmap(clock_, sizeof(*clock_));
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void kill(std::uint32_t rank) {
    pid_t& process = processes_[rank];
    if (process < 0) return;
    ::kill(process, SIGKILL);
    while (::waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
    }
    process = -1;
  }
  void pass(double timeouts) { move(*clock_, timeouts); }
  // Until each of these ranks has told this; time passes meanwhile if it may.
  [[nodiscard]] std::map<std::uint32_t, Event> await(Event::Kind kind, std::vector<std::uint32_t> ranks,
                                                     bool time_passes) {
    const auto deadline = std::chrono::steady_clock::now() + kRealTimeLimit;
    for (;;) {
      std::map<std::uint32_t, Event> found;
      for (const std::uint32_t rank : ranks) {
        const auto event = events_.find({rank, kind});
        if (event != events_.end()) found[rank] = event->second;
      }
      if (found.size() == ranks.size()) return found;
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "a rank hangs";
        return found;
      }
      if (time_passes) pass(0.1);
      read_one();
    }
  }

 private:
  void read_one() {
    pollfd ready{.fd = in_.get(), .events = POLLIN, .revents = 0};
    Event event;
    if (::poll(&ready, 1, 10) <= 0 || ::read(in_.get(), &event, sizeof event) != sizeof event) return;
    EXPECT_NE(event.kind, Event::Kind::kWrong) << "rank " << event.rank << ": " << event.words;
    events_[{event.rank, event.kind}] = event;
  }
  void tell(Event::Kind kind, std::uint32_t rank, std::uint64_t step, bool committed, const std::string& words) const {
    Event event{.kind = kind, .rank = rank, .step = step, .committed = committed, .words = {}};
    std::snprintf(event.words, sizeof event.words, "%s", words.c_str());
    if (::write(out_.get(), &event, sizeof event) != sizeof event) ::_exit(1);  // whole: it is shorter than PIPE_BUF
  }
  // One rank restores, commits one step, and saves another. There it hangs at the given place, or waits for the others.
  void live(const std::string& path, std::uint32_t number, std::optional<FaultSite> hangs) const {
    try {
      Rank rank(rank_options(path, number), *clock_, 1);
      const auto restored = rank.engine->restore({}, rank.state.plan());
      std::uint64_t step = restored && *restored ? (*restored)->version.step : 0;
      const bool right = step == 0 || (rank.state.number() == rank.content_of(step) && !rank.state.difference());
      if (!restored || !right)
        tell(Event::Kind::kWrong, number, step, false, restored ? "wrong bytes" : restored.error().to_string());
      tell(Event::Kind::kRestored, number, step, false, "");
      if (const Status first = rank.save(++step).wait(Level::kCommitted); !first)
        tell(Event::Kind::kWrong, number, step, false, first.error().to_string());
      const FaultSite waits{FsCall::kList, number % 2 == 0 ? "/votes-" : "/outcomes"};
      const FaultSite site = hangs.value_or(waits);
      rank.fs->hang(site.call, {.path = site.path});
      Snapshot saved = rank.save(++step);
      rank.fs->wait_hung(1);
      tell(hangs ? Event::Kind::kHangs : Event::Kind::kWaits, number, step, false, "");
      if (!hangs) rank.fs->release_hung();
      const Status last = saved.wait(Level::kCommitted);
      tell(Event::Kind::kEnded, number, step, last.has_value(), last ? "" : last.error().message);
      for (;;) ::pause();  // until the launcher ends it
    } catch (const std::exception& trouble) {
      tell(Event::Kind::kWrong, number, 0, false, trouble.what());
    }
  }

  UniqueFd in_;
  UniqueFd out_;
  std::atomic<std::int64_t>* clock_ = nullptr;
  std::vector<pid_t> processes_;
  std::map<std::pair<std::uint32_t, Event::Kind>, Event> events_;
};

TEST(RanksDeathTest, ADeathIsOneOutcomeForTheSurvivorsAndTheNextStartCommits) {
  const TempDir directory(TempDir::in_memory());
  const std::string path = directory / "run";
  Table table;
  std::uint64_t newest = 0;
  const auto meet = [&](RankProcesses& ranks) {
    for (const auto& [rank, event] : ranks.await(Event::Kind::kRestored, {0, 1, 2, 3}, false))
      EXPECT_EQ(event.step, newest) << "rank " << rank;
    ++newest;  // committed first of all
  };
  for (const Phase phase : kPhases) {
    for (const Role role : kRoles) {
      SCOPED_TRACE(fmt::format("death in phase {} of the {}", to_string(phase), to_string(role)));
      const std::uint32_t victim = rank_of(role);
      RankProcesses ranks(path, RankProcesses::Victim{victim, site_of(phase, role)});
      meet(ranks);
      std::vector<std::uint32_t> survivors{0, 1, 2, 3};
      std::erase(survivors, victim);
      static_cast<void>(ranks.await(Event::Kind::kHangs, {victim}, false));
      static_cast<void>(ranks.await(Event::Kind::kWaits, survivors, false));
      // Its vote is in, so the leader commits; a group leader may have looked for the outcome before it had reported.
      const bool voted = phase == Phase::kLearn && role == Role::kMember;
      if (voted) static_cast<void>(ranks.await(Event::Kind::kEnded, {0}, false));
      ranks.kill(victim);
      // Long enough for the group leader of a member, or for rank 0, to miss it. The ranks that wait for those have not
      // reached their own deadline yet.
      if (role != Role::kLeader) ranks.pass(role == Role::kMember ? 1.1 : 1.3);
      const auto ended = ranks.await(Event::Kind::kEnded, survivors, role == Role::kLeader);
      ASSERT_EQ(ended.size(), survivors.size());
      const Event& first = ended.begin()->second;
      for (const auto& [rank, event] : ended) {
        EXPECT_EQ(event.committed, first.committed) << "rank " << rank;
        EXPECT_STREQ(event.words, first.words) << "rank " << rank;
      }
      if (phase != Phase::kLearn || role != Role::kGroupLeader) {
        EXPECT_EQ(first.committed, phase == Phase::kLearn) << first.words;
      }
      if (!first.committed) {
        EXPECT_NE(std::string(first.words).find(fmt::format("rank {}", victim)), std::string::npos) << first.words;
      }
      if (first.committed) ++newest;
      table[{phase, role}] = first.committed ? "committed" : "aborted";
    }
  }
  RankProcesses last(path, std::nullopt);
  meet(last);
  for (const auto& [rank, event] : last.await(Event::Kind::kEnded, {0, 1, 2, 3}, false))
    EXPECT_TRUE(event.committed) << "rank " << rank << ": " << event.words;
  print("death", table);
}

}  // namespace
}  // namespace slackwater::test
