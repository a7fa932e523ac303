#include "ranks/key_value_transport.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/json.hpp"
#include "base/result.hpp"
#include "base/scan.hpp"
#include "ranks/message_names.hpp"
#include "ranks/poll.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

constexpr std::size_t kStorePieceBytes = 1u << 20;  // stores refuse large values (8 MiB is the limit of c10d's)
constexpr std::size_t kFilePieceBytes = kMaxValueBytes - 16;  // the number of pieces stands before the first one
constexpr std::uint32_t kMaxPieces = 1024;
constexpr std::uint32_t kLeaveGroup = 64;

// Under this topic a rank keeps the name of its last message in a channel of a store.
Topic last_topic(const std::string& channel) { return {.channel = channel + "/last"}; }

std::string piece_key(const std::string& key, std::uint32_t piece) { return fmt::format("{}#{}", key, piece); }

Error session_over(const std::string& where) {
  return {ErrorKind::kAborted, "rank 0 was restarted, so this rank's run is over; restart all ranks together", where, 0,
          false};
}

}  // namespace

KeyValueTransport::KeyValueTransport(KeyValueStore& store, const Clock& clock, std::string path)
    : store_(store),
      clock_(clock),
      where_(std::move(path)),
      prefix_(fmt::format("slackwater/{}/", to_hex(digest128(where_)))),
      session_key_(prefix_ + "session"),
      piece_bytes_(kStorePieceBytes),
      rendezvous_(*this, clock, where_) {}

KeyValueTransport::KeyValueTransport(FileSystem& fs, const Clock& clock, const std::string& path)
    : directory_(std::make_unique<DirectoryStore>(fs, clock, fmt::format("{}/{}", path, kControlDirectory))),
      store_(*directory_),
      clock_(clock),
      where_(directory_->path_of("")),
      prefix_("session-"),
      piece_bytes_(kFilePieceBytes),
      rendezvous_(*this, clock, where_) {}

std::string KeyValueTransport::channel_of(const std::string& session, const std::string& channel) const {
  return fmt::format("{}{}/{}", prefix_, session, channel);
}

std::string KeyValueTransport::key_of(const std::string& session, const Topic& topic, std::uint32_t rank) const {
  return fmt::format("{}/{}", channel_of(session, topic.channel), message_file(topic, rank));
}

std::string KeyValueTransport::session() const {
  std::lock_guard lock(mutex_);
  return session_;
}

void KeyValueTransport::remember(const std::string& session, const Topic& topic, std::uint32_t rank,
                                 std::uint32_t pieces) {
  std::vector<std::string> keys{key_of(session, topic, rank)};
  for (std::uint32_t piece = 1; piece <= pieces; ++piece) keys.push_back(piece_key(keys[0], piece));
  std::lock_guard lock(mutex_);
  std::vector<std::string>& known = known_[topic.channel][{topic.attempt, topic.step, rank}];
  if (known.size() <= keys.size()) known = std::move(keys);
}

void KeyValueTransport::remove_messages(const std::string& channel,
                                        const std::function<bool(const MessageName&)>& which) {
  std::vector<std::string> keys;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(known_[channel], [&](const auto& message) {
      if (!which(message.first)) return false;
      keys.insert(keys.end(), message.second.begin(), message.second.end());
      return true;
    });
  }
  if (!keys.empty()) store_.remove(keys);
}

Result<KeyValueTransport::Values> KeyValueTransport::get(const std::vector<std::string>& keys) {
  SW_ASSIGN(Values values, store_.get(keys));
  if (values.size() != keys.size()) {
    return fail(ErrorKind::kInternal,
                fmt::format("the store of the ranks was asked for {} keys and returned {}", keys.size(), values.size()),
                where_);
  }
  return values;
}

