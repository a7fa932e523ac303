#include "mpi/transfer.hpp"

#include <climits>
#include <utility>

#include <fmt/format.h>

namespace slackwater {

Error mpi_error(int code, const char* what) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int size = 0;
  if (MPI_Error_string(code, text, &size) != MPI_SUCCESS) size = 0;
  return {ErrorKind::kIo, fmt::format("{}: {}", what, std::string_view(text, static_cast<std::size_t>(size))), {}};
}

MpiTransfer::MpiTransfer(int peer, std::string bytes)
    : peer_(peer), bytes_(std::make_unique<std::string>(std::move(bytes))) {}

MpiTransfer::MpiTransfer(MpiTransfer&& other) noexcept
    : peer_(other.peer_), request_(std::exchange(other.request_, MPI_REQUEST_NULL)), bytes_(std::move(other.bytes_)) {}

MpiTransfer& MpiTransfer::operator=(MpiTransfer&& other) noexcept {
  if (this != &other) {
    abandon();
    peer_ = other.peer_;
    request_ = std::exchange(other.request_, MPI_REQUEST_NULL);
    bytes_ = std::move(other.bytes_);
  }
  return *this;
}

MpiTransfer::~MpiTransfer() { abandon(); }

void MpiTransfer::abandon() {
  if (request_ != MPI_REQUEST_NULL) static_cast<void>(bytes_.release());
}

Result<MpiTransfer> MpiTransfer::send(MPI_Comm communicator, int to, int tag, std::string bytes) {
  if (bytes.size() > INT_MAX)
    return fail(ErrorKind::kUnsupported, fmt::format("a message of {} bytes is more than MPI takes", bytes.size()));
  MpiTransfer transfer(to, std::move(bytes));
  const std::string& text = *transfer.bytes_;
  const int code =
      MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE, to, tag, communicator, &transfer.request_);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot send a message over MPI"));
  return transfer;
}

Result<std::optional<MpiTransfer>> MpiTransfer::receive(MPI_Comm communicator, int from, int tag) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status{};
  int code = MPI_Improbe(from, tag, communicator, &found, &message, &status);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot look for messages over MPI"));
  if (found == 0) return std::nullopt;
  int size = 0;
  code = MPI_Get_count(&status, MPI_BYTE, &size);
  if (code != MPI_SUCCESS || size < 0) return fail(mpi_error(code, "cannot tell how long a message over MPI is"));
  MpiTransfer transfer(status.MPI_SOURCE, std::string(static_cast<std::size_t>(size), '\0'));
  code = MPI_Imrecv(transfer.bytes_->data(), size, MPI_BYTE, &message, &transfer.request_);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot receive a message over MPI"));
  return transfer;
}

Result<bool> MpiTransfer::done() {
  // A long message goes in pieces, and each look moves one: a few at once, or it would take a pause for each.
  constexpr int kLooks = 16;
  for (int look = 0; request_ != MPI_REQUEST_NULL && look < kLooks; ++look) {
    int over = 0;
    const int code = MPI_Test(&request_, &over, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return fail(mpi_error(code, "a message over MPI was lost"));
  }
  return request_ == MPI_REQUEST_NULL;
}

}  // namespace slackwater
