// StoreServer: answers what other ranks ask of rank 0, on a thread of its own ("sw-mpi"). Owned by the store of rank 0.
// Thread rule: any thread. Lifetime: table and communicator outlive it; close() comes before the destructor.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "mpi/store_messages.hpp"
#include "base/key_table.hpp"
#include "mpi/transfer.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

inline constexpr int kStoreRequestTag = 1;
inline constexpr int kStoreReplyTag = 2;

class StoreServer {
 public:
  StoreServer(MPI_Comm communicator, int clients, KeyTable& table, std::chrono::milliseconds timeout);

  // kIo where the process may have no more threads.
  [[nodiscard]] Status start();
  // Goes on until every other rank has said goodbye, or none has asked for anything for the time-out. True: all did.
  bool close();

  // The first thing MPI refused to do; the other ranks may have missed an answer.
  [[nodiscard]] std::optional<Error> trouble() const;

 private:
  using Time = std::chrono::steady_clock;

  void serve(const std::stop_token& stop);
  [[nodiscard]] bool receive();  // all that has come; whether anything moved
  [[nodiscard]] bool send();     // sees to answers that are on their way
  void answer(int client, std::string_view bytes);
  [[nodiscard]] StoreReply carry_out(StoreRequest request);
  void note(Error error);

  // Constant after construction.
  const MPI_Comm communicator_;
  const int clients_;
  KeyTable& table_;
  const std::chrono::milliseconds timeout_;

  // Of the server's thread.
  std::list<MpiTransfer> incoming_;
  std::list<MpiTransfer> outgoing_;
  int goodbyes_ = 0;

  std::atomic<bool> all_left_ = false;
  mutable std::mutex mutex_;  // guards what follows
  std::optional<Error> trouble_;

  std::jthread thread_;
};

}  // namespace slackwater