Result<KeyValueTransport::Values> KeyValueTransport::find(const std::string& session, const Topic& topic,
                                                          const std::vector<std::uint32_t>& ranks) {
  std::vector<std::string> keys;
  for (const std::uint32_t rank : ranks) keys.push_back(key_of(session, topic, rank));
  if (!directory_) keys.push_back(session_key_);
  SW_ASSIGN(Values values, get(keys));
  bool alive = false;
  if (directory_) {
    // A rank that looks for its run may join an earlier session and so bring its directory back, but never its
    // membership.
    const bool ours = session == this->session();
    const std::string mark = ours ? channel_of(session, membership_topic().channel) : prefix_ + session;
    // While other ranks create names in the same directory, one listing may wrongly lack it. Ask again before giving
    // up.
    alive = directory_->has(mark) || (ours && directory_->is_still_there(mark));
  } else {
    alive = values.back() == session;
    values.pop_back();
  }
  if (!alive) return fail(session_over(where_));
  return values;
}

Result<std::optional<std::string>> KeyValueTransport::read(const std::string& session, const Topic& topic,
                                                           std::uint32_t rank, std::string_view first) {
  std::uint32_t pieces = 0;
  std::string_view rest = first;
  if (!take_number(rest, pieces) || !take_prefix(rest, "\n") || pieces > kMaxPieces)
    return std::optional<std::string>(first);  // not a message of ours: open_message() will report it
  std::string text(rest);
  if (pieces == 0) return std::optional(std::move(text));
  const std::string key = key_of(session, topic, rank);
  std::vector<std::string> keys;
  for (std::uint32_t piece = 1; piece <= pieces; ++piece) keys.push_back(piece_key(key, piece));
  SW_ASSIGN(const Values values, get(keys));
  for (const auto& piece : values) {
    if (!piece) return std::optional<std::string>();
    text += *piece;
  }
  if (rank != 0) remember(session, topic, rank, pieces);
  return std::optional(std::move(text));
}

Result<bool> KeyValueTransport::collect(const std::string& session, const Topic& topic,
                                        std::vector<std::uint32_t>& ranks, const Take& take) {
  for (std::uint64_t size_bytes = kMaxGetBytes; size_bytes >= kMaxGetBytes;) {
    size_bytes = 0;
    SW_ASSIGN(const Values found, find(session, topic, ranks));
    const std::vector<std::uint32_t> asked = ranks;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (!found[i]) continue;
      SW_ASSIGN(const auto text, read(session, topic, asked[i], *found[i]));
      if (!text) continue;
      const std::string key = key_of(session, topic, asked[i]);
      const auto message = open_message(*text, session, topic, asked[i], directory_ ? directory_->path_of(key) : key);
      if (!message) return fail(message.error());  // all of it is there, so waiting does not help
      size_bytes += found[i]->size();              // a directory may have held back the rest
      std::erase(ranks, asked[i]);
      if (!take(asked[i], *message)) return false;
    }
  }
  return true;
}

Result<bool> KeyValueTransport::await(const Topic& topic, std::vector<std::uint32_t> ranks, const Deadline& deadline,
                                      const Take& take) {
  const std::string ours = session();
  for (const std::uint32_t rank : ranks) {
    if (rank != 0) remember(ours, topic, rank, 0);  // rank 0 sends to all, and only it knows when all have read it
  }
  for (Poll poll(clock_, deadline);;) {
    const auto more = collect(ours, topic, ranks, take);
    if (more && (!*more || ranks.empty())) return true;
    if (!more && !more.error().retryable) return more;
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return more ? false : more;
  }
}

Status KeyValueTransport::publish(const Topic& topic, std::uint32_t rank, const Message& message) {
  return publish_in(session(), topic, rank, message);
}

