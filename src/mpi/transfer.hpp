// MpiTransfer: one message on its way, with the memory that MPI reads or fills for it.
// Owner: whoever sends or expects it. Thread rule: one thread at a time. Lifetime: may be dropped at any time. If the
// message is still on its way, its memory is leaked, because MPI may use it until the process ends.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "slackwater/error.hpp"

namespace slackwater {

// An error with the text that MPI has for the code.
[[nodiscard]] Error mpi_error(int code, const char* what);

class MpiTransfer {
 public:
  // Starts to send.
  [[nodiscard]] static Result<MpiTransfer> send(MPI_Comm communicator, int to, int tag, std::string bytes);
  // Starts to receive a message if one has arrived. `from` may be MPI_ANY_SOURCE.
  [[nodiscard]] static Result<std::optional<MpiTransfer>> receive(MPI_Comm communicator, int from, int tag);

  // Whether the transfer is finished. Never waits.
  [[nodiscard]] Result<bool> done();
  [[nodiscard]] int peer() const { return peer_; }
  [[nodiscard]] const std::string& bytes() const { return message_->bytes; }

 private:
  struct Message {
    std::string bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct DeleteIfDone {
    void operator()(Message* message) const {
      if (message->request == MPI_REQUEST_NULL) delete message;
    }
  };

  MpiTransfer(int peer, std::string bytes) : peer_(peer), message_(new Message{std::move(bytes)}) {}

  int peer_ = 0;
  std::unique_ptr<Message, DeleteIfDone> message_;
};

}  // namespace slackwater
