#include "store/file_writer.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"
#include "store/pending_file.hpp"
#include "store/registered_buffers.hpp"
#include "store/write_requests.hpp"

namespace slackwater {
namespace {

constexpr unsigned kDefaultDepth = 16;  // keeps the disk busy even with slabs of 1 MiB

// What callers ask of the writer's thread.
struct RegisterBuffer {
  int index;
  std::span<std::byte> memory;
};
struct BeginFile {
  FileWriter::FileId id;
  FileSpec spec;
};
struct WriteSlab {
  FileWriter::FileId id;
  SlabWrite slab;
};
struct AbandonFile {
  FileWriter::FileId id;
  Error error;
};
using Command = std::variant<RegisterBuffer, BeginFile, WriteSlab, AbandonFile>;

Error closed_error(const std::string& path) {
  return {ErrorKind::kClosed, "the writer was closed before this file was complete", path, 0, false};
}

}  // namespace

class FileWriter::Impl {
 public:
  Impl(FileSystem& fs, const FileWriterOptions& options, Log log)
      : fs_(fs), options_(options), log_(std::move(log)), buffers_(options.buffer_slots) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      wake();
    }
    thread_.join();
  }

  // The queue belongs to the writer's thread from its creation to its end, as a ring may be used by one thread only. So
  // the thread makes it, and start() waits to hear whether that worked.
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
    if (inbox_.size() == 1) wake();  // otherwise the thread was woken for the first one, and will take them all
  }

  // For any thread.
  std::atomic<FileId> next_id = 1;
  std::string backend;  // constant once start() has returned
  std::atomic<bool> direct = true;
  std::atomic<bool> buffers_registered = false;
  std::atomic<std::uint64_t> bytes_written = 0;

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
    backend = queue_->backend();
    if (const std::string reason = queue_->fallback_reason(); !reason.empty()) {
      log_.warn("io_uring cannot be used here ({}); worker threads write instead", reason);
    }
    requests_ = WriteRequests(queue_->depth());
    return {};
  }

  void run() {
    while (true) {
      const bool closing = take_commands();
      if (closing) close_files();
      // Only now: memory of files with writes in flight still belongs to the kernel.
      if (closing && files_.empty()) break;
      // Writes first, so that the disk works while this thread checksums. One block at a time, so that a completed
      // write is noticed soon and its slot filled again. The thread sleeps only when nothing is left to checksum.
      begin_requests();
      const bool more_to_hash = hash_block();
      reap(more_to_hash);
    }
    const std::lock_guard lock(mutex_);
    queue_.reset();
  }

  void close_files() {
    for (PendingFile* file : all_files()) {
      fail_file(*file, closed_error(file->spec.path));
      settle(*file);
    }
  }

  [[nodiscard]] bool take_commands() {
    bool closing = false;
    {
      std::unique_lock lock(mutex_);
      // Without a queue there is nothing to reap, so this is where the thread sleeps.
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
    if (queue_) buffers_registered = buffers_.add(*queue_, buffer.index, buffer.memory, log_);
  }

  void handle(BeginFile& begin, bool closing) {
    auto owned = std::make_unique<PendingFile>(begin.id, std::move(begin.spec));
    PendingFile& file = *owned;
    files_.emplace(begin.id, std::move(owned));
    // A file that cannot be opened ends like any other: its slabs, which are on their way already, find it gone and are
    // given back.
    if (Status opened = closing ? Status(fail(closed_error(file.spec.path))) : try_to_open(file); !opened) {
      fail_file(file, std::move(opened.error()));
    }
    settle(file);
  }

  // An exception would end the process. When memory is short, opening a file is where this thread meets one first.
  [[nodiscard]] Status try_to_open(PendingFile& file) {
    try {
      return open_file(file);
    } catch (const std::exception& trouble) {
      return fail(ErrorKind::kOutOfMemory, fmt::format("the file could not be opened: {}", trouble.what()),
                  file.spec.path);
    }
  }

  [[nodiscard]] Status open_file(PendingFile& file) {
    if (broken_) return fail(*broken_);
    const bool want_direct = file.spec.direct && direct;
    const auto create = [&] { return DurableFile::create(fs_, file.spec.path, file.spec.size_bytes, want_direct); };
    // Creating allocates all of the file's space, so a full disk shows here and not in the middle of the file. A file
    // that did not get its space has been removed again, so the same name can be tried once more.
    auto created = create();
    while (!created && created.error().kind == ErrorKind::kNoSpace && file.spec.make_room && file.spec.make_room())
      created = create();
    if (!created) return fail(std::move(created).error());
    file.durable = std::move(*created);
    if (want_direct && !file.durable->file().direct()) direct_refused("at open", file.spec.path);
    return {};
  }

  void handle(WriteSlab& write, bool /*closing*/) {
    // The sender does not know yet that the file has failed. Its slabs must go back to the pool all the same, or the
    // pool would run dry.
    const auto found = files_.find(write.id);
    if (found == files_.end() || found->second->error) return write.slab.release();
    PendingFile& file = *found->second;
    if (Status accepted = file.accept(write.slab); !accepted) {
      write.slab.release();
      fail_file(file, std::move(accepted.error()));
      return settle(file);
    }
    Slab& slab = file.slabs.emplace_back(std::move(write.slab), file);
    requests_.add(slab);
    to_hash_.push_back(&slab);
  }

  void handle(AbandonFile& abandon, bool /*closing*/) {
    const auto found = files_.find(abandon.id);
    if (found == files_.end()) return;
    fail_file(*found->second, std::move(abandon.error));
    settle(*found->second);
  }

  void begin_requests() {
    while (queue_) {
      auto refused = requests_.submit(*queue_, buffers_);
      if (!refused) return;
      // One file's trouble must not keep the others from being written: fail it, and go on with the rest.
      fail_file(*refused->file, std::move(refused->error));
      settle(*refused->file);
    }
  }

  // Checksums one block of the oldest slab. True if more blocks are left.
  [[nodiscard]] bool hash_block() {
    if (to_hash_.empty()) return false;
    Slab& slab = *to_hash_.front();
    PendingFile& file = slab.file;
    file.hash_block(slab);
    if (file.hashed_bytes == file.spec.size_bytes && file.spec.on_hashed) file.spec.on_hashed(file.block_digests);
    if (slab.hashed()) {
      to_hash_.pop_front();
      settle(file);
    }
    return !to_hash_.empty();
  }

  // Handles the writes that have completed; sleeps for one, or for a command, unless there is other work.
  void reap(bool other_work) {
    if (!queue_) return;
    completions_.clear();
    const Status status = queue_->wait(completions_, other_work ? std::optional(Duration::zero()) : std::nullopt);
    for (IoCompletion& completion : completions_) complete(completion);
    if (!status) give_up_queue(status.error());
  }

  void complete(IoCompletion& completion) {
    const WriteRequest request = requests_.take_completed(completion.tag);
    Slab& slab = *request.slab;
    PendingFile& file = slab.file;
    Result<std::uint64_t>& done = completion.size_bytes;
    if (!done && done.error().sys_errno == EINVAL && file.durable->file().direct() && !file.error) {
      // Some file systems accept O_DIRECT at open and refuse it at the first write. Nothing was written, so the request
      // is as good as new. It waits until the file has left direct mode.
      file.leaving_direct = true;
      requests_.retry(request);
    } else {
      --slab.requests;
      if (!done) {
        fail_file(file, std::move(done.error()));
      } else if (*done != request.size_bytes) {
        // The queue continues short writes itself. One that is short even so will not get any further.
        fail_file(file, {ErrorKind::kIo,
                         fmt::format("only {} of {} bytes were written at {}", *done, request.size_bytes,
                                     slab.write.offset + request.begin),
                         file.spec.path, 0, false});
      } else {
        count_written(file, std::min(request.size_bytes, slab.write.size_bytes - request.begin));
      }
    }
    // The flag of the descriptor may change only when nothing is in flight: a write under way must not find its
    // alignment rules changed.
    if (file.leaving_direct && file.in_flight == 0) leave_direct(file);
    settle(file);
  }

  void count_written(PendingFile& file, std::uint64_t bytes) {
    file.written_bytes += bytes;
    bytes_written.fetch_add(bytes, std::memory_order_relaxed);
    if (file.spec.on_progress) file.spec.on_progress(file.written_bytes);
  }

  void leave_direct(PendingFile& file) {
    file.leaving_direct = false;
    direct_refused("at the first write", file.spec.path);
    if (Status status = file.durable->file().set_direct(false); !status) fail_file(file, std::move(status.error()));
  }

  // Later files do not try again; the log says so once.
  void direct_refused(std::string_view when, const std::string& path) {
    if (direct.exchange(false)) {
      log_.warn("the file system refused O_DIRECT {}; writing goes on through the page cache: {}", when, path);
    }
  }

  // Keeps the first error, which is the cause of the others, and drops what is not in flight. Call settle() next.
  void fail_file(PendingFile& file, Error error) {
    if (file.error) return;
    file.error = std::move(error);
    file.leaving_direct = false;
    std::erase_if(to_hash_, [&](const Slab* slab) { return &slab->file == &file; });
    requests_.drop(file);
  }

  // Gives back the slabs that nobody needs any more. Ends the file if nothing is left to do; it is gone then.
  void settle(PendingFile& file) {
    // A slab is needed until it is written and checksummed. If the file has failed, checksums do not matter, but a
    // write in flight still reads the memory: the next snapshot's bytes must not get into it.
    std::erase_if(file.slabs, [&](Slab& slab) {
      if (slab.requests > 0 || (!slab.hashed() && !file.error)) return false;
      slab.write.release();
      return true;
    });
    if (file.in_flight > 0 || (!file.error && !file.complete())) return;
    // Take it out of the map before on_written, which may call back and begin the next file.
    const auto found = files_.find(file.id);
    const std::unique_ptr<PendingFile> ended = std::move(found->second);
    files_.erase(found);
    if (queue_ && ended->durable) queue_->forget(ended->durable->file());
    if (ended->error) {
      ended->durable.reset();  // closed before anybody hears of the error and removes the file
      ended->spec.on_written(fail(std::move(*ended->error)));
    } else {
      ended->spec.on_written(WrittenFile{std::move(*ended->durable), std::move(ended->block_digests)});
    }
  }

  // A copy: settle() removes files from the map.
  [[nodiscard]] std::vector<PendingFile*> all_files() const {
    std::vector<PendingFile*> all;
    for (const auto& entry : files_) all.push_back(entry.second.get());
    return all;
  }

  // No completion will arrive any more. Every file fails, and so does every later one, with this error. Training goes
  // on.
  void give_up_queue(const Error& error) {
    log_.error("the I/O queue failed, nothing can be written any more: {}", error.to_string());
    broken_ = error;
    std::unique_ptr<IoQueue> queue;
    {
      const std::lock_guard lock(mutex_);  // post() may be waking the queue
      queue = std::move(queue_);
    }
    // The destructor waits until the kernel is done with the memory. Only then may the slabs go back.
    queue.reset();
    for (PendingFile* file : all_files()) {
      fail_file(*file, error);
      file->in_flight = 0;
      for (Slab& slab : file->slabs) slab.requests = 0;
      settle(*file);
    }
  }

  FileSystem& fs_;
  const FileWriterOptions options_;
  const Log log_;

  std::mutex mutex_;
  std::condition_variable inbox_filled_;  // only used once the queue is gone
  std::vector<Command> inbox_;            // guarded by mutex_
  bool closing_ = false;                  // guarded by mutex_
  std::unique_ptr<IoQueue> queue_;        // guarded by mutex_ for wake(); made and dropped by the writer's thread

  // The writer's thread alone.
  std::vector<Command> taken_;
  std::unordered_map<FileId, std::unique_ptr<PendingFile>> files_;
  WriteRequests requests_{0};
  RegisteredBuffers buffers_;
  std::deque<Slab*> to_hash_;  // in the order they came
  std::vector<IoCompletion> completions_;
  std::optional<Error> broken_;  // why the queue is gone

  std::jthread thread_;  // started last
};

Result<std::unique_ptr<FileWriter>> FileWriter::create(FileSystem& fs, const FileWriterOptions& options, Log log) {
  auto impl = std::make_unique<Impl>(fs, options, std::move(log));
  SW_TRY(impl->start());
  return std::unique_ptr<FileWriter>(new FileWriter(std::move(impl)));
}

FileWriter::FileWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FileWriter::~FileWriter() = default;

void FileWriter::register_buffer(int index, std::span<std::byte> memory) { impl_->post(RegisterBuffer{index, memory}); }

FileWriter::FileId FileWriter::begin(FileSpec spec) {
  const FileId id = impl_->next_id++;
  impl_->post(BeginFile{id, std::move(spec)});
  return id;
}

void FileWriter::write(FileId file, SlabWrite slab) { impl_->post(WriteSlab{file, std::move(slab)}); }
void FileWriter::abandon(FileId file, Error error) { impl_->post(AbandonFile{file, std::move(error)}); }

std::string FileWriter::backend() const { return impl_->backend; }
bool FileWriter::direct() const { return impl_->direct; }
bool FileWriter::registered_buffers() const { return impl_->buffers_registered; }
std::uint64_t FileWriter::bytes_written() const { return impl_->bytes_written; }

}  // namespace slackwater
