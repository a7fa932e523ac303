#include "commit/store_coordinator.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "base/result.hpp"
#include "commit/gathering.hpp"
#include "commit/names.hpp"
#include "commit/poll.hpp"

namespace slackwater {
namespace {

constexpr std::size_t kPieceBytes = 1u << 20;  // stores refuse large values (8 MiB is the limit of c10d's)
constexpr std::uint32_t kMaxPieces = 1024;
constexpr std::uint32_t kLeaveGroup = 64;

// Where a rank says what it spoke about last in a box.
Topic last_topic(const std::string& box) { return {.box = box + "/last"}; }

std::string piece_key(const std::string& key, std::uint32_t piece) { return fmt::format("{}#{}", key, piece); }

}  // namespace

StoreCoordinator::StoreCoordinator(KeyValueStore& store, const Clock& clock, std::string path)
    : store_(store),
      clock_(clock),
      path_(std::move(path)),
      prefix_(fmt::format("slackwater/{}", to_hex(digest128(path_)))),
      session_key_(prefix_ + "/session") {}

std::string StoreCoordinator::key_of(const std::string& session, const Topic& topic, std::uint32_t rank) const {
  return fmt::format("{}/{}/{}/{}.{}.{}", prefix_, session, topic.box, topic.attempt, topic.step, rank);
}

std::string StoreCoordinator::session() const {
  std::lock_guard lock(mutex_);
  return session_;
}

void StoreCoordinator::remember(const Topic& topic, std::uint32_t rank, std::uint32_t pieces) {
  std::lock_guard lock(mutex_);
  std::uint32_t& known = known_[topic.box][{topic.attempt, topic.step, rank}];
  known = std::max(known, pieces);
}

void StoreCoordinator::take_keys(const std::string& session, const std::string& box, Box::iterator first,
                                 Box::iterator last, std::vector<std::string>& keys) {
  for (auto message = first; message != last; ++message) {
    const auto& [said, pieces] = *message;
    const std::string key = key_of(session, {box, said.attempt, said.step}, said.rank);
    keys.push_back(key);
    for (std::uint32_t piece = 1; piece <= pieces; ++piece) keys.push_back(piece_key(key, piece));
  }
  known_[box].erase(first, last);
}

Result<StoreCoordinator::Values> StoreCoordinator::look(const std::vector<std::string>& keys) {
  SW_ASSIGN(Values values, store_.get(keys));
  if (values.size() != keys.size()) {
    return fail(ErrorKind::kInternal,
                fmt::format("the store of the ranks was asked for {} keys and answered {}", keys.size(), values.size()),
                path_);
  }
  return values;
}

Status StoreCoordinator::publish(const Topic& topic, std::uint32_t rank, const Message& message) {
  return publish_in(session(), topic, rank, message);
}

Status StoreCoordinator::publish_in(const std::string& session, const Topic& topic, std::uint32_t rank,
                                    const Message& message) {
  const std::string key = key_of(session, topic, rank);
  SW_ASSIGN(const Values found, look({session_key_, key}));
  if (found[0] != session) return fail(session_over(path_));
  if (found[1]) {
    return fail(ErrorKind::kAlreadyExists, fmt::format("rank {} has already said something under {}", rank, key),
                path_);
  }
  const std::string text = seal_message(session, topic, rank, message);
  const std::size_t pieces = (text.size() - 1) / kPieceBytes;
  if (pieces > kMaxPieces) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("a message of {} bytes is too large for the store of the ranks", text.size()), path_);
  }
  remember(topic, rank, static_cast<std::uint32_t>(pieces));
  // Its own key comes last: who finds it finds all of the message.
  for (std::uint32_t piece = 1; piece <= pieces; ++piece)
    SW_TRY(store_.set(piece_key(key, piece), text.substr(piece * kPieceBytes, kPieceBytes)));
  SW_TRY(store_.set(key, fmt::format("{}\n{}", pieces, std::string_view(text).substr(0, kPieceBytes))));
  if (topic.attempt == 0) return {};
  // For latest(), which cannot list what there is; behind the message, which is there for whoever finds this.
  remember(last_topic(topic.box), rank, 0);
  (void)store_.set(key_of(session, last_topic(topic.box), rank), fmt::format("{}.{}", topic.attempt, topic.step));
  return {};
}

std::map<std::uint32_t, std::uint64_t> StoreCoordinator::latest(const Topic& topic,
                                                                const std::vector<std::uint32_t>& ranks) {
  const std::string ours = session();
  std::vector<std::string> keys;
  for (const std::uint32_t rank : ranks) keys.push_back(key_of(ours, last_topic(topic.box), rank));
  std::map<std::uint32_t, std::uint64_t> steps;
  const auto values = look(keys);
  const std::string attempt = fmt::format("{}.", topic.attempt);
  for (std::size_t i = 0; values && i < ranks.size(); ++i) {
    const auto& value = (*values)[i];
    if (!value || !value->starts_with(attempt)) continue;
    std::uint64_t step = 0;
    const char* const end = value->data() + value->size();
    if (std::from_chars(value->data() + attempt.size(), end, step).ptr == end) steps[ranks[i]] = step;
  }
  return steps;
}

