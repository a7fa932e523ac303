#include "ranks/vote_collector.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "os/durable.hpp"
#include "ranks/commit_topics.hpp"
#include "ranks/heartbeat_wait.hpp"
#include "ranks/poll.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

// Whether there is exactly one record and one part of the index for each of these ranks. Both are in rank order.
bool covers(const Vote& vote, std::uint32_t first, std::uint32_t ranks) {
  if (vote.records.size() != 1 || vote.records[0].first != first || vote.records[0].ranks() != ranks) return false;
  std::uint64_t next = first;
  for (const IndexPart& part : vote.index_parts) {
    if (part.rank != next) return false;
    next += part.ranks;
  }
  return next == std::uint64_t{first} + ranks;
}

}  // namespace

std::vector<Deadline> deadlines_by_level(const RankTree& tree, std::chrono::milliseconds timeout, TimePoint now,
                                         const std::stop_token& stop) {
  std::vector<Deadline> deadlines;
  for (unsigned level = 1; level <= tree.height(); ++level)
    deadlines.push_back({now + tree.timeout_on(level, timeout), stop});
  return deadlines;
}

VoteCollector::VoteCollector(const Options& options, const RankTree& tree, RankTransport& transport, FileSystem& fs,
                             Heartbeat& heartbeat, Release release)
    : options_(options),
      tree_(tree),
      transport_(transport),
      fs_(fs),
      heartbeat_(heartbeat),
      release_(std::move(release)) {}

Status VoteCollector::collect(Vote& all, const VersionName& version, const std::string& directory,
                              const std::stop_token& stop) {
  // The deadlines of all levels count from now. The others wait only a little longer for the outcome, however late a
  // vote of this group comes.
  const std::vector<Deadline> deadlines = deadlines_by_level(tree_, options_.timeout, heartbeat_.clock().now(), stop);
  for (unsigned level = 1; level <= tree_.height() && all.failures.empty(); ++level) {
    SW_TRY(collect_level(all, version, level, directory, deadlines[level - 1]));
    if (level != 1 || !all.failures.empty() || !options_.reads_records) continue;
    // Every record is read back once, by its own group leader: rank 0 could not read thousands in time.
    // After waiting for a slow but live rank, the first deadline has passed, and its record may still appear late. So
    // there is half a time-out in any case. Whoever waits for this rank saw a heartbeat of it at most a quarter ago.
    Deadline records = deadlines.front();
    records.at = std::max(records.at, heartbeat_.clock().now() + options_.timeout / 2);
    SW_TRY(check_records(all, version, directory, records));
  }
  // A last check before this rank vouches for its subtree. Votes come from other processes: one that was counted
  // twice or that names other ranks must not commit.
  const std::uint32_t rank = options_.rank;
  if (all.failures.empty() && !covers(all, rank, tree_.subtree_size())) {
    return fail(ErrorKind::kMismatch,
                fmt::format("the votes received are not exactly one from each of the {} ranks that rank {} leads",
                            tree_.subtree_size() - 1, rank),
                directory);
  }
  return {};
}

