// KeyValueTransport: the rank transport, over a key-value store that all ranks reach. The store is the user's (of
// torch.distributed, or over MPI), or the directory of the checkpoints, for ranks that share only that.
//
// A session is one rendezvous of ranks (rendezvous.hpp). Every message is below its session. So nobody reads messages
// of an earlier session, and a rank whose session is gone knows that it was left out.
//
//   in a store                                              in a directory
//   slackwater/<digest of path>/session: id of the session  .slackwater/session-<id>/ exists
//   slackwater/<digest of path>/<id>/<channel>/<message>    .slackwater/session-<id>/<channel>/<message>
//
// A directory can be listed, and creates files exclusively. A store can do neither. So the session's id is read with
// every message, a key holds the name of each rank's last message in a channel, and the last rank to leave removes all
// keys. In both cases a rank remembers what it sent and what it waited for, to remove it later.
//
// Thread rule: thread-safe after rendezvous(), which belongs to one thread at a time. leave() comes last.
// Lifetime: owned by the Engine. The store, FileSystem and Clock outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_system.hpp"
#include "ranks/directory_store.hpp"
#include "ranks/message_names.hpp"
#include "ranks/rank_transport.hpp"
#include "ranks/rendezvous.hpp"
#include "ranks/session_messages.hpp"
#include "slackwater/key_value_store.hpp"

namespace slackwater {

class KeyValueTransport final : public RankTransport, public SessionMessages {
 public:
  // `path`: of the checkpoints. It separates checkpointers that share a store.
  KeyValueTransport(KeyValueStore& store, const Clock& clock, std::string path);
  KeyValueTransport(FileSystem& fs, const Clock& clock, const std::string& path);

  [[nodiscard]] Result<std::vector<std::string>> rendezvous(const Member& self, const Deadline& deadline) override;
  [[nodiscard]] Status publish(const Topic& topic, std::uint32_t rank, const Message& message) override;
  [[nodiscard]] Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Deadline& deadline,
                                   const Take& take) override;
  [[nodiscard]] std::map<std::uint32_t, std::uint64_t> latest(const Topic& topic,
                                                              const std::vector<std::uint32_t>& ranks) override;
  void forget(const Topic& topic, std::uint32_t rank) override;
  void forget_before(const Topic& topic) override;
  void leave() override;

  // For Rendezvous.
  [[nodiscard]] Result<std::vector<std::string>> list_sessions() override;
  [[nodiscard]] Status open_session(const Member& leader) override;
  void enter(const std::string& session) override;
  [[nodiscard]] Result<bool> collect(const std::string& session, const Topic& topic, std::vector<std::uint32_t>& ranks,
                                     const Take& take) override;
  [[nodiscard]] Status publish_in(const std::string& session, const Topic& topic, std::uint32_t rank,
                                  const Message& message) override;
  void withdraw(const std::string& session, const Topic& topic, std::uint32_t rank) override;
  [[nodiscard]] bool over_directory() const override { return directory_ != nullptr; }

 private:
  using Values = std::vector<std::optional<std::string>>;
  [[nodiscard]] std::string channel_of(const std::string& session, const std::string& channel) const;
  [[nodiscard]] std::string key_of(const std::string& session, const Topic& topic, std::uint32_t rank) const;
  [[nodiscard]] std::string session() const;
  // For forget() and leave(): a message, and how many keys it has besides its own.
  void remember(const std::string& session, const Topic& topic, std::uint32_t rank, std::uint32_t pieces);
  void remove_messages(const std::string& channel, const std::function<bool(const MessageName&)>& which);

  [[nodiscard]] Result<Values> get(const std::vector<std::string>& keys);
  // The first piece of each message, from one call to the store. kAborted: the session is over.
  [[nodiscard]] Result<Values> find(const std::string& session, const Topic& topic,
                                    const std::vector<std::uint32_t>& ranks);
  // The whole message; nullopt: not all of it is there.
  [[nodiscard]] Result<std::optional<std::string>> read(const std::string& session, const Topic& topic,
                                                        std::uint32_t rank, std::string_view first);
  // Publishes that this rank has left, and the keys to remove for it. Once all of [first, end) have left, returns the
  // keys of all of them; before that, nothing.
  [[nodiscard]] std::vector<std::string> leave_group(const std::string& session, const std::string& channel,
                                                     std::uint32_t rank, std::uint32_t first, std::uint32_t end,
                                                     const std::vector<std::string>& keys);

  // Constant after construction.
  const std::unique_ptr<DirectoryStore> directory_;  // null: store_ is the user's
  KeyValueStore& store_;
  const Clock& clock_;
  const std::string where_;        // for error messages
  const std::string prefix_;       // of all keys of a session, before its id
  const std::string session_key_;  // of the user's store
  const std::size_t piece_bytes_;  // a longer message is split over several keys

  // Of rendezvous().
  Member self_;
  Rendezvous rendezvous_;

  mutable std::mutex mutex_;  // guards what follows
  std::string session_;       // of this rank; empty until rendezvous() has succeeded
  std::map<std::string, std::map<MessageName, std::vector<std::string>>>
      known_;  // by channel: messages, and their keys
};

}  // namespace slackwater
