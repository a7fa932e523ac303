#include "commit/directory_coordinator.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/attempt.hpp"
#include "commit/gathering.hpp"
#include "commit/names.hpp"
#include "commit/poll.hpp"
#include "os/durable.hpp"

namespace slackwater {
namespace {

constexpr std::string_view kSessionPrefix = "session-";
constexpr std::uint64_t kMaxMessageBytes = 1u << 30;  // a group's report carries its part of the index

std::string message_file(const Topic& topic, std::uint32_t rank) {
  return fmt::format("{}.{}.{}", topic.attempt, topic.step, rank);
}

struct MessageName {
  std::uint32_t attempt = 0;
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
};

std::optional<MessageName> parse_message_file(std::string_view name) {
  MessageName parsed;
  const char* at = name.data();
  const char* const end = at + name.size();
  const auto take = [&](auto& number) {
    const auto [stop, trouble] = std::from_chars(at, end, number);
    at = stop;
    return trouble == std::errc();
  };
  const auto dot = [&] { return at != end && *at++ == '.'; };
  if (!take(parsed.attempt) || !dot() || !take(parsed.step) || !dot() || !take(parsed.rank) || at != end)
    return std::nullopt;
  return parsed;
}

}  // namespace

DirectoryCoordinator::DirectoryCoordinator(FileSystem& fs, const Clock& clock, std::string root)
    : fs_(fs), clock_(clock), control_(fmt::format("{}/{}", root, kControlDirectory)) {}

std::string DirectoryCoordinator::session_path(const std::string& session) const {
  return fmt::format("{}/{}{}", control_, kSessionPrefix, session);
}

std::string DirectoryCoordinator::box_path(const std::string& session, const std::string& box) const {
  return fmt::format("{}/{}", session_path(session), box);
}

std::string DirectoryCoordinator::session() const {
  std::lock_guard lock(mutex_);
  return session_;
}

Error DirectoryCoordinator::over(const std::string& session) const { return session_over(session_path(session)); }

Status DirectoryCoordinator::publish(const Topic& topic, std::uint32_t rank, const Message& message) {
  return publish_in(session(), topic, rank, message);
}

Status DirectoryCoordinator::publish_in(const std::string& session, const Topic& topic, std::uint32_t rank,
                                        const Message& message) {
  const std::string box = box_path(session, topic.box);
  if (auto made = ensure_directory(fs_, box); !made) {
    return fail(made.error().kind == ErrorKind::kNotFound ? over(session) : made.error());
  }
  std::uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = published_++;
  }
  const std::string name = message_file(topic, rank);
  const std::string temp_path = fmt::format("{}/.{}.{}-{}.tmp", box, name, random_id(), number);
  const std::string text = seal_message(session, topic, rank, message);
  const auto write = [&]() -> Status {
    SW_ASSIGN(auto file, fs_.open(temp_path, OpenMode::kCreateExclusive, false));
    SW_TRY(file->write_at(std::as_bytes(std::span(text)), 0));
    return file->close();  // NFS sends it to the server here; it need not be durable
  };
  Status status = write();
  if (status) status = fs_.link(temp_path, fmt::format("{}/{}", box, name));
  (void)fs_.unlink(temp_path);
  if (!status && status.error().kind == ErrorKind::kNotFound) return fail(over(session));
  return status;
}

Result<bool> DirectoryCoordinator::collect(const std::string& session, const Topic& topic,
                                           std::vector<std::uint32_t>& ranks, const Take& take) {
  const std::string box = box_path(session, topic.box);
  auto entries = fs_.list(box);
  if (!entries) {
    // Nobody has said anything yet, or the whole session is gone. Other trouble may pass: the next look tells.
    if (entries.error().kind != ErrorKind::kNotFound) return true;
    // A rank that looks for its run may bring the directory of an earlier session back, by joining it; never the roster.
    const bool ours = session == this->session();
    const auto alive =
        fs_.status(ours ? fmt::format("{}/{}", box_path(session, roster_topic().box), message_file(roster_topic(), 0))
                        : session_path(session));
    if (!alive && alive.error().kind == ErrorKind::kNotFound) return fail(over(session));
    return true;
  }
  for (const DirectoryEntry& entry : *entries) {
    const auto name = parse_message_file(entry.name);
    if (!name || name->attempt != topic.attempt || name->step != topic.step) continue;
    const auto wanted = std::ranges::find(ranks, name->rank);
    if (wanted == ranks.end()) continue;
    const std::string path = fmt::format("{}/{}", box, entry.name);
    const auto text = read_whole(fs_, path, kMaxMessageBytes);
    if (!text) continue;
    const auto message = open_message(*text, session, topic, name->rank, path);
    if (!message) return fail(message.error());  // it was whole when it got its name: waiting does not mend it
    ranks.erase(wanted);
    if (!take(name->rank, *message)) return false;
  }
  return true;
}

Result<bool> DirectoryCoordinator::await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                         const Take& take) {
  const std::string ours = session();
  Poll poll(clock_, patience);
  for (;;) {
    SW_ASSIGN(const bool more, collect(ours, topic, ranks, take));
    if (!more || ranks.empty()) return true;
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return false;
  }
}

std::map<std::uint32_t, std::uint64_t> DirectoryCoordinator::latest(const Topic& topic,
                                                                    const std::vector<std::uint32_t>& ranks) {
  std::map<std::uint32_t, std::uint64_t> steps;
  const auto entries = fs_.list(box_path(session(), topic.box));
  if (!entries) return steps;
  const std::set<std::uint32_t> asked(ranks.begin(), ranks.end());
  for (const DirectoryEntry& entry : *entries) {
    const auto name = parse_message_file(entry.name);
    if (!name || name->attempt != topic.attempt || !asked.contains(name->rank)) continue;
    std::uint64_t& step = steps[name->rank];
    step = std::max(step, name->step);
  }
  return steps;
}

