// MpiCommunicator: a duplicate of the caller's communicator, whose errors are returned instead of ending the program. Making and
// freeing one is collective. Owned by the store. Thread-safe, as MPI is then (MPI_THREAD_MULTIPLE).
#pragma once

#include <mpi.h>

#include "slackwater/error.hpp"

namespace slackwater {

class MpiCommunicator {
 public:
  [[nodiscard]] static Result<MpiCommunicator> duplicate(MPI_Comm communicator);

  [[nodiscard]] MPI_Comm get() const { return communicator_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  // The smallest of what the ranks say, on each of them. Collective.
  [[nodiscard]] Result<int> smallest(int mine) const;
  // Where all ranks do; else it is left to the end of the process.
  void free();

 private:
  explicit MpiCommunicator(MPI_Comm communicator) : communicator_(communicator) {}

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace slackwater
