#include <atomic>
#include <list>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "mpi/pause.hpp"
#include "mpi/store_server.hpp"
#include "mpi/transfer.hpp"
#include "slackwater/mpi.hpp"

namespace slackwater {
namespace {

// A duplicate of the caller's communicator that returns errors instead of ending the program. Thread-safe, because MPI
// is (MPI_THREAD_MULTIPLE).
class MpiCommunicator {
 public:
  // Collective.
  [[nodiscard]] static Result<MpiCommunicator> duplicate(MPI_Comm communicator) {
    MpiCommunicator ours;
    int code = MPI_Comm_dup(communicator, &ours.communicator_);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(ours.communicator_, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(ours.communicator_, &ours.rank_);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(ours.communicator_, &ours.size_);
    if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot make a communicator for checkpoints"));
    return ours;
  }

  [[nodiscard]] MPI_Comm get() const { return communicator_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  // Whether it is true on every rank. Collective; every rank gets the same answer.
  [[nodiscard]] Result<bool> all_ranks(bool mine) const {
    const int on_this_rank = mine ? 1 : 0;
    int smallest = on_this_rank;
    const int code = MPI_Allreduce(&on_this_rank, &smallest, 1, MPI_INT, MPI_MIN, communicator_);
    if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot compare the ranks over MPI"));
    return smallest == 1;
  }
  // Collective. If not all ranks get here, the communicator lives until the process ends.
  void free() {
    if (communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
  }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

class MpiStore final : public KeyValueStore, public std::enable_shared_from_this<MpiStore> {
 public:
  MpiStore(const MpiCommunicator& communicator, std::chrono::milliseconds timeout)
      : communicator_(communicator),
        timeout_(timeout),
        server_(communicator.get(), communicator.size() - 1, table_, timeout) {}
  ~MpiStore() override;

  Status start() { return serves() ? server_.start() : Status(); }
  [[nodiscard]] Status close_with_mpi();

  [[nodiscard]] Status set(const std::string& key, const std::string& value) override;
  [[nodiscard]] Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys) override;
  void remove(const std::vector<std::string>& keys) override;

 private:
  using Time = std::chrono::steady_clock;

  [[nodiscard]] bool serves() const { return communicator_.rank() == 0; }
  [[nodiscard]] Status check_open() const;
  [[nodiscard]] Result<StoreReply> ask(StoreRequest request);
  [[nodiscard]] Result<std::optional<StoreReply>> poll_reply();
  // True if the other side knows.
  bool close();
  bool say_goodbye();

  static int at_finalize(MPI_Comm, int, void* store, void*);

  // Constant after construction.
  MpiCommunicator communicator_;
  const std::chrono::milliseconds timeout_;

  KeyTable table_;  // used on rank 0 only
  StoreServer server_;
  std::atomic<bool> closed_ = false;
  std::atomic<int> finalize_key_ = MPI_KEYVAL_INVALID;

  std::mutex mutex_;  // one request at a time; guards the members below
  std::uint64_t asked_ = 0;
  std::optional<MpiTransfer> reply_;  // being received
  std::list<MpiTransfer> unsent_;     // requests that MPI has not reported as sent; their calls are over
};

Status MpiStore::check_open() const {
  if (closed_) return fail(ErrorKind::kClosed, "the store over MPI is closed; close the engine before MPI_Finalize()");
  if (!serves()) return {};
  if (auto error = server_.error()) return fail(std::move(*error));
  return {};
}

Status MpiStore::set(const std::string& key, const std::string& value) {
  SW_TRY(check_open());
  if (serves()) {
    table_.set(key, value);
    return {};
  }
  SW_TRY(ask({.call = StoreCall::kSet, .keys = {key}, .value = value}));
  return {};
}

Result<std::vector<std::optional<std::string>>> MpiStore::get(const std::vector<std::string>& keys) {
  SW_TRY(check_open());
  if (serves()) return table_.get(keys);
  SW_ASSIGN(StoreReply reply, ask({.call = StoreCall::kGet, .keys = keys, .value = {}}));
  if (reply.values.size() != keys.size())
    return fail(ErrorKind::kCorrupt,
                fmt::format("rank 0 returned {} values for {} keys over MPI", reply.values.size(), keys.size()));
  return std::move(reply.values);
}

void MpiStore::remove(const std::vector<std::string>& keys) {
  if (!check_open()) return;
  if (serves()) {
    table_.remove(keys);
  } else {
    static_cast<void>(ask({.call = StoreCall::kRemove, .keys = keys, .value = {}}));
  }
}

Result<StoreReply> MpiStore::ask(StoreRequest request) {
  std::lock_guard lock(mutex_);
  SW_TRY(check_open());
  request.number = ++asked_;
  SW_ASSIGN(MpiTransfer sent, MpiTransfer::send(communicator_.get(), 0, kStoreRequestTag, encode(request)));
  const Time::time_point deadline = Time::now() + timeout_;
  Pause pause;
  for (bool delivered = false;;) {
    if (!delivered) {
      SW_ASSIGN(delivered, sent.done());
    }
    SW_ASSIGN(auto reply, poll_reply());
    if (reply && reply->number == request.number) {
      if (!delivered) unsent_.push_back(std::move(sent));  // rank 0 has it, but MPI has not said so yet
      if (reply->error.empty()) return std::move(*reply);
      return fail(ErrorKind::kIo, fmt::format("rank 0 cannot answer over MPI: {}", reply->error));
    }
    if (reply) continue;  // the answer to an earlier call that gave up
    if (Time::now() > deadline) {
      if (!delivered) unsent_.push_back(std::move(sent));
      return fail(
          Error{.kind = ErrorKind::kTimeout,
                .message = fmt::format("rank 0 did not answer rank {} over MPI within {} s: it has ended, or hangs",
                                       communicator_.rank(), std::chrono::duration<double>(timeout_).count()),
                .retryable = true});
    }
    pause.wait();
  }
}

Result<std::optional<StoreReply>> MpiStore::poll_reply() {
  std::erase_if(unsent_, [](MpiTransfer& transfer) {
    const auto over = transfer.done();
    return !over || *over;
  });
  if (!reply_) {
    SW_ASSIGN(reply_, MpiTransfer::receive(communicator_.get(), 0, kStoreReplyTag));
  }
  if (!reply_) return std::nullopt;
  SW_ASSIGN(const bool whole, reply_->done());
  if (!whole) return std::nullopt;
  auto reply = decode_reply(reply_->bytes());
  reply_.reset();
  if (!reply) return fail(std::move(reply).error());
  return std::move(*reply);
}

bool MpiStore::say_goodbye() {
  std::lock_guard lock(mutex_);
  auto sent = MpiTransfer::send(communicator_.get(), 0, kStoreRequestTag, encode({.call = StoreCall::kGoodbye}));
  if (!sent) return false;
  const Time::time_point deadline = Time::now() + timeout_;
  for (Pause pause; Time::now() < deadline; pause.wait()) {
    const auto over = sent->done();
    if (!over) return false;
    if (*over) return true;
  }
  return false;
}

bool MpiStore::close() {
  if (closed_.exchange(true)) return false;
  return serves() ? server_.close() : say_goodbye();
}

MpiStore::~MpiStore() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;  // at_finalize() has closed it
  const bool all_well = close();
  int key = finalize_key_.exchange(MPI_KEYVAL_INVALID);
  if (key == MPI_KEYVAL_INVALID) return;  // inside MPI_Finalize()
  MPI_Comm_delete_attr(MPI_COMM_SELF, key);
  MPI_Comm_free_keyval(&key);
  if (all_well) communicator_.free();
}

// Closes a store that is still open at MPI_Finalize(). MPI_Finalize() deletes the attributes of MPI_COMM_SELF first,
// while messages still get through. Later, a single MPI call of the server's thread would end the program.
Status MpiStore::close_with_mpi() {
  int key = MPI_KEYVAL_INVALID;
  int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &MpiStore::at_finalize, &key, nullptr);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot ask MPI for a call at MPI_Finalize()"));
  auto self = std::make_unique<std::weak_ptr<MpiStore>>(weak_from_this());
  code = MPI_Comm_set_attr(MPI_COMM_SELF, key, self.get());
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot ask MPI for a call at MPI_Finalize()"));
  static_cast<void>(self.release());  // at_finalize() owns it
  finalize_key_ = key;
  return {};
}

int MpiStore::at_finalize(MPI_Comm, int, void* store, void*) {
  const std::unique_ptr<std::weak_ptr<MpiStore>> self(static_cast<std::weak_ptr<MpiStore>*>(store));
  if (const auto open = self->lock()) {
    open->finalize_key_ = MPI_KEYVAL_INVALID;
    open->close();
  }
  return MPI_SUCCESS;
}

}  // namespace

Result<std::shared_ptr<KeyValueStore>> mpi_store(MPI_Comm communicator, std::chrono::milliseconds timeout) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0)
    return fail(ErrorKind::kInvalidArgument,
                "MPI is not initialised; call MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...) first");
  // Every rank takes the same steps whatever it finds, so that none waits for a rank that has given up.
  SW_ASSIGN(MpiCommunicator ours, MpiCommunicator::duplicate(communicator));
  int threads = MPI_THREAD_SINGLE;
  MPI_Query_thread(&threads);
  SW_ASSIGN(const bool all_threaded, ours.all_ranks(threads == MPI_THREAD_MULTIPLE));
  if (!all_threaded) {
    ours.free();
    return fail(ErrorKind::kUnsupported,
                "checkpoints over MPI need MPI_THREAD_MULTIPLE on all ranks; ask MPI_Init_thread() for it");
  }
  auto store = std::make_shared<MpiStore>(ours, timeout);
  Status started = store->start();
  if (started) started = store->close_with_mpi();
  SW_ASSIGN(const bool all_started, ours.all_ranks(started.has_value()));
  if (!started) return fail(std::move(started).error());
  if (!all_started) return fail(ErrorKind::kIo, "another rank could not open its store over MPI; it says why");
  return store;
}

}  // namespace slackwater
