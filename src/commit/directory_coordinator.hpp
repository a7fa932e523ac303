// DirectoryCoordinator: messages as files below <tier>/.slackwater/session-<id>/, for ranks that share a directory and
// nothing else. A session is one gathering of ranks. Rank 0 makes it, under its own random id, and removes those of
// earlier starts (it holds the lock). The others answer every session they find with their id, and belong to the one
// whose roster lists it. A message is written under a private name and linked to its own, so it is never seen in part.
// On a full disk it finds space in the reserve (reserve.hpp), or is spelled in names (message_names.hpp).
// Who waits lists the box, which even NFS answers freshly (opening a directory asks the server), and reads what is new;
// a file that cannot be read yet is tried again. A box or a message that may not be there yet is never asked for by its
// name (os/durable.hpp, lists_name). Thread rule: thread-safe after gather(), which belongs to one thread
// at a time. Lifetime: FileSystem and Clock outlive it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "commit/coordinator.hpp"
#include "commit/reserve.hpp"
#include "os/file_system.hpp"

namespace slackwater {

class DirectoryCoordinator final : public Coordinator {
 public:
  DirectoryCoordinator(FileSystem& fs, const Clock& clock, std::string root);

  [[nodiscard]] Result<std::vector<std::string>> gather(const Member& self, const Patience& patience) override;
  [[nodiscard]] Status publish(const Topic& topic, std::uint32_t rank, const Message& message) override;
  [[nodiscard]] Result<bool> await(const Topic& topic, std::vector<std::uint32_t> ranks, const Patience& patience,
                                   const Take& take) override;
  [[nodiscard]] std::map<std::uint32_t, std::uint64_t> latest(const Topic& topic,
                                                              const std::vector<std::uint32_t>& ranks) override;
  void forget(const Topic& topic, std::uint32_t rank) override;
  void forget_before(const Topic& topic) override;

 private:
  [[nodiscard]] std::string session_path(const std::string& session) const;
  [[nodiscard]] std::string box_path(const std::string& session, const std::string& box) const;
  [[nodiscard]] std::string session() const;

  [[nodiscard]] Status publish_in(const std::string& session, const Topic& topic, std::uint32_t rank,
                                  const Message& message);
  // The ways to say something: a file with the text; where there is no space for it, the names of empty files.
  [[nodiscard]] Status write_message(const std::string& box, const Topic& topic, std::uint32_t rank,
                                     const std::string& text);
  [[nodiscard]] Status write_names(const std::string& box, const Topic& topic, std::uint32_t rank,
                                   const std::string& text);
  [[nodiscard]] Status check_unsaid(const std::string& box, const Topic& topic, std::uint32_t rank);
  void remove_names(const std::string& box, const Topic& topic, std::uint32_t rank);
  [[nodiscard]] std::optional<std::string> read_text(const std::string& path);  // nullopt: it cannot be read now
  // What is in a box; kNotFound before anybody has spoken there; kAborted if the session is gone.
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list_box(const std::string& session, const std::string& box);
  [[nodiscard]] Result<bool> has_roster(const std::string& session);
  // What of `ranks` is there now is handed out and taken from it. False: `take` wants no more.
  [[nodiscard]] Result<bool> collect(const std::string& session, const Topic& topic, std::vector<std::uint32_t>& ranks,
                                     const Take& take);
  [[nodiscard]] Error over(const std::string& session) const;

  [[nodiscard]] Result<std::vector<std::string>> lead(const Member& self, const Patience& patience);
  [[nodiscard]] Result<std::vector<std::string>> follow(const Member& self, const Patience& patience);
  [[nodiscard]] Status answer_sessions(const Member& self);
  [[nodiscard]] Result<std::vector<std::string>> list_sessions();
  void remove_session(const std::string& session);

  // Constant after construction.
  FileSystem& fs_;
  const Clock& clock_;
  const std::string control_;

  Reserve reserve_;
  std::atomic<bool> spelled_ = false;           // this rank has said something in names
  std::atomic<std::uint32_t> leads_world_ = 0;  // the number of ranks, if this is rank 0

  // Of gather().
  std::map<std::uint32_t, std::string> joined_;  // ids by rank, as they came
  std::set<std::string> answered_;               // sessions that have our id
  std::set<std::string> refused_;     // sessions that somebody else joined as our rank, or whose roster is another's
  std::optional<Error> cannot_join_;  // why the last answer to a session could not be given

  mutable std::mutex mutex_;          // guards what follows
  std::string session_;               // ours; empty before gather() succeeded
  std::uint64_t published_ = 0;       // makes private names unique
  std::set<std::string> boxes_seen_;  // paths of boxes that were listed once
};

}  // namespace slackwater
