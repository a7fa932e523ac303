#include "store/stream_writer.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "store/stream.hpp"

namespace slackwater {
namespace {

// Measured (virtio disk, ext4): whole slabs of 8 MiB are written as fast as smaller requests at any depth, with fewer
// system calls. The depth keeps the disk busy with slabs of 1 MiB too.
constexpr std::uint64_t kMaxRequestBytes = 8u << 20;
constexpr unsigned kDefaultDepth = 16;

struct RegisterBuffer {
  int index;
  std::span<std::byte> memory;
};
struct BeginStream {
  StreamWriter::StreamId id;
  StreamSpec spec;
};
struct WriteSlab {
  StreamWriter::StreamId id;
  SlabWrite slab;
};
struct AbandonStream {
  StreamWriter::StreamId id;
  Error error;
};
using Command = std::variant<RegisterBuffer, BeginStream, WriteSlab, AbandonStream>;

// A part of a slab on its way to the file.
struct Request {
  Slab* slab = nullptr;
  std::uint64_t begin = 0;       // in the slab
  std::uint64_t size_bytes = 0;  // rounded up to what O_DIRECT takes
};

Error closed_error(const std::string& path) {
  return {ErrorKind::kClosed, "the writer was closed before this file was complete", path, 0, false};
}

}  // namespace

class StreamWriter::Impl {
 public:
  Impl(FileSystem& fs, const StreamWriterOptions& options, Log log)
      : fs_(fs), options_(options), log_(std::move(log)), registered_(options.buffer_slots) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      wake();
    }
    thread_.join();
  }

  // The queue belongs to the writer's thread from its making to its end.
  [[nodiscard]] Status start() {
    std::promise<Status> made;
    auto result = made.get_future();
    thread_ = start_thread("sw-write", [this, made = &made](const std::stop_token&) {
      Status status = make_queue();
      const bool usable = status.has_value();
      made->set_value(std::move(status));
      if (usable) run();
    });
    return result.get();
  }

  void post(Command command) {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(command));
    if (inbox_.size() == 1) wake();  // else the thread has been woken for the first one and will take them all
  }

  [[nodiscard]] StreamId next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] const std::string& backend() const { return backend_; }
  [[nodiscard]] bool direct() const { return direct_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool registered_buffers() const { return all_registered_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

 private:
  // Needs mutex_.
  void wake() {
    if (queue_) {
      queue_->wake();
    } else {
      inbox_filled_.notify_one();
    }
  }

  [[nodiscard]] Status make_queue() {
    auto queue = fs_.make_queue({.depth = options_.queue_depth == 0 ? kDefaultDepth : options_.queue_depth,
                                 .buffer_slots = options_.buffer_slots,
                                 .force_threads = options_.force_threads});
    if (!queue) return fail(std::move(queue.error()));
    queue_ = std::move(*queue);
    backend_ = queue_->backend();
    if (const std::string reason = queue_->fallback_reason(); !reason.empty()) {
      log_.warn("io_uring cannot be used here ({}); worker threads write instead", reason);
    }
    in_flight_.resize(queue_->depth());
    for (std::size_t slot = 0; slot < in_flight_.size(); ++slot) free_slots_.push_back(slot);
    return {};
  }

  void run() {
    while (true) {
      const bool closing = take_commands();
      if (closing) close_streams();
      if (closing && streams_.empty()) break;
      begin_requests();
      // Writes first: blocks are checksummed while they are under way. The thread sleeps only when none is left.
      const bool more_to_hash = hash_block();
      reap(more_to_hash);
    }
    const std::lock_guard lock(mutex_);
    queue_.reset();
  }

  void close_streams() {
    for (Stream* stream : all_streams()) {
      fail_stream(*stream, closed_error(stream->spec.path));
      settle(*stream);
    }
  }

  [[nodiscard]] bool take_commands() {
    bool closing = false;
    {
      std::unique_lock lock(mutex_);
      if (!queue_) inbox_filled_.wait(lock, [&] { return closing_ || !inbox_.empty(); });
      taken_.swap(inbox_);
      closing = closing_;
    }
    for (Command& command : taken_) {
      std::visit([&](auto& known) { handle(known, closing); }, command);
    }
    taken_.clear();
    return closing;
  }

  void handle(RegisterBuffer& buffer, bool /*closing*/) {
    // After one refusal the next ones would fare no better, and each costs a system call.
    if (!queue_ || registration_refused_) return;
    const auto slot = static_cast<std::size_t>(buffer.index);
    const Status status = slot < registered_.size()
                              ? queue_->register_buffer(buffer.index, buffer.memory)
                              : fail(ErrorKind::kInternal, fmt::format("there is no buffer slot {}", buffer.index));
    if (status) {
      registered_[slot] = true;
      all_registered_.store(true, std::memory_order_relaxed);
      return;
    }
    registration_refused_ = true;
    all_registered_.store(false, std::memory_order_relaxed);
    // A backend that has no such thing was reported when it was chosen.
    if (status.error().kind == ErrorKind::kUnsupported) return;
    if (status.error().sys_errno == ENOMEM) {
      log_.warn("writes are a little slower than they could be: the limit of locked memory is low (ulimit -l)");
    } else {
      log_.warn("writes are a little slower than they could be: {}", status.error().to_string());
    }
  }

  void handle(BeginStream& begin, bool closing) {
    auto owned = std::make_unique<Stream>(begin.id, std::move(begin.spec));
    Stream& stream = *owned;
    streams_.emplace(begin.id, std::move(owned));
    if (Status opened = closing ? Status(fail(closed_error(stream.spec.path))) : open_file(stream); !opened) {
      fail_stream(stream, std::move(opened.error()));
    }
    settle(stream);
  }

  [[nodiscard]] Status open_file(Stream& stream) {
    if (broken_) return fail(*broken_);
    const bool direct = stream.spec.direct && this->direct();
    const auto create = [&] { return DurableFile::create(fs_, stream.spec.path, stream.spec.size_bytes, direct); };
    auto file = create();
    // The file that could not be had in full is gone again, so its name is free.
    while (!file && file.error().kind == ErrorKind::kNoSpace && stream.spec.make_room && stream.spec.make_room())
      file = create();
    if (!file) return fail(std::move(file).error());
    stream.file = std::move(*file);
    if (direct && !stream.file->file().direct()) direct_refused("at open", stream.spec.path);
    return {};
  }

  void handle(WriteSlab& write, bool /*closing*/) {
    const auto found = streams_.find(write.id);
    if (found == streams_.end() || found->second->error) return write.slab.release();
    Stream& stream = *found->second;
    if (Status accepted = stream.accept(write.slab); !accepted) {
      write.slab.release();
      fail_stream(stream, std::move(accepted.error()));
      return settle(stream);
    }
    Slab& slab = stream.slabs.emplace_back(std::move(write.slab), stream);
    const std::uint64_t rounded = round_up(slab.write.size_bytes, kDirectAlignment);
    for (std::uint64_t begin = 0; begin < rounded; begin += kMaxRequestBytes) {
      pending_.push_back({&slab, begin, std::min(kMaxRequestBytes, rounded - begin)});
      ++slab.requests;
    }
    to_hash_.push_back(&slab);
  }

  void handle(AbandonStream& abandon, bool /*closing*/) {
    const auto found = streams_.find(abandon.id);
    if (found == streams_.end()) return;
    fail_stream(*found->second, std::move(abandon.error));
    settle(*found->second);
  }

  void begin_requests() {
    for (auto next = pending_.begin(); queue_ && next != pending_.end() && !free_slots_.empty();) {
      Stream& stream = next->slab->stream;
      if (stream.leaving_direct) {
        ++next;
        continue;
      }
      const std::size_t slot = free_slots_.back();
      const SlabWrite& write = next->slab->write;
      const bool registered = write.buffer >= 0 && static_cast<std::size_t>(write.buffer) < registered_.size() &&
                              registered_[static_cast<std::size_t>(write.buffer)];
      Status status = queue_->submit({.op = IoOp::kWrite,
                                      .file = &stream.file->file(),
                                      .data = write.memory.data() + next->begin,
                                      .size_bytes = next->size_bytes,
                                      .offset = write.offset + next->begin,
                                      .buffer = registered ? write.buffer : -1,
                                      .tag = slot});
      if (!status) {
        if (status.error().retryable && queue_->in_flight() > 0) return;  // a completion makes room
        fail_stream(stream, std::move(status.error()));
        settle(stream);
        next = pending_.begin();
        continue;
      }
      free_slots_.pop_back();
      in_flight_[slot] = *next;
      ++stream.in_flight;
      next = pending_.erase(next);
    }
  }

  // True if blocks are left.
  [[nodiscard]] bool hash_block() {
    if (to_hash_.empty()) return false;
    Slab& slab = *to_hash_.front();
    Stream& stream = slab.stream;
    stream.hash_block(slab);
    if (slab.hashed()) {
      to_hash_.pop_front();
      settle(stream);
    }
    return !to_hash_.empty();
  }

  void reap(bool only_what_is_there) {
    if (!queue_) return;
    completions_.clear();
    const Status status =
        queue_->wait(completions_, only_what_is_there ? std::optional(Duration::zero()) : std::nullopt);
    for (IoCompletion& completion : completions_) complete(completion);
    if (!status) give_up_queue(status.error());
  }

  void complete(IoCompletion& completion) {
    const Request request = std::exchange(in_flight_[completion.tag], {});
    free_slots_.push_back(completion.tag);
    Slab& slab = *request.slab;
    Stream& stream = slab.stream;
    --stream.in_flight;
    Result<std::uint64_t>& done = completion.size_bytes;
    if (!done && done.error().sys_errno == EINVAL && stream.file->file().direct() && !stream.error) {
      stream.leaving_direct = true;
      pending_.push_front(request);
    } else {
      --slab.requests;
      if (!done) {
        fail_stream(stream, std::move(done.error()));
      } else if (*done != request.size_bytes) {
        fail_stream(stream, {ErrorKind::kIo,
                             fmt::format("only {} of {} bytes were written at {}", *done, request.size_bytes,
                                         slab.write.offset + request.begin),
                             stream.spec.path, 0, false});
      } else {
        count_written(stream, std::min(request.size_bytes, slab.write.size_bytes - request.begin));
      }
    }
    if (stream.leaving_direct && stream.in_flight == 0) leave_direct(stream);
    settle(stream);
  }

  void count_written(Stream& stream, std::uint64_t bytes) {
    stream.written_bytes += bytes;
    bytes_written_.fetch_add(bytes, std::memory_order_relaxed);
    if (stream.spec.on_progress) stream.spec.on_progress(stream.written_bytes);
  }

  // Nothing of this stream is in flight, so its descriptor may change; the refused requests stand in pending_ again.
  void leave_direct(Stream& stream) {
    stream.leaving_direct = false;
    direct_refused("at the first write", stream.spec.path);
    if (Status status = stream.file->file().set_direct(false); !status) fail_stream(stream, std::move(status.error()));
  }

  void direct_refused(std::string_view when, const std::string& path) {
    if (direct_.exchange(false, std::memory_order_relaxed)) {
      log_.warn("the file system refused O_DIRECT {}; writing goes on through the page cache: {}", when, path);
    }
  }

  // The first error stays; what is not in flight will not be written. settle() has to follow.
  void fail_stream(Stream& stream, Error error) {
    if (stream.error) return;
    stream.error = std::move(error);
    stream.leaving_direct = false;
    std::erase_if(to_hash_, [&](const Slab* slab) { return &slab->stream == &stream; });
    std::erase_if(pending_, [&](const Request& request) {
      if (&request.slab->stream != &stream) return false;
      --request.slab->requests;
      return true;
    });
  }

  // Gives back the slabs nobody needs any more and ends the stream if nothing is left to do; it is gone then.
  void settle(Stream& stream) {
    std::erase_if(stream.slabs, [&](Slab& slab) {
      if (slab.requests > 0 || (!slab.hashed() && !stream.error)) return false;
      slab.write.release();
      return true;
    });
    if (stream.in_flight > 0 || (!stream.error && !stream.complete())) return;
    const auto found = streams_.find(stream.id);
    const std::unique_ptr<Stream> ended = std::move(found->second);
    streams_.erase(found);
    if (queue_ && ended->file) queue_->forget(ended->file->file());
    if (ended->error) {
      ended->file.reset();
      ended->spec.on_written(fail(std::move(*ended->error)));
    } else {
      ended->spec.on_written(WrittenStream{std::move(*ended->file), std::move(ended->block_digests)});
    }
  }

  [[nodiscard]] std::vector<Stream*> all_streams() const {
    std::vector<Stream*> all;
    for (const auto& entry : streams_) all.push_back(entry.second.get());
    return all;
  }

  // Completions cannot be had any more. The queue's destructor waits until the kernel is done with the memory; then the
  // slabs go back. Snapshots from here on fail with this error, training goes on.
  void give_up_queue(const Error& error) {
    log_.error("the I/O queue failed, nothing can be written any more: {}", error.to_string());
    broken_ = error;
    std::unique_ptr<IoQueue> queue;
    {
      const std::lock_guard lock(mutex_);
      queue = std::move(queue_);
    }
    queue.reset();
    for (Stream* stream : all_streams()) {
      fail_stream(*stream, error);
      stream->in_flight = 0;
      for (Slab& slab : stream->slabs) slab.requests = 0;
      settle(*stream);
    }
  }

  FileSystem& fs_;
  const StreamWriterOptions options_;
  const Log log_;
  std::string backend_;  // constant once start() returned

  std::atomic<StreamId> next_id_ = 1;
  std::atomic<bool> direct_ = true;
  std::atomic<bool> all_registered_ = false;
  std::atomic<std::uint64_t> bytes_written_ = 0;

  std::mutex mutex_;
  std::condition_variable inbox_filled_;  // only used once the queue is gone
  std::vector<Command> inbox_;            // guarded by mutex_
  bool closing_ = false;                  // guarded by mutex_
  std::unique_ptr<IoQueue> queue_;        // guarded by mutex_ for wake(), made and dropped by the writer's thread

  // The writer's thread alone.
  std::vector<Command> taken_;
  std::unordered_map<StreamId, std::unique_ptr<Stream>> streams_;
  std::list<Request> pending_;  // in the order they came
  std::deque<Slab*> to_hash_;
  std::vector<Request> in_flight_;  // by tag
  std::vector<std::size_t> free_slots_;
  std::vector<IoCompletion> completions_;
  std::vector<bool> registered_;  // by buffer number
  bool registration_refused_ = false;
  std::optional<Error> broken_;  // why the queue is gone

  std::jthread thread_;  // started last
};

Result<std::unique_ptr<StreamWriter>> StreamWriter::create(FileSystem& fs, const StreamWriterOptions& options,
                                                           Log log) {
  auto impl = std::make_unique<Impl>(fs, options, std::move(log));
  SW_TRY(impl->start());
  return std::unique_ptr<StreamWriter>(new StreamWriter(std::move(impl)));
}

StreamWriter::StreamWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StreamWriter::~StreamWriter() = default;

void StreamWriter::register_buffer(int index, std::span<std::byte> memory) {
  impl_->post(RegisterBuffer{index, memory});
}

StreamWriter::StreamId StreamWriter::begin(StreamSpec spec) {
  const StreamId id = impl_->next_id();
  impl_->post(BeginStream{id, std::move(spec)});
  return id;
}

void StreamWriter::write(StreamId stream, SlabWrite slab) { impl_->post(WriteSlab{stream, std::move(slab)}); }
void StreamWriter::abandon(StreamId stream, Error error) { impl_->post(AbandonStream{stream, std::move(error)}); }

std::string StreamWriter::backend() const { return impl_->backend(); }
bool StreamWriter::direct() const { return impl_->direct(); }
bool StreamWriter::registered_buffers() const { return impl_->registered_buffers(); }
std::uint64_t StreamWriter::bytes_written() const { return impl_->bytes_written(); }

}  // namespace slackwater
