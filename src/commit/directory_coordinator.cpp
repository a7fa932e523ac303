#include "commit/directory_coordinator.hpp"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "commit/attempt.hpp"
#include "commit/gathering.hpp"
#include "commit/message_names.hpp"
#include "commit/names.hpp"
#include "commit/poll.hpp"
#include "os/durable.hpp"

namespace slackwater {
namespace {

constexpr std::string_view kSessionPrefix = "session-";
constexpr std::uint64_t kMaxMessageBytes = 1u << 30;  // a group's report carries its part of the index

const DirectoryEntry* find_message(const std::vector<DirectoryEntry>& entries, const Topic& topic, std::uint32_t rank) {
  const auto found = std::ranges::find_if(entries, [&](const DirectoryEntry& entry) {
    const auto name = parse_message_file(entry.name);
    return name && name->is_about(topic) && name->rank == rank && name->completes();
  });
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

DirectoryCoordinator::DirectoryCoordinator(FileSystem& fs, const Clock& clock, std::string root)
    : fs_(fs), clock_(clock), control_(fmt::format("{}/{}", root, kControlDirectory)), reserve_(fs, clock, control_) {}

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
  const std::string text = seal_message(session, topic, rank, message);
  const std::string box = box_path(session, topic.box);
  const auto no_space = [](const Status& status) { return !status && status.error().kind == ErrorKind::kNoSpace; };
  Status said = spelled_ ? check_unsaid(box, topic, rank) : Status();
  if (said) said = write_message(box, topic, rank, text);
  // A disk that is full to the last byte must not keep the ranks from restoring what is on it.
  if (no_space(said)) {
    reserve_.release();
    said = write_message(box, topic, rank, text);
  }
  if (no_space(said)) {
    if (const Status spelled = write_names(box, topic, rank, text); !no_space(spelled)) said = spelled;
  }
  if (!said && said.error().kind == ErrorKind::kNotFound) return fail(over(session));
  return said;
}

Status DirectoryCoordinator::write_message(const std::string& box, const Topic& topic, std::uint32_t rank,
                                           const std::string& text) {
  SW_TRY(ensure_directory(fs_, box));
  std::uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = published_++;
  }
  const std::string name = message_file(topic, rank);
  const std::string temp_path = fmt::format("{}/.{}.{}-{}.tmp", box, name, random_id(), number);
  const auto write = [&]() -> Status {
    SW_ASSIGN(auto file, fs_.open(temp_path, OpenMode::kCreateExclusive, false));
    SW_TRY(file->write_at(std::as_bytes(std::span(text)), 0));
    return file->close();  // NFS sends it to the server here; it need not be durable
  };
  Status status = write();
  if (status) status = link_exclusively(fs_, temp_path, fmt::format("{}/{}", box, name));
  (void)fs_.unlink(temp_path);
  return status;
}

// kAlreadyExists: in whatever form, this rank has said something about this topic.
Status DirectoryCoordinator::check_unsaid(const std::string& box, const Topic& topic, std::uint32_t rank) {
  SW_TRY(ensure_directory(fs_, box));
  SW_ASSIGN(const std::vector<DirectoryEntry> entries, fs_.list(box));
  const DirectoryEntry* const said = find_message(entries, topic, rank);
  if (said == nullptr) return {};
  return fail(ErrorKind::kAlreadyExists, "this rank has already sent a message about this", box + "/" + said->name);
}

// Empty files: tmpfs makes them without a single free block, ext4 as long as the directory has room for the names.
Status DirectoryCoordinator::write_names(const std::string& box, const Topic& topic, std::uint32_t rank,
                                         const std::string& text) {
  SW_TRY(check_unsaid(box, topic, rank));
  const std::vector<std::string> names = spell_message(topic, rank, text);
  if (names.empty())
    return fail(ErrorKind::kNoSpace, "the disk is full, and the message is too long to be stored in file names", box);
  spelled_ = true;
  for (const std::string& name : names) {
    const auto made = fs_.open(fmt::format("{}/{}", box, name), OpenMode::kCreateExclusive, false);
    if (made || made.error().kind == ErrorKind::kAlreadyExists) continue;  // the same piece of the same text
    remove_names(box, topic, rank);
    return fail(made.error());
  }
  return {};
}

void DirectoryCoordinator::remove_names(const std::string& box, const Topic& topic, std::uint32_t rank) {
  const auto entries = fs_.list(box);
  if (!entries) return;
  for (const DirectoryEntry& entry : *entries) {
    const auto name = parse_message_file(entry.name);
    if (name && name->count > 0 && name->is_about(topic) && name->rank == rank)
      (void)fs_.unlink(fmt::format("{}/{}", box, entry.name));
  }
}

// A box that nobody has spoken into yet is never asked for by its name: over NFS this host would believe for up to a
// minute that it is still missing. It is looked for in the listing of its session, until it was seen there once.
Result<std::vector<DirectoryEntry>> DirectoryCoordinator::list_box(const std::string& session, const std::string& box) {
  const std::string path = box_path(session, box);
  const auto seen = [&] {
    std::lock_guard lock(mutex_);
    return boxes_seen_.contains(path);
  };
  if (seen()) {
    auto entries = fs_.list(path);
    if (entries || entries.error().kind != ErrorKind::kNotFound) return entries;
    std::lock_guard lock(mutex_);
    boxes_seen_.erase(path);
  }
  const auto boxes = fs_.list(session_path(session));
  if (!boxes) return fail(boxes.error().kind == ErrorKind::kNotFound ? over(session) : boxes.error());
  {
    std::lock_guard lock(mutex_);
    for (const DirectoryEntry& each : *boxes) boxes_seen_.insert(box_path(session, each.name));
  }
  if (!seen()) return fail(ErrorKind::kNotFound, "no message has arrived yet", path);
  return fs_.list(path);
}

// A rank that looks for its run may bring the directory of an earlier session back, by joining it; never the roster.
Result<bool> DirectoryCoordinator::has_roster(const std::string& session) {
  const auto entries = list_box(session, roster_topic().box);
  if (entries) return find_message(*entries, roster_topic(), 0) != nullptr;
  if (entries.error().kind == ErrorKind::kNotFound || entries.error().kind == ErrorKind::kAborted) return false;
  return fail(entries.error());
}

std::optional<std::string> DirectoryCoordinator::read_text(const std::string& path) {
  auto text = read_whole(fs_, path, kMaxMessageBytes);
  return text ? std::optional(std::move(*text)) : std::nullopt;
}

Result<bool> DirectoryCoordinator::collect(const std::string& session, const Topic& topic,
                                           std::vector<std::uint32_t>& ranks, const Take& take) {
  const std::string box = box_path(session, topic.box);
  const auto entries = list_box(session, topic.box);
  if (!entries) {
    if (entries.error().kind == ErrorKind::kAborted) return fail(entries.error());
    // Nobody has said anything yet, or the whole session is gone. Other trouble may pass: the next look tells.
    if (entries.error().kind != ErrorKind::kNotFound || session != this->session()) return true;
    const auto alive = has_roster(session);
    if (alive && !*alive) return fail(over(session));
    return true;
  }
  for (const DirectoryEntry& entry : *entries) {
    const auto name = parse_message_file(entry.name);
    if (!name || !name->is_about(topic) || !name->completes()) continue;
    const auto wanted = std::ranges::find(ranks, name->rank);
    if (wanted == ranks.end()) continue;
    const std::string path = fmt::format("{}/{}", box, entry.name);
    const auto text = name->count > 0 ? spelled_text(*entries, *name) : read_text(path);
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
  const auto entries = list_box(session(), topic.box);
  if (!entries) return steps;
  const std::set<std::uint32_t> asked(ranks.begin(), ranks.end());
  for (const DirectoryEntry& entry : *entries) {
    const auto name = parse_message_file(entry.name);
    if (!name || name->attempt != topic.attempt || !asked.contains(name->rank) || !name->completes()) continue;
    std::uint64_t& step = steps[name->rank];
    step = std::max(step, name->step);
  }
  return steps;
}

void DirectoryCoordinator::forget(const Topic& topic, std::uint32_t rank) {
  const std::string box = box_path(session(), topic.box);
  (void)fs_.unlink(fmt::format("{}/{}", box, message_file(topic, rank)));
  if (spelled_) remove_names(box, topic, rank);
}

void DirectoryCoordinator::forget_before(const Topic& topic) {
  if (const std::uint32_t world = leads_world_; world > 0)
    reserve_.keep(world);  // a step was decided: nobody is in a hurry
  const std::string ours = session();
  const std::string box = box_path(ours, topic.box);
  const auto entries = list_box(ours, topic.box);
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

// A rank that looks for its run may join the session meanwhile, once, and so bring a box back: then it is removed again.
void DirectoryCoordinator::remove_session(const std::string& session) {
  constexpr int kPasses = 16;
  const std::string path = session_path(session);
  for (int pass = 0; pass < kPasses; ++pass) {
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
    if (fs_.remove_directory(path)) return;
  }
}

Result<std::vector<std::string>> DirectoryCoordinator::lead(const Member& self, const Patience& patience) {
  if (joined_.empty()) {
    SW_ASSIGN(const std::vector<std::string> earlier, list_sessions());
    const auto remove_earlier = [&] {
      for (const std::string& session : earlier) remove_session(session);
    };
    auto made = ensure_directory(fs_, session_path(self.id));  // first: the others join while old ones are cleared away
    if (!made && made.error().kind == ErrorKind::kNoSpace) {
      remove_earlier();
      reserve_.release();
      made = ensure_directory(fs_, session_path(self.id));
    }
    if (!made) return fail(std::move(made).error());
    remove_earlier();
    reserve_.keep(self.world);
    leads_world_ = self.world;
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
      cannot_join_.reset();
    } else if (joined.error().kind == ErrorKind::kAlreadyExists) {
      refused_.insert(session);
    } else if (joined.error().kind != ErrorKind::kAborted) {  // not only because the session is gone
      cannot_join_ = joined.error();
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
    if (!again && cannot_join_) return fail(*cannot_join_);
    if (!again) return fail(not_taken_in(self, !refused_.empty(), control_));
  }
}

}  // namespace slackwater
