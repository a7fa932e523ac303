#include <atomic>
#include <list>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "mpi/communicator.hpp"
#include "mpi/pause.hpp"
#include "mpi/store_server.hpp"
#include "slackwater/mpi.hpp"

namespace slackwater {
namespace {

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
  [[nodiscard]] Result<std::optional<StoreReply>> look_for_reply();
  // True: the other side knows.
  bool close();
  bool say_goodbye();

  static int at_finalize(MPI_Comm, int, void* store, void*);

  // Constant after construction.
  MpiCommunicator communicator_;
  const std::chrono::milliseconds timeout_;

  KeyTable table_;  // of rank 0
  StoreServer server_;
  std::atomic<bool> closed_ = false;
  std::atomic<int> finalize_key_ = MPI_KEYVAL_INVALID;

  std::mutex mutex_;  // one request at a time; guards what follows
  std::uint64_t asked_ = 0;
  std::optional<MpiTransfer> reply_;   // begun to come
  std::list<MpiTransfer> unanswered_;  // requests of calls that ran out of time
};

Status MpiStore::check_open() const {
  if (closed_) return fail(ErrorKind::kClosed, "the store over MPI is closed; close the engine before MPI_Finalize()");
  if (!serves()) return {};
  if (auto trouble = server_.trouble()) return fail(std::move(*trouble));
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
                fmt::format("rank 0 answered {} values for {} keys over MPI", reply.values.size(), keys.size()));
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
    SW_ASSIGN(auto reply, look_for_reply());
    if (reply && reply->number == request.number) {
      if (!delivered) unanswered_.push_back(std::move(sent));  // rank 0 has it, MPI has yet to say so
      if (reply->trouble.empty()) return std::move(*reply);
      return fail(ErrorKind::kIo, fmt::format("rank 0 cannot answer over MPI: {}", reply->trouble));
    }
    if (reply) continue;  // the answer to a call that gave up
    if (Time::now() > deadline) {
      if (!delivered) unanswered_.push_back(std::move(sent));
      return fail(Error{ErrorKind::kTimeout,
                        fmt::format("rank 0 did not answer rank {} over MPI within {} s: it has ended, or hangs",
                                    communicator_.rank(), std::chrono::duration<double>(timeout_).count()),
                        {},
                        0,
                        true});
    }
    pause.wait();
  }
}

Result<std::optional<StoreReply>> MpiStore::look_for_reply() {
  std::erase_if(unanswered_, [](MpiTransfer& transfer) {
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

// MPI_Finalize() first deletes the attributes of MPI_COMM_SELF, while messages still pass: the one place from which
// a store that was left open can be closed. After it, one call of the server's thread would end the program.
Status MpiStore::close_with_mpi() {
  int key = MPI_KEYVAL_INVALID;
  int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &MpiStore::at_finalize, &key, nullptr);
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot ask MPI to tell of its end"));
  auto self = std::make_unique<std::weak_ptr<MpiStore>>(weak_from_this());
  code = MPI_Comm_set_attr(MPI_COMM_SELF, key, self.get());
  if (code != MPI_SUCCESS) return fail(mpi_error(code, "cannot ask MPI to tell of its end"));
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
  // Every rank takes the same steps whatever it finds, so that none waits for one that has turned back.
  SW_ASSIGN(MpiCommunicator ours, MpiCommunicator::duplicate(communicator));
  int threads = MPI_THREAD_SINGLE;
  MPI_Query_thread(&threads);
  SW_ASSIGN(const int least, ours.smallest(threads == MPI_THREAD_MULTIPLE ? 1 : 0));
  if (least == 0) {
    ours.free();
    return fail(ErrorKind::kUnsupported,
                "checkpoints over MPI need MPI_THREAD_MULTIPLE on all ranks; ask MPI_Init_thread() for it");
  }
  auto store = std::make_shared<MpiStore>(ours, timeout);
  Status started = store->start();
  if (started) started = store->close_with_mpi();
  SW_ASSIGN(const int all_started, ours.smallest(started ? 1 : 0));
  if (!started) return fail(std::move(started).error());
  if (all_started == 0) return fail(ErrorKind::kIo, "another rank could not open its store over MPI; it says why");
  return store;
}

}  // namespace slackwater
