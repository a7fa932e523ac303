// MpiTransfer: one message on its way, with the memory that MPI reads or fills meanwhile. Owned by whoever sent or expects it.
// Thread rule: one thread at a time. Lifetime: may be dropped at any time; the memory of a message that is still on its way then stays
// where it is, because MPI may touch it as long as the process lives.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>

#include "slackwater/error.hpp"

namespace slackwater {

// What MPI says about one of its error codes.
[[nodiscard]] Error mpi_error(int code, const char* what);

class MpiTransfer {
 public:
  // Begins to send.
  [[nodiscard]] static Result<MpiTransfer> send(MPI_Comm communicator, int to, int tag, std::string bytes);
  // Begins to receive what has come, if something has. `from` may be MPI_ANY_SOURCE.
  [[nodiscard]] static Result<std::optional<MpiTransfer>> receive(MPI_Comm communicator, int from, int tag);

  // Whether it is over. Never waits.
  [[nodiscard]] Result<bool> done();
  [[nodiscard]] int peer() const { return peer_; }
  [[nodiscard]] const std::string& bytes() const { return *bytes_; }

  MpiTransfer(MpiTransfer&& other) noexcept;
  MpiTransfer& operator=(MpiTransfer&& other) noexcept;
  ~MpiTransfer();

 private:
  MpiTransfer(int peer, std::string bytes);
  void abandon();

  int peer_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::unique_ptr<std::string> bytes_;
};

}  // namespace slackwater