Result<std::optional<std::string>> StoreCoordinator::read_pieces(const Topic& topic, std::uint32_t rank,
                                                                 const std::string& key, const std::string& value) {
  std::uint32_t pieces = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, trouble] = std::from_chars(value.data(), end, pieces);
  if (trouble != std::errc() || stop == end || *stop != '\n' || pieces > kMaxPieces)
    return std::optional<std::string>();
  std::string text(stop + 1, end);
  if (pieces == 0) return std::optional(std::move(text));
  std::vector<std::string> keys;
  for (std::uint32_t piece = 1; piece <= pieces; ++piece) keys.push_back(piece_key(key, piece));
  SW_ASSIGN(const Values values, look(keys));
  for (const auto& piece : values) {
    if (!piece) return std::optional<std::string>();
    text += *piece;
  }
  if (rank != 0) remember(topic, rank, pieces);
  return std::optional(std::move(text));
}

Result<bool> StoreCoordinator::collect(const std::string& session, const Topic& topic,
                                       std::vector<std::uint32_t>& ranks, const Take& take) {
  std::vector<std::string> keys{session_key_};
  for (const std::uint32_t rank : ranks) keys.push_back(key_of(session, topic, rank));
  SW_ASSIGN(const Values values, look(keys));
  if (values[0] != session) return fail(session_over(path_));
  const std::vector<std::uint32_t> asked = ranks;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto& value = values[i + 1];
    if (!value) continue;
    SW_ASSIGN(const auto text, read_pieces(topic, asked[i], keys[i + 1], *value));
    if (!text) continue;
    const auto message = open_message(*text, session, topic, asked[i], keys[i + 1]);
    if (!message) return fail(message.error());  // all of it is there: waiting does not mend it
    std::erase(ranks, asked[i]);
    if (!take(asked[i], *message)) return false;
  }
  return true;
}

Result<bool> StoreCoordinator::await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                     const Take& take) {
  const std::string ours = session();
  for (const std::uint32_t rank : ranks) {
    if (rank != 0) remember(topic, rank, 0);  // rank 0 speaks to all, and alone knows when all have heard it
  }
  for (Poll poll(clock_, patience);;) {
    const auto more = collect(ours, topic, ranks, take);
    if (more && (!*more || ranks.empty())) return true;
    if (!more && !more.error().retryable) return more;
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return more ? false : more;
  }
}

// Not of this step alone: what this rank said in the box before, and nobody took away because it came after an abort.
void StoreCoordinator::forget(const Topic& topic, std::uint32_t rank) {
  std::vector<std::string> keys;
  {
    std::lock_guard lock(mutex_);
    Box& box = known_[topic.box];
    const Said last{topic.attempt, topic.step, rank};
    for (auto message = box.begin(); message != box.end() && message->first <= last;) {
      const auto next = std::next(message);
      if (message->first.rank == rank) take_keys(session_, topic.box, message, next, keys);
      message = next;
    }
  }
  if (!keys.empty()) store_.remove(keys);
}

void StoreCoordinator::forget_before(const Topic& topic) {
  std::vector<std::string> keys;
  {
    std::lock_guard lock(mutex_);
    Box& box = known_[topic.box];
    take_keys(session_, topic.box, box.begin(), box.lower_bound({topic.attempt, topic.step, 0}), keys);
  }
  if (!keys.empty()) store_.remove(keys);
}

Result<std::vector<std::string>> StoreCoordinator::gather(const Member& self, const Patience& patience) {
  self_ = self;
  return self.rank == 0 ? lead(patience) : follow(patience);
}

Status StoreCoordinator::open_session() {
  SW_ASSIGN(const Values earlier, look({session_key_}));
  SW_TRY(store_.set(session_key_, self_.id));
  if (earlier[0] && *earlier[0] != self_.id) store_.remove({key_of(*earlier[0], roster_topic(), 0)});
  return {};
}

Result<std::vector<std::string>> StoreCoordinator::lead(const Patience& patience) {
  if (joined_.empty()) {
    SW_TRY(open_session());
    joined_[0] = self_.id;
  }
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 1; rank < self_.world; ++rank) {
    if (!joined_.contains(rank)) missing.push_back(rank);
    remember(joins_topic(), rank, 0);
  }
  std::optional<Error> trouble;
  const auto take = [&](std::uint32_t rank, const Message& message) {
    const auto id = read_join(message.body, rank, self_, path_);
    if (id) {
      joined_[rank] = *id;
    } else if (id.error().kind == ErrorKind::kMismatch) {
      trouble = id.error();
    }
    return !trouble;
  };
  for (Poll poll(clock_, patience); !missing.empty();) {
    const auto looked = collect(self_.id, joins_topic(), missing, take);
    if (trouble) {  // for good: whoever has joined is told, instead of waiting for a roster that never comes
      (void)publish_in(self_.id, roster_topic(), 0, Message(refusal_body(*trouble)));
      return fail(std::move(*trouble));
    }
    if (missing.empty()) break;
    if (!looked && looked.error().kind == ErrorKind::kAborted) {
      SW_TRY(open_session());  // who left the session before it as the last took the key away with the rest
    } else if (!looked && !looked.error().retryable) {
      return fail(looked.error());
    }
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return fail(looked ? not_joined(missing, self_.world, path_) : looked.error());
  }
  std::vector<std::string> members;
  for (const auto& [rank, id] : joined_) members.push_back(id);
  Status told = publish_in(self_.id, roster_topic(), 0, Message(roster_body(members)));
  if (!told && told.error().kind != ErrorKind::kAlreadyExists) return fail(std::move(told).error());
  {
    std::lock_guard lock(mutex_);
    session_ = self_.id;
  }
  Topic past_joins = joins_topic();
  past_joins.step = 1;
  forget_before(past_joins);
  return members;
}

