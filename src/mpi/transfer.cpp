#include "mpi/transfer.hpp"

#include <climits>

#include <fmt/format.h>

namespace slackwater {

Error mpi_error(int code, const char* what) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int size = 0;
  if (MPI_Error_string(code, text, &size) != MPI_SUCCESS) size = 0;
  return {ErrorKind::kIo, fmt::format("{}: {}", what, std::string_view(text, static_cast<std::size_t>(size))), {}};
}

Result<MpiTransfer> MpiTransfer::send(MPI_Comm communicator, int to, int tag, std::string bytes) {
  if (bytes.size() > INT_MAX)
    return fail(ErrorKind::kUnsupported, fmt::format("a message of {} bytes is too long for MPI", bytes.size()));
  MpiTransfer transfer(to, std::move(bytes));
  const std::string& text = transfer.bytes();
  const int code = MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, to, tag, communicator,
                             &transfer.message_->request);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot send a message over MPI"));
  return transfer;
}

Result<std::optional<MpiTransfer>> MpiTransfer::receive(MPI_Comm communicator, int from, int tag) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status{};
  int code = MPI_Improbe(from, tag, communicator, &found, &message, &status);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot poll MPI for messages"));
  if (found == 0) return std::nullopt;
  int size = 0;
  code = MPI_Get_count(&status, MPI_BYTE, &size);
  if (code != MPI_SUCCESS || size < 0) return fail(mpi_error(code, "cannot get the length of a message over MPI"));
  MpiTransfer transfer(status.MPI_SOURCE, std::string(static_cast<std::size_t>(size), '\0'));
  code = MPI_Imrecv(transfer.message_->bytes.data(), size, MPI_BYTE, &message, &transfer.message_->request);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot receive a message over MPI"));
  return transfer;
}

Result<bool> MpiTransfer::done() {
  // A long message travels in pieces, and each poll moves one. Poll several times, or each piece would take a pause.
  constexpr int kPolls = 16;
  MPI_Request& request = message_->request;
  for (int poll = 0; request != MPI_REQUEST_NULL && poll < kPolls; ++poll) {
    int finished = 0;
    const int code = MPI_Test(&request, &finished, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return fail(mpi_error(code, "a message over MPI was lost"));
  }
  return request == MPI_REQUEST_NULL;
}

}  // namespace slackwater