void DirectoryCoordinator::forget(const Topic& topic, std::uint32_t rank) {
  (void)fs_.unlink(fmt::format("{}/{}", box_path(session(), topic.box), message_file(topic, rank)));
}

void DirectoryCoordinator::forget_before(const Topic& topic) {
  const std::string box = box_path(session(), topic.box);
  const auto entries = fs_.list(box);
  if (!entries) return;
  for (const DirectoryEntry& entry : *entries) {
    const auto name = parse_message_file(entry.name);
    if (!name || std::tie(name->attempt, name->step) >= std::tie(topic.attempt, topic.step)) continue;
    (void)fs_.unlink(fmt::format("{}/{}", box, entry.name));
  }
}

Result<std::vector<std::string>> DirectoryCoordinator::gather(const Member& self, const Patience& patience) {
  return self.rank == 0 ? lead(self, patience) : follow(self, patience);
}

Result<std::vector<std::string>> DirectoryCoordinator::list_sessions() {
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs_.list(control_));
  std::vector<std::string> sessions;
  for (const DirectoryEntry& entry : entries) {
    if (entry.type == FileType::kDirectory && entry.name.starts_with(kSessionPrefix))
      sessions.push_back(entry.name.substr(kSessionPrefix.size()));
  }
  return sessions;
}

void DirectoryCoordinator::remove_session(const std::string& session) {
  const std::string path = session_path(session);
  const auto boxes = fs_.list(path);
  if (!boxes) return;
  for (const DirectoryEntry& box : *boxes) {
    if (box.type != FileType::kDirectory) continue;
    const std::string box_directory = fmt::format("{}/{}", path, box.name);
    if (const auto messages = fs_.list(box_directory)) {
      for (const DirectoryEntry& message : *messages) {
        (void)fs_.unlink(fmt::format("{}/{}", box_directory, message.name));
      }
    }
    (void)fs_.remove_directory(box_directory);
  }
  (void)fs_.remove_directory(path);
}

Result<std::vector<std::string>> DirectoryCoordinator::lead(const Member& self, const Patience& patience) {
  if (joined_.empty()) {
    SW_ASSIGN(const std::vector<std::string> earlier, list_sessions());
    SW_TRY(ensure_directory(fs_, session_path(self.id)));  // first: the others join while old ones are cleared away
    for (const std::string& session : earlier) remove_session(session);
    joined_[0] = self.id;
  }
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 1; rank < self.world; ++rank) {
    if (!joined_.contains(rank)) missing.push_back(rank);
  }
  std::optional<Error> trouble;
  const auto take = [&](std::uint32_t rank, const Message& message) {
    const auto id = read_join(message.body, rank, self, control_);
    if (!id) {
      if (id.error().kind == ErrorKind::kMismatch) trouble = id.error();
      return !trouble;
    }
    joined_[rank] = *id;
    std::erase(missing, rank);
    return true;
  };
  Poll poll(clock_, patience);
  for (std::vector<std::uint32_t> wanted = missing; !missing.empty();) {
    SW_TRY(collect(self.id, joins_topic(), wanted, take));
    if (trouble) {  // for good: whoever has joined is told, instead of waiting for a roster that never comes
      (void)publish_in(self.id, roster_topic(), 0, Message(refusal_body(*trouble)));
      return fail(std::move(*trouble));
    }
    if (missing.empty()) break;
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return fail(not_joined(missing, self.world, control_));
  }
  std::vector<std::string> members;
  for (const auto& [rank, id] : joined_) members.push_back(id);
  Status told = publish_in(self.id, roster_topic(), 0, Message(roster_body(members)));
  if (!told && told.error().kind != ErrorKind::kAlreadyExists) return fail(std::move(told).error());
  std::lock_guard lock(mutex_);
  session_ = self.id;
  return members;
}

// Earlier starts may have left sessions behind: an answer there harms nobody.
Status DirectoryCoordinator::answer_sessions(const Member& self) {
  SW_ASSIGN(const std::vector<std::string> sessions, list_sessions());
  for (const std::string& session : sessions) {
    if (answered_.contains(session) || refused_.contains(session)) continue;
    const Status joined = publish_in(session, joins_topic(), self.rank, Message(join_body(self)));
    if (joined) {
      answered_.insert(session);
    } else if (joined.error().kind == ErrorKind::kAlreadyExists) {
      refused_.insert(session);
    }
  }
  return {};
}

Result<std::vector<std::string>> DirectoryCoordinator::follow(const Member& self, const Patience& patience) {
  Poll poll(clock_, patience);
  for (;;) {
    SW_TRY(answer_sessions(self));
    for (const std::string& session : std::vector(answered_.begin(), answered_.end())) {
      Result<std::vector<std::string>> roster;
      const auto take = [&](std::uint32_t, const Message& message) {
        roster = read_roster(message.body, control_);
        return true;
      };
      std::vector<std::uint32_t> leader{0};
      if (const auto looked = collect(session, roster_topic(), leader, take); !looked) {
        answered_.erase(session);  // it is gone
        continue;
      }
      SW_ASSIGN(const std::vector<std::string> members, std::move(roster));
      if (members.empty()) continue;
      if (members.size() == self.world && members[self.rank] == self.id) {
        std::lock_guard lock(mutex_);
        session_ = session;
        return members;
      }
      answered_.erase(session);
      refused_.insert(session);
    }
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return fail(not_taken_in(self, !refused_.empty(), control_));
  }
}

}  // namespace slackwater