Status VoteCollector::collect_level(Vote& all, const VersionName& version, unsigned level, const std::string& directory,
                                    const Deadline& deadline) {
  constexpr unsigned kPollsPerStatusCheck = 8;  // polls of the votes for one check whether they are still of use
  const Topic topic = vote_topic(tree_, version, level);
  std::vector<std::uint32_t> missing = tree_.children(level);
  const auto take = [&](std::uint32_t rank, const Message& message) {
    std::erase(missing, rank);
    // The vote makes the heartbeats before it old news. Without this, they would extend the next step's wait.
    if (const auto sent = json_u64(message.body, "heartbeats", topic.channel)) {
      heartbeat_.note_sent(rank, *sent);
      if (heartbeat_.due()) heartbeat_.note_progress();  // a slow rank has voted; what follows may take a while
    }
    // A vote that cannot be read fails the step, but must not keep this rank from voting: the others wait for its
    // reason.
    auto vote = parse_vote(message, topic.channel);
    if (vote) {
      merge(all, std::move(*vote));
    } else {
      all.failures.push_back({rank, vote.error().message});
    }
    return all.failures.empty();  // one failure decides the step: the rest need not be awaited
  };
  if (missing.empty()) return {};
  const TimePoint began = heartbeat_.clock().now();
  const Duration span = tree_.timeout_on(level, options_.timeout);
  HeartbeatWait wait(heartbeat_, deadline, span, Heartbeat::Relay::kOn);
  for (unsigned polls = 1;; ++polls) {
    const bool check = polls % kPollsPerStatusCheck == 0;
    // Asked before the votes are polled. A rank votes on its steps in order, so if it has voted on a later step and
    // the poll does not find its vote for this one, there will be none.
    const auto latest = check ? transport_.latest(topic, missing) : std::map<std::uint32_t, std::uint64_t>();
    SW_ASSIGN(const bool complete, poll_once(transport_, heartbeat_.clock(), topic, missing, deadline.stop, take));
    if (complete) return {};
    for (const std::uint32_t rank : missing) {
      const auto last = latest.find(rank);
      if (last == latest.end()) continue;
      // It is ahead: this step cannot commit, and waiting out the time-out would hold up the steps after it.
      if (last->second > topic.step) all.failures.push_back({rank, saved_instead(last->second)});
      // It is behind, at a step that this rank did not save, and would wait there until its time-out.
      if (last->second < topic.step) release_({last->second, topic.attempt});
    }
    if (!all.failures.empty()) return {};
    if (check) {
      // Another rank may have given the step up by now. Then no missing vote can change anything.
      SW_ASSIGN(const bool over, settled(version, directory, deadline.stop));
      for (const std::uint32_t rank : over ? missing : std::vector<std::uint32_t>())
        all.failures.push_back({rank, "had not reported when the step was given up"});
      if (over) return {};
    }
    SW_ASSIGN(const bool again, wait.again(missing));
    if (again) continue;
    for (const std::uint32_t rank : missing) all.failures.push_back({rank, describe_silence(rank, level, began)});
    return {};
  }
}

std::string VoteCollector::describe_silence(std::uint32_t rank, unsigned level, TimePoint began) const {
  const std::optional<TimePoint> last = heartbeat_.last_seen(rank);
  const bool beat = last && *last > began;
  const Duration since = heartbeat_.clock().now() - (beat ? *last : began);
  const auto seconds = std::chrono::duration<double>(std::chrono::duration_cast<std::chrono::milliseconds>(since));
  return fmt::format("did not report within {}{}{}: {}", format_seconds(seconds.count()),
                     beat ? " of its last heartbeat" : "", level == 1 ? "" : " for its group",
                     beat ? "it hangs in its storage, or is dead" : "it is late, dead, or saves another step");
}

Result<bool> VoteCollector::settled(const VersionName& version, const std::string& directory,
                                    const std::stop_token& stop) {
  // Any rank may have written an abort. The directory is listed instead of asking for the manifest: a host that asks
  // before the manifest exists would not see it for a minute on NFS, not even after a restart. The listing has up to
  // 2,048 names, but it is rare, and while nothing changes NFS answers it from its cache.
  if (!directory.empty() && lists_name(fs_, directory, kManifestName).value_or(false)) return true;
  // The leader makes the decision. The others also learn of it from the outcome.
  if (options_.rank == 0) return false;
  return poll_once(transport_, heartbeat_.clock(), outcome_topic(version), {0}, stop,
                   [](std::uint32_t, const Message&) { return true; });
}

Status VoteCollector::check_records(Vote& all, const VersionName& version, const std::string& directory,
                                    const Deadline& deadline) {
  const RankFiles& files = options_.files;
  const std::uint32_t self = options_.rank;
  SW_ASSIGN(const std::vector<RecordReference> records, references(all, files, directory));
  for (const RecordReference& record : records) {
    if (record.rank == self) continue;
    const std::string path = fmt::format("{}/{}", directory, record.file);
    const std::string subdirectory = files.directory(record.rank);
    // Polled: a shared file system may show the record a little later than the vote arrives.
    for (Poll poll(heartbeat_.clock(), deadline);;) {
      const auto text = read_whole(fs_, path, kMaxRecordBytes);
      if (text && digest128(*text) == record.digest) break;
      // After an abort, a rank removes its record. That is not a fault of its storage.
      SW_ASSIGN(const bool over, settled(version, directory, deadline.stop));
      if (over) {
        all.failures.push_back({record.rank, "its record was removed when the step was given up"});
        return {};
      }
      SW_ASSIGN(const bool again, poll.again());
      // On NFS, a name that was missing is looked up again only after its directory was opened. settled() has opened
      // the version's own.
      if (again && !subdirectory.empty()) (void)fs_.list(fmt::format("{}/{}", directory, subdirectory));
      if (again) continue;
      all.failures.push_back({record.rank, fmt::format("its record, as rank {} finds it, is not the one it wrote{}",
                                                       self, text ? "" : ": " + text.error().message)});
      return {};
    }
  }
  return {};
}

}  // namespace slackwater