Status KeyValueTransport::publish_in(const std::string& session, const Topic& topic, std::uint32_t rank,
                                     const Message& message) {
  const std::string key = key_of(session, topic, rank);
  if (!directory_) {  // a directory creates exclusively
    SW_ASSIGN(const Values found, find(session, topic, {rank}));
    if (found[0]) {
      return fail(ErrorKind::kAlreadyExists, fmt::format("rank {} has already published under {}", rank, key), where_);
    }
  }
  const std::string text = seal_message(session, topic, rank, message);
  const std::size_t pieces = (text.size() - 1) / piece_bytes_;
  if (pieces > kMaxPieces) {
    return fail(ErrorKind::kUnsupported,
                fmt::format("a message of {} bytes is too large for the store of the ranks", text.size()), where_);
  }
  remember(session, topic, rank, static_cast<std::uint32_t>(pieces));
  // The first piece is written last: whoever finds it finds the whole message.
  for (std::uint32_t piece = 1; piece <= pieces; ++piece)
    SW_TRY(store_.set(piece_key(key, piece), text.substr(piece * piece_bytes_, piece_bytes_)));
  const std::string first = fmt::format("{}\n{}", pieces, std::string_view(text).substr(0, piece_bytes_));
  if (directory_) {
    Status created = directory_->create(key, first);
    if (!created && created.error().kind == ErrorKind::kNotFound) return fail(session_over(where_));
    return created;
  }
  SW_TRY(store_.set(key, first));
  if (topic.attempt == 0) return {};
  // For latest(), because a store cannot be listed. Written after the message, so whoever finds this finds the message.
  remember(session, last_topic(topic.channel), rank, 0);
  (void)store_.set(key_of(session, last_topic(topic.channel), rank), message_file(topic, rank));
  return {};
}

std::map<std::uint32_t, std::uint64_t> KeyValueTransport::latest(const Topic& topic,
                                                                 const std::vector<std::uint32_t>& ranks) {
  const std::string ours = session();
  std::set<std::string> names;  // in a directory of all messages, in a store of each rank's last one
  if (directory_) {
    names = directory_->list(channel_of(ours, topic.channel)).value_or(names);
  } else {
    std::vector<std::string> keys;
    for (const std::uint32_t rank : ranks) keys.push_back(key_of(ours, last_topic(topic.channel), rank));
    for (auto& name : get(keys).value_or(Values())) names.insert(name.value_or(""));
  }
  const std::set<std::uint32_t> asked(ranks.begin(), ranks.end());
  std::map<std::uint32_t, std::uint64_t> steps;
  for (const std::string& each : names) {
    const auto name = parse_message_file(each);
    if (!name || name->attempt != topic.attempt || !asked.contains(name->rank)) continue;
    std::uint64_t& step = steps[name->rank];
    step = std::max(step, name->step);
  }
  return steps;
}

// Also removes this rank's earlier messages in the channel: one that came after an abort was not removed by anybody.
void KeyValueTransport::forget(const Topic& topic, std::uint32_t rank) {
  const MessageName last{topic.attempt, topic.step, rank};
  remove_messages(topic.channel, [&](const MessageName& name) { return name.rank == rank && name <= last; });
}

void KeyValueTransport::forget_before(const Topic& topic) {
  if (directory_) directory_->keep_reserve();  // a step was just decided, so there is time for it
  const MessageName first{topic.attempt, topic.step, 0};
  remove_messages(topic.channel, [&](const MessageName& name) { return name < first; });
}

Result<std::vector<std::string>> KeyValueTransport::rendezvous(const Member& self, const Deadline& deadline) {
  self_ = self;
  return rendezvous_.rendezvous(self, deadline);
}

Result<std::vector<std::string>> KeyValueTransport::list_sessions() {
  std::vector<std::string> sessions;
  if (!directory_) {
    SW_ASSIGN(const Values found, get({session_key_}));
    if (found[0] && is_plain_name(*found[0])) sessions.push_back(*found[0]);
    return sessions;
  }
  SW_ASSIGN(const std::set<std::string> names, directory_->list(""));
  for (const std::string& name : names) {
    if (name.starts_with(prefix_) && name.ends_with('/'))
      sessions.push_back(name.substr(prefix_.size(), name.size() - prefix_.size() - 1));
  }
  return sessions;
}

