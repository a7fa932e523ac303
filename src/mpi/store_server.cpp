#include "mpi/store_server.hpp"

#include <algorithm>
#include <climits>
#include <system_error>
#include <utility>

#include "base/thread.hpp"
#include "mpi/pause.hpp"

namespace slackwater {

StoreServer::StoreServer(MPI_Comm communicator, int clients, KeyTable& table, std::chrono::milliseconds timeout)
    : communicator_(communicator), clients_(clients), table_(table), timeout_(timeout) {}

Status StoreServer::start() {
  try {
    thread_ = start_thread("sw-mpi", [this](const std::stop_token& stop) { serve(stop); });
  } catch (const std::system_error& error) {
    return fail(Error{.kind = ErrorKind::kIo,
                      .message = "cannot start the thread that serves the other ranks",
                      .sys_errno = error.code().value()});
  }
  return {};
}

bool StoreServer::close() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  return all_left_;
}

std::optional<Error> StoreServer::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void StoreServer::note(Error error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

void StoreServer::serve(const std::stop_token& stop) {
  Pause pause;
  Time::time_point heard = Time::now();
  std::optional<Time::time_point> told;  // when close() was called; the timeout counts from then on
  for (;;) {
    const bool received = receive();
    const bool sent = send();
    if (received) heard = Time::now();
    if (stop.stop_requested()) {
      if (!told) told = Time::now();
      all_left_ = goodbyes_ == clients_ && outgoing_.empty();
      if (all_left_ || Time::now() - std::max(heard, *told) > timeout_) return;
    }
    if (received || sent) {
      pause.restart();
    } else {
      pause.wait();
    }
  }
}

bool StoreServer::receive() {
  bool moved = false;
  for (;;) {
    auto come = MpiTransfer::receive(communicator_, MPI_ANY_SOURCE, kStoreRequestTag);
    if (!come) note(std::move(come).error());
    if (!come || !*come) break;
    incoming_.push_back(std::move(**come));
  }
  for (auto at = incoming_.begin(); at != incoming_.end();) {
    const auto whole = at->done();
    if (whole && !*whole) {
      ++at;
      continue;
    }
    if (whole) {
      answer(at->peer(), at->bytes());
    } else {
      note(whole.error());
    }
    at = incoming_.erase(at);
    moved = true;
  }
  return moved;
}

bool StoreServer::send() {
  return std::erase_if(outgoing_, [this](MpiTransfer& transfer) {
           const auto over = transfer.done();
           if (!over) note(over.error());
           return !over || *over;
         }) > 0;
}

void StoreServer::answer(int client, std::string_view bytes) {
  auto request = decode_request(bytes);
  if (!request) return note(std::move(request).error());
  if (request->call == StoreCall::kGoodbye) {
    ++goodbyes_;
    return;
  }
  const std::uint64_t number = request->number;
  std::string text = encode(carry_out(std::move(*request)));
  if (text.size() > INT_MAX) text = encode(StoreReply{number, "the reply is too long for MPI", {}});
  auto reply = MpiTransfer::send(communicator_, client, kStoreReplyTag, std::move(text));
  if (!reply) return note(std::move(reply).error());
  outgoing_.push_back(std::move(*reply));
}

StoreReply StoreServer::carry_out(StoreRequest request) {
  StoreReply reply{.number = request.number, .error = {}, .values = {}};
  switch (request.call) {
    case StoreCall::kSet: table_.set(request.keys.front(), std::move(request.value)); break;
    case StoreCall::kGet: reply.values = table_.get(request.keys); break;
    case StoreCall::kRemove: table_.remove(request.keys); break;
    case StoreCall::kGoodbye: break;  // gets no reply
  }
  return reply;
}

}  // namespace slackwater
