// StoreServer: answers the requests of the other ranks on rank 0, on a thread of its own ("sw-mpi").
// Owner: the store of rank 0. Thread rule: any thread. Lifetime: table and communicator outlive it; call close() before
// the destructor.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "base/key_table.hpp"
#include "mpi/store_messages.hpp"
#include "mpi/transfer.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

inline constexpr int kStoreRequestTag = 1;
inline constexpr int kStoreReplyTag = 2;

class StoreServer {
 public:
  StoreServer(MPI_Comm communicator, int clients, KeyTable& table, std::chrono::milliseconds timeout);

  // kIo if the process may not have more threads.
  [[nodiscard]] Status start();
  // Serves until every other rank has said goodbye, or until no request has come for the timeout. True if all said
  // goodbye.
  bool close();

  // The first error of MPI, if any. The other ranks may have missed a reply.
  [[nodiscard]] std::optional<Error> error() const;

 private:
  using Time = std::chrono::steady_clock;

  void serve(const std::stop_token& stop);
  [[nodiscard]] bool receive();  // everything that has arrived; true if there was something
  [[nodiscard]] bool send();     // drops replies that are sent; true if there were any
  void answer(int client, std::string_view bytes);
  [[nodiscard]] StoreReply carry_out(StoreRequest request);
  void note(Error error);

  // Constant after construction.
  const MPI_Comm communicator_;
  const int clients_;
  KeyTable& table_;
  const std::chrono::milliseconds timeout_;

  // Used by the server's thread only.
  std::list<MpiTransfer> incoming_;
  std::list<MpiTransfer> outgoing_;
  int goodbyes_ = 0;

  std::atomic<bool> all_left_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_

  std::jthread thread_;
};

}  // namespace slackwater