// Ends earlier sessions, so that their ranks learn that their run is over.
Status KeyValueTransport::open_session(const Member& leader) {
  SW_ASSIGN(std::vector<std::string> earlier, list_sessions());
  std::erase(earlier, leader.id);
  if (directory_) {
    for (std::string& session : earlier) session.insert(0, prefix_);
    return directory_->replace(earlier, prefix_ + leader.id, leader.world);
  }
  SW_TRY(store_.set(session_key_, leader.id));
  for (const std::string& session : earlier) withdraw(session, membership_topic(), 0);
  // Rank 0 removes the joins once all ranks have joined. In a directory they go with the session.
  for (std::uint32_t rank = 1; rank < leader.world; ++rank) remember(leader.id, joins_topic(), rank, 0);
  return {};
}

void KeyValueTransport::enter(const std::string& session) {
  {
    std::lock_guard lock(mutex_);
    session_ = session;
    if (self_.rank != 0) known_.erase(joins_topic().channel);  // rank 0 removes them
  }
  Topic past_joins = joins_topic();
  past_joins.step = 1;
  forget_before(past_joins);
}

void KeyValueTransport::withdraw(const std::string& session, const Topic& topic, std::uint32_t rank) {
  store_.remove({key_of(session, topic, rank)});
}

// The messages of a rank must outlive it, because others may not have read them yet. So nobody removes anything before
// all ranks have left, and the last one to leave removes everything. Ranks leave in groups, so that with thousands of
// them none has to check all the others. In a directory the messages go with the session, which rank 0 removes at its
// next start.
void KeyValueTransport::leave() {
  if (directory_) return;
  const Member self = std::exchange(self_, {});
  std::vector<std::string> keys;
  bool entered = false;  // rendezvous() has succeeded
  std::string session = self.rank == 0 ? self.id : rendezvous_.joined_session();
  {
    std::lock_guard lock(mutex_);
    entered = !session_.empty();
    if (entered) session = std::exchange(session_, {});
    for (const auto& [channel, messages] : std::exchange(known_, {})) {
      for (const auto& [name, known] : messages) keys.insert(keys.end(), known.begin(), known.end());
    }
  }
  if (session.empty()) return;
  if (entered) {
    const std::uint32_t group = self.rank / kLeaveGroup;
    const std::uint32_t first = group * kLeaveGroup;
    keys = leave_group(session, "left", self.rank, first, std::min(first + kLeaveGroup, self.world), keys);
    if (keys.empty()) return;
    keys = leave_group(session, "left-groups", group, 0, (self.world - 1) / kLeaveGroup + 1, keys);
    if (keys.empty()) return;
  }
  if (entered || self.rank == 0) {
    if (const auto found = get({session_key_}); found && (*found)[0] == session) keys.push_back(session_key_);
  }
  store_.remove(keys);
}

std::vector<std::string> KeyValueTransport::leave_group(const std::string& session, const std::string& channel,
                                                        std::uint32_t rank, std::uint32_t first, std::uint32_t end,
                                                        const std::vector<std::string>& keys) {
  std::vector<std::string> left;  // one key per member, set when it leaves
  for (std::uint32_t member = first; member < end; ++member)
    left.push_back(key_of(session, {.channel = channel}, member));
  if (!store_.set(left[rank - first], Json(keys).dump())) return {};
  const auto values = get(left);
  if (!values) return {};
  std::vector<std::string> all = left;
  for (const auto& value : *values) {
    if (!value) return {};
    const auto listed = parse_json(*value, where_);
    if (!listed || !listed->is_array()) continue;
    for (const Json& key : *listed) {
      if (key.is_string()) all.push_back(key.get<std::string>());
    }
  }
  return all;
}

}  // namespace slackwater
