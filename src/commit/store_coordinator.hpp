// StoreCoordinator: messages as values of a KeyValueStore that all ranks reach. A session is one gathering of ranks: rank
// 0 sets <prefix>/session to its own random id, the others answer the session they find there with theirs, and belong to
// it if its roster lists it. Every message lies below the session's id, so that nothing of an earlier one is heard, and
// who finds another session in place of its own knows that it was left out. The prefix comes from the directory of the
// checkpoints: several checkpointers of one job do not mix. A store cannot be listed, so each rank remembers what it
// said and what it asked for; who leaves last clears all of it away. Thread rule: thread-safe after gather(), which
// belongs to one thread at a time; leave() comes last. Lifetime: store and Clock outlive it.
#pragma once

#include <compare>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "commit/coordinator.hpp"
#include "slackwater/key_value_store.hpp"

namespace slackwater {

class StoreCoordinator final : public Coordinator {
 public:
  StoreCoordinator(KeyValueStore& store, const Clock& clock, std::string path);

  [[nodiscard]] Result<std::vector<std::string>> gather(const Member& self, const Patience& patience) override;
  [[nodiscard]] Status publish(const Topic& topic, std::uint32_t rank, const Message& message) override;
  [[nodiscard]] Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                   const Take& take) override;
  [[nodiscard]] std::map<std::uint32_t, std::uint64_t> latest(const Topic& topic,
                                                              const std::vector<std::uint32_t>& ranks) override;
  void forget(const Topic& topic, std::uint32_t rank) override;
  void forget_before(const Topic& topic) override;
  void leave() override;

 private:
  using Values = std::vector<std::optional<std::string>>;
  struct Said {
    std::uint32_t attempt = 0;
    std::uint64_t step = 0;
    std::uint32_t rank = 0;
    friend auto operator<=>(const Said&, const Said&) = default;
  };
  using Box = std::map<Said, std::uint32_t>;  // a message, and how many keys it has besides its own

  [[nodiscard]] std::string key_of(const std::string& session, const Topic& topic, std::uint32_t rank) const;
  [[nodiscard]] std::string session() const;
  void remember(const Topic& topic, std::uint32_t rank, std::uint32_t pieces);
  // The keys of these messages, which are then forgotten.
  void take_keys(const std::string& session, const std::string& box, Box::iterator first, Box::iterator last,
                 std::vector<std::string>& keys);  // needs mutex_

  [[nodiscard]] Result<Values> look(const std::vector<std::string>& keys);
  [[nodiscard]] Status publish_in(const std::string& session, const Topic& topic, std::uint32_t rank,
                                  const Message& message);
  // What of `ranks` is there now is handed out and taken from it. False: `take` wants no more.
  [[nodiscard]] Result<bool> collect(const std::string& session, const Topic& topic, std::vector<std::uint32_t>& ranks,
                                     const Take& take);
  // Puts a message together; nullopt: not all of it is there.
  [[nodiscard]] Result<std::optional<std::string>> read_pieces(const Topic& topic, std::uint32_t rank,
                                                               const std::string& key, const std::string& value);

  [[nodiscard]] Result<std::vector<std::string>> lead(const Patience& patience);
  [[nodiscard]] Status open_session();
  [[nodiscard]] Result<std::vector<std::string>> follow(const Patience& patience);
  // Joins the session that is there, and looks for its roster; empty: not yet.
  [[nodiscard]] Result<std::vector<std::string>> try_to_join();

  // Says that this rank has left. What all of [first, end) want to be taken away, once all have left; before that nothing.
  [[nodiscard]] std::vector<std::string> leave_group(const std::string& session, const std::string& box,
                                                     std::uint32_t rank, std::uint32_t first, std::uint32_t end,
                                                     const std::vector<std::string>& keys);

  // Constant after construction.
  KeyValueStore& store_;
  const Clock& clock_;
  const std::string path_;  // of the checkpoints, for messages to people
  const std::string prefix_;
  const std::string session_key_;

  // Of gather().
  Member self_;
  std::map<std::uint32_t, std::string> joined_;  // of rank 0: ids by rank, as they came
  std::string answered_;                         // session that has our id
  std::string refused_;  // session that somebody else joined as our rank, or whose roster is another's

  mutable std::mutex mutex_;  // guards what follows
  std::string session_;       // ours; empty before gather() succeeded
  std::map<std::string, Box, std::less<>> known_;
};

}  // namespace slackwater