Result<std::vector<std::string>> StoreCoordinator::try_to_join() {
  SW_ASSIGN(const Values found, look({session_key_}));
  if (!found[0] || *found[0] == refused_ || !is_plain_name(*found[0])) return {};
  const std::string& session = *found[0];
  if (answered_ != session) {
    Status joined = publish_in(session, joins_topic(), self_.rank, Message(join_body(self_)));
    if (!joined && joined.error().kind == ErrorKind::kAlreadyExists) {
      refused_ = session;
      return {};
    }
    SW_TRY(std::move(joined));
    answered_ = session;
  }
  Result<std::vector<std::string>> roster;
  const auto take = [&](std::uint32_t, const Message& message) {
    roster = read_roster(message.body, path_);
    return true;
  };
  std::vector<std::uint32_t> leader{0};
  SW_TRY(collect(session, roster_topic(), leader, take));
  SW_ASSIGN(std::vector<std::string> members, std::move(roster));
  if (members.empty()) return {};
  if (members.size() != self_.world || members[self_.rank] != self_.id) {
    refused_ = session;
    store_.remove({key_of(session, joins_topic(), self_.rank)});
    return {};
  }
  std::lock_guard lock(mutex_);
  session_ = session;
  known_.erase(joins_topic().box);  // rank 0 takes it away
  return members;
}

Result<std::vector<std::string>> StoreCoordinator::follow(const Patience& patience) {
  for (Poll poll(clock_, patience);;) {
    auto members = try_to_join();
    if (members && !members->empty()) return members;
    // kAborted: another session took its place while we looked.
    if (!members && !members.error().retryable && members.error().kind != ErrorKind::kAborted) return members;
    SW_ASSIGN(const bool again, poll.again());
    if (again) continue;
    if (!members && members.error().retryable) return members;
    return fail(not_taken_in(self_, !refused_.empty(), path_));
  }
}

// The words of a rank must outlive it: others may not have heard them yet. So nobody takes anything away before all have
// left, and who finds then that it is the last does it for all. In groups, so that none of thousands looks at all others.
void StoreCoordinator::leave() {
  const Member self = std::exchange(self_, {});
  std::vector<std::string> keys;
  bool gathered = false;
  std::string session = self.rank == 0 ? self.id : answered_;
  {
    std::lock_guard lock(mutex_);
    gathered = !session_.empty();
    if (gathered) session = std::exchange(session_, {});
    for (auto& [box, messages] : known_) take_keys(session, box, messages.begin(), messages.end(), keys);
  }
  if (session.empty()) return;
  if (gathered) {
    const std::uint32_t group = self.rank / kLeaveGroup;
    const std::uint32_t first = group * kLeaveGroup;
    keys = leave_group(session, "left", self.rank, first, std::min(first + kLeaveGroup, self.world), keys);
    if (keys.empty()) return;
    keys = leave_group(session, "left-groups", group, 0, (self.world - 1) / kLeaveGroup + 1, keys);
    if (keys.empty()) return;
  }
  if (gathered || self.rank == 0) {
    if (const auto found = look({session_key_}); found && (*found)[0] == session) keys.push_back(session_key_);
  }
  store_.remove(keys);
}

std::vector<std::string> StoreCoordinator::leave_group(const std::string& session, const std::string& box,
                                                       std::uint32_t rank, std::uint32_t first, std::uint32_t end,
                                                       const std::vector<std::string>& keys) {
  std::vector<std::string> left;  // the keys by which each says that it has left
  for (std::uint32_t member = first; member < end; ++member) left.push_back(key_of(session, {.box = box}, member));
  if (!store_.set(left[rank - first], Json(keys).dump())) return {};
  const auto values = look(left);
  if (!values) return {};
  std::vector<std::string> all = left;
  for (const auto& value : *values) {
    if (!value) return {};
    const auto listed = parse_json(*value, path_);
    if (!listed || !listed->is_array()) continue;
    for (const Json& key : *listed) {
      if (key.is_string()) all.push_back(key.get<std::string>());
    }
  }
  return all;
}

}  // namespace slackwater
