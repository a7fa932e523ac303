#include "mpi/communicator.hpp"

#include "mpi/transfer.hpp"

namespace slackwater {

Result<MpiCommunicator> MpiCommunicator::duplicate(MPI_Comm communicator) {
  MPI_Comm copy = MPI_COMM_NULL;
  int code = MPI_Comm_dup(communicator, &copy);
  MpiCommunicator ours(copy);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(copy, &ours.rank_);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(copy, &ours.size_);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot make a communicator for checkpoints"));
  return ours;
}

Result<int> MpiCommunicator::smallest(int mine) const {
  int of_all = mine;
  const int code = MPI_Allreduce(&mine, &of_all, 1, MPI_INT, MPI_MIN, communicator_);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot compare the ranks over MPI"));
  return of_all;
}

void MpiCommunicator::free() {
  if (communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
}

}  // namespace slackwater
