// What the writer does when storage fails.
#include <cerrno>
#include <condition_variable>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fault_file_system.hpp"
#include "unit/store/writer_fixture.hpp"

namespace slackwater {
namespace {

using test::FaultFileSystem;
using test::FsCall;
using test::kAlways;
using test::kMiB;
using test::TestFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;

class FileWriterFault : public ::testing::Test {
 protected:
  std::unique_ptr<FileWriter> make_writer(FileWriterOptions options = {}) {
    auto writer = FileWriter::create(fs_, options, log_.log());
    EXPECT_TRUE(writer.has_value());
    return std::move(*writer);
  }

  test::TempDir dir_;
  test::TestLog log_;
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  TestFile first_{dir_ / "first", 4 * kMiB + 100};
  TestFile other_{dir_ / "other", 2 * kMiB, 2};
};

TEST_F(FileWriterFault, AFileThatCannotBeMadeFailsAndReturnsItsSlabs) {
  fs_.fail(FsCall::kAllocate, ENOSPC);
  auto writer = make_writer();
  first_.write_all(*writer, writer->begin(first_.spec()), kMiB);
  const auto written = first_.wait();
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().kind, ErrorKind::kNoSpace);
  other_.write_all(*writer, writer->begin(other_.spec()), kMiB);
  auto good = other_.wait();
  ASSERT_TRUE(good.has_value());
  other_.expect_on_disk(*good);
  writer.reset();
  EXPECT_EQ(first_.released(), first_.lent());
}

TEST_F(FileWriterFault, AFailedWriteEndsItsFileOnceAndNotTheOthers) {
  fs_.fail(FsCall::kQueueWrite, EIO, {.nth = 2, .times = kAlways, .path = "first"});
  auto writer = make_writer({.queue_depth = 2});
  const auto id = writer->begin(first_.spec());
  const auto other_id = writer->begin(other_.spec());
  first_.write_all(*writer, id, kMiB);
  other_.write_all(*writer, other_id, kMiB);
  const auto written = first_.wait();
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().kind, ErrorKind::kIo);
  EXPECT_EQ(written.error().sys_errno, EIO);
  EXPECT_THAT(written.error().path, HasSubstr("first"));
  auto good = other_.wait();
  ASSERT_TRUE(good.has_value());
  other_.expect_on_disk(*good);
  writer.reset();
  EXPECT_EQ(first_.released(), first_.lent());
  EXPECT_EQ(first_.ends(), 1);
}

TEST_F(FileWriterFault, SlabsOfAFileThatHasEndedAreGivenBackUnwritten) {
  fs_.fail(FsCall::kQueueWrite, ENOSPC);
  auto writer = make_writer();
  const auto id = writer->begin(first_.spec());
  writer->write(id, first_.slab(0, kMiB));
  EXPECT_EQ(first_.wait().error().kind, ErrorKind::kNoSpace);
  const auto writes = fs_.count(FsCall::kQueueWrite);
  writer->write(id, first_.slab(kMiB, kMiB));
  writer.reset();
  EXPECT_EQ(first_.released(), 2);
  EXPECT_EQ(fs_.count(FsCall::kQueueWrite), writes);
}

TEST_F(FileWriterFault, DirectWritesThatAreRefusedGoThroughThePageCache) {
  fs_.fail(FsCall::kQueueWrite, EINVAL);  // the first one: how many are in flight by then depends on the threads
  const auto writer = make_writer();
  EXPECT_TRUE(writer->direct());
  first_.write_all(*writer, writer->begin(first_.spec()), kMiB);
  auto written = first_.wait();
  ASSERT_TRUE(written.has_value()) << written.error().to_string();
  EXPECT_FALSE(written->file.file().direct());
  first_.expect_on_disk(*written);
  EXPECT_FALSE(writer->direct());
  EXPECT_EQ(fs_.count(FsCall::kSetDirect), 1u);

  other_.write_all(*writer, writer->begin(other_.spec()), kMiB);
  auto later = other_.wait();
  ASSERT_TRUE(later.has_value());
  EXPECT_FALSE(later->file.file().direct()) << "later files are opened buffered";
  other_.expect_on_disk(*later);
  EXPECT_THAT(log_.messages(), ElementsAre(HasSubstr("refused O_DIRECT at the first write")));
}

TEST_F(FileWriterFault, AnInvalidBufferedWriteIsAnError) {
  fs_.fail(FsCall::kQueueWrite, EINVAL);
  const auto writer = make_writer();
  first_.write_all(*writer, writer->begin(first_.spec(false)), kMiB);
  EXPECT_EQ(first_.wait().error().sys_errno, EINVAL);
  EXPECT_EQ(fs_.count(FsCall::kSetDirect), 0u);
}

TEST_F(FileWriterFault, ADescriptorThatStaysDirectEndsItsFile) {
  fs_.fail(FsCall::kQueueWrite, EINVAL);
  fs_.fail(FsCall::kSetDirect, EPERM);
  auto writer = make_writer();
  first_.write_all(*writer, writer->begin(first_.spec()), kMiB);
  EXPECT_EQ(first_.wait().error().kind, ErrorKind::kPermission);
  writer.reset();
  EXPECT_EQ(first_.released(), first_.lent());
}

TEST_F(FileWriterFault, BuffersTheKernelWillNotPinAreUsedUnregistered) {
  fs_.fail(FsCall::kRegisterBuffer, ENOMEM, {.nth = 2});
  const auto writer = make_writer({.buffer_slots = 4});
  for (int i = 0; i < 4; ++i)
    writer->register_buffer(i, first_.memory().subspan(static_cast<std::size_t>(i) * kMiB, kMiB));
  const auto id = writer->begin(first_.spec());
  for (int i = 0; i < 5; ++i) writer->write(id, first_.slab(static_cast<std::uint64_t>(i) * kMiB, kMiB, i));
  auto written = first_.wait();
  ASSERT_TRUE(written.has_value()) << written.error().to_string();
  first_.expect_on_disk(*written);
  EXPECT_FALSE(writer->registered_buffers());
  EXPECT_EQ(fs_.count(FsCall::kRegisterBuffer), 2u) << "asked again after a refusal";
  EXPECT_THAT(log_.messages(), ElementsAre(AllOf(HasSubstr("ulimit -l"), SizeIs(Lt(100)))));
}

TEST_F(FileWriterFault, AnAbandonedFileEndsWhenItsWritesAreBack) {
  fs_.hold_writes();
  const auto writer = make_writer();
  const auto id = writer->begin(first_.spec());
  writer->write(id, first_.slab(0, kMiB));
  writer->write(id, first_.slab(kMiB, kMiB));
  fs_.wait_held(2);
  writer->abandon(id, {ErrorKind::kTorn, "torn", "weight", 0, false});
  // The writer has seen the abandonment once it answers for a file begun after it.
  const auto probe = writer->begin({.path = dir_ / "missing/file",
                                    .size_bytes = 1,
                                    .direct = false,
                                    .on_progress = {},
                                    .on_written = [&](const Result<WrittenFile>&) {
                                      EXPECT_EQ(first_.ends(), 0) << "ended while the kernel still reads its memory";
                                      EXPECT_EQ(first_.released(), 0);
                                      fs_.release_writes();
                                    }});
  EXPECT_NE(probe, id);
  const auto written = first_.wait();
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().kind, ErrorKind::kTorn);
  EXPECT_EQ(first_.released(), 2);
}

TEST_F(FileWriterFault, DestructionEndsOpenFilesWithClosed) {
  auto writer = make_writer();
  const auto id = writer->begin(first_.spec());
  writer->write(id, first_.slab(0, kMiB));
  const auto untouched = writer->begin(other_.spec());
  EXPECT_NE(untouched, id);
  writer.reset();
  EXPECT_EQ(first_.wait().error().kind, ErrorKind::kClosed);
  EXPECT_EQ(other_.wait().error().kind, ErrorKind::kClosed);
  EXPECT_EQ(first_.released(), first_.lent());
  EXPECT_EQ(first_.ends(), 1);
}

TEST_F(FileWriterFault, SlabsThatDoNotFitTheFileAreABug) {
  const auto bad_end = [&](std::uint64_t offset, std::uint64_t size, int times) {
    TestFile file(dir_ / std::to_string(offset) + std::to_string(size), 2 * kMiB);
    const auto writer = make_writer();
    const auto id = writer->begin(file.spec());
    for (int i = 0; i < times; ++i) {
      SlabWrite slab = file.slab(0, 2 * kMiB);
      slab.offset = offset;
      slab.size_bytes = size;
      writer->write(id, std::move(slab));
    }
    return file.wait().error().kind;
  };
  EXPECT_EQ(bad_end(4096, kMiB, 1), ErrorKind::kInternal) << "not on a block";
  EXPECT_EQ(bad_end(2 * kMiB, 1, 1), ErrorKind::kInternal) << "past the end";
  EXPECT_EQ(bad_end(kMiB, 2 * kMiB, 1), ErrorKind::kInternal) << "over the end";
  EXPECT_EQ(bad_end(0, kMiB + 1, 1), ErrorKind::kInternal) << "a part of a block";
  EXPECT_EQ(bad_end(0, kMiB, 2), ErrorKind::kInternal) << "twice";

  const auto writer = make_writer();
  SlabWrite slab = first_.slab(4 * kMiB, kMiB);  // the last 100 bytes, which are written as 4096
  slab.memory = slab.memory.first(100);
  const auto id = writer->begin(first_.spec());
  writer->write(id, std::move(slab));
  writer->abandon(id, {ErrorKind::kTorn, "it was accepted", {}, 0, false});
  EXPECT_EQ(first_.wait().error().kind, ErrorKind::kInternal) << "not backed by memory up to the rounded size";
}

TEST_F(FileWriterFault, AQueueThatCannotBeMadeIsTheErrorOfCreate) {
  fs_.fail(FsCall::kMakeQueue, EMFILE);
  const auto writer = FileWriter::create(fs_, {}, log_.log());
  ASSERT_FALSE(writer.has_value());
  EXPECT_EQ(writer.error().sys_errno, EMFILE);
}

// A queue whose wait() fails: what it has taken is on its way, but nobody will ever hear of it.
class DeafQueue final : public IoQueue {
 public:
  explicit DeafQueue(std::unique_ptr<IoQueue> inner) : inner_(std::move(inner)) {}
  std::string_view backend() const override { return inner_->backend(); }
  unsigned depth() const override { return inner_->depth(); }
  unsigned in_flight() const override { return inner_->in_flight(); }
  Status register_buffer(int index, std::span<std::byte> memory) override {
    return inner_->register_buffer(index, memory);
  }
  Status submit(const IoRequest& request) override { return inner_->submit(request); }
  Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override {
    if (inner_->in_flight() == 0) return inner_->wait(completions, timeout);
    return fail(ErrorKind::kIo, "the ring is gone");
  }
  void wake() override { inner_->wake(); }

 private:
  std::unique_ptr<IoQueue> inner_;
};

// A queue whose writes end when and how the test says. What it says is well is written first.
class HandQueue final : public IoQueue {
 public:
  std::string_view backend() const override { return "hand"; }
  unsigned depth() const override { return 8; }
  unsigned in_flight() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<unsigned>(requests_.size() - taken_);
  }
  Status register_buffer(int, std::span<std::byte>) override { return fail(ErrorKind::kUnsupported, "none"); }
  Status submit(const IoRequest& request) override {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    changed_.notify_all();
    ended_.push_back(at_once_);
    if (at_once_) completions_.push_back({request.tag, write(request)});
    return {};
  }
  Status wait(std::vector<IoCompletion>& completions, std::optional<Duration> timeout) override {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return woken_ || !completions_.empty(); };
    if (!timeout) changed_.wait(lock, ready);
    woken_ = false;
    taken_ += completions_.size();
    std::ranges::move(completions_, std::back_inserter(completions));
    completions_.clear();
    changed_.notify_all();
    return {};
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }

  void complete_at_once() {
    const std::lock_guard lock(mutex_);
    at_once_ = true;
  }
  // However a test ends: nothing stays in flight, so that the writer can end too.
  void let_go() {
    const std::lock_guard lock(mutex_);
    at_once_ = true;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (!ended_[i]) completions_.push_back({requests_[i].tag, write(requests_[i])});
      ended_[i] = true;
    }
    changed_.notify_all();
  }
  void until_submitted(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return requests_.size() >= count; });
  }
  [[nodiscard]] std::size_t submitted() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }
  // Returns when the writer has taken the completion.
  void end_well(std::size_t request) { end(request, 0, 0); }
  void end_short(std::size_t request, std::uint64_t missing_bytes) { end(request, 0, missing_bytes); }
  void end_badly(std::size_t request, int sys_errno) { end(request, sys_errno, 0); }

 private:
  static Result<std::uint64_t> write(const IoRequest& request) {
    if (Status written = request.file->write_at({request.data, request.size_bytes}, request.offset); !written)
      return fail(written.error());
    return request.size_bytes;
  }
  void end(std::size_t number, int sys_errno, std::uint64_t missing_bytes) {
    std::unique_lock lock(mutex_);
    const IoRequest request = requests_.at(number);
    ended_.at(number) = true;
    Result<std::uint64_t> result = fail(error_from_errno(sys_errno, "ended by hand"));
    if (sys_errno == 0) result = write(request);
    if (result) *result -= missing_bytes;
    completions_.push_back({request.tag, std::move(result)});
    changed_.notify_all();
    changed_.wait(lock, [&] { return completions_.empty(); });
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<IoRequest> requests_;  // ever submitted; guarded by mutex_, as all below
  std::vector<bool> ended_;          // by request
  std::vector<IoCompletion> completions_;
  std::size_t taken_ = 0;  // completions that the writer has
  bool woken_ = false;
  bool at_once_ = false;
};

// The real file system, but without O_DIRECT at open, or with deaf queues, or with one that is worked by hand.
class BentFileSystem final : public FileSystem {
 public:
  explicit BentFileSystem(FileSystem& inner) : inner_(inner) {}
  bool refuse_direct = false;
  bool deaf_queues = false;
  HandQueue* hand = nullptr;  // of the writer, once it was made
  bool hand_queues = false;

  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override {
    return inner_.open(path, mode, direct && !refuse_direct);
  }
  Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override {
    if (hand_queues) {
      auto made = std::make_unique<HandQueue>();
      hand = made.get();
      return made;
    }
    auto queue = inner_.make_queue(options);
    if (!queue || !deaf_queues) return queue;
    return std::make_unique<DeafQueue>(std::move(*queue));
  }
  Status make_directory(const std::string& path) override { return inner_.make_directory(path); }
  Status sync_directory(const std::string& path) override { return inner_.sync_directory(path); }
  Status link(const std::string& from, const std::string& to) override { return inner_.link(from, to); }
  Status unlink(const std::string& path) override { return inner_.unlink(path); }
  Status remove_directory(const std::string& path) override { return inner_.remove_directory(path); }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override { return inner_.list(path); }
  Result<FileStatus> status(const std::string& path) override { return inner_.status(path); }
  Result<std::uint64_t> free_bytes(const std::string& path) override { return inner_.free_bytes(path); }
  Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override { return inner_.try_lock(path); }

 private:
  FileSystem& inner_;
};

TEST_F(FileWriterFault, DirectRefusedAtOpenIsReportedOnce) {
  BentFileSystem bent(*real_);
  bent.refuse_direct = true;
  auto writer = FileWriter::create(bent, {}, log_.log());
  ASSERT_TRUE(writer.has_value());
  for (TestFile* file : {&first_, &other_}) {
    file->write_all(**writer, (*writer)->begin(file->spec()), kMiB);
    auto written = file->wait();
    ASSERT_TRUE(written.has_value()) << written.error().to_string();
    file->expect_on_disk(*written);
  }
  EXPECT_FALSE((*writer)->direct());
  EXPECT_THAT(log_.messages(), ElementsAre(HasSubstr("refused O_DIRECT at open")));
}

class FileWriterByHand : public FileWriterFault {
 protected:
  FileWriterByHand() {
    bent_.hand_queues = true;
    auto made = FileWriter::create(bent_, {}, log_.log());
    EXPECT_TRUE(made.has_value());
    writer_ = std::move(*made);
  }

  ~FileWriterByHand() override {
    queue().let_go();
    writer_.reset();
  }

  // One slab of two requests, both under way.
  void begin_large() {
    writer_->write(writer_->begin(large_.spec()), large_.slab(0, 9 * kMiB));
    queue().until_submitted(2);
  }
  HandQueue& queue() { return *bent_.hand; }
  // Returns when the writer has gone round once: it has dealt with all it was told before, and begun what it may begin.
  void go_round() {
    for (int i = 0; i < 2; ++i) {
      std::promise<void> answered;
      const auto probe = writer_->begin({.path = dir_ / "missing/file",
                                         .size_bytes = 1,
                                         .direct = false,
                                         .on_progress = {},
                                         .on_written = [&](const Result<WrittenFile>&) { answered.set_value(); }});
      EXPECT_GT(probe, 0u);
      answered.get_future().get();
    }
  }

  TestFile large_{dir_ / "large", 9 * kMiB};
  BentFileSystem bent_{fs_};
  std::unique_ptr<FileWriter> writer_;
};

TEST_F(FileWriterByHand, DirectIsLeftOnlyWhenNoWriteIsInFlight) {
  begin_large();
  queue().end_badly(0, EINVAL);
  go_round();
  ASSERT_EQ(fs_.count(FsCall::kSetDirect), 0u) << "the descriptor changed under a write";
  ASSERT_EQ(queue().submitted(), 2u) << "a direct write was begun although they are refused";
  queue().end_badly(1, EINVAL);  // the second refusal must not be taken for one of a buffered write
  queue().until_submitted(4);
  EXPECT_EQ(fs_.count(FsCall::kSetDirect), 1u);
  queue().end_well(2);
  queue().end_well(3);
  auto written = large_.wait();
  ASSERT_TRUE(written.has_value()) << written.error().to_string();
  large_.expect_on_disk(*written);
}

TEST_F(FileWriterByHand, AShortWriteIsAnError) {
  begin_large();
  queue().end_short(0, 4096);
  queue().end_well(1);
  const auto written = large_.wait();
  ASSERT_FALSE(written.has_value());
  EXPECT_THAT(written.error().message, HasSubstr("only 8384512 of 8388608 bytes were written at 0"));
}

TEST_F(FileWriterByHand, TheFirstErrorIsReported) {
  begin_large();
  queue().end_badly(0, ENOSPC);
  go_round();
  EXPECT_EQ(large_.ends(), 0) << "ended while the kernel reads its memory";
  EXPECT_EQ(large_.released(), 0);
  queue().end_badly(1, EIO);
  EXPECT_EQ(large_.wait().error().kind, ErrorKind::kNoSpace);
  EXPECT_EQ(large_.released(), 1);
}

// A disk that is quicker than the checksums.
TEST_F(FileWriterByHand, ASlabIsGivenBackOnlyWhenItsChecksumsAreTaken) {
  queue().complete_at_once();
  std::vector<std::uint64_t> digests;
  for (std::uint64_t begin = 0; begin < 9 * kMiB; begin += kMiB) {
    digests.push_back(digest64(large_.memory().subspan(begin, kMiB)));
  }
  SlabWrite slab = large_.slab(0, 9 * kMiB);
  // As the next snapshot does with a slab that came free.
  slab.release = [memory = slab.memory] { std::ranges::fill(memory, std::byte{0xee}); };
  writer_->write(writer_->begin(large_.spec()), std::move(slab));
  const auto written = large_.wait();
  ASSERT_TRUE(written.has_value()) << written.error().to_string();
  EXPECT_EQ(written->block_digests, digests);
}

TEST_F(FileWriterFault, AQueueThatFailsEndsAllFilesAndReturnsTheirSlabs) {
  BentFileSystem bent(*real_);
  bent.deaf_queues = true;
  auto made = FileWriter::create(bent, {}, log_.log());
  ASSERT_TRUE(made.has_value());
  auto writer = std::move(*made);
  first_.write_all(*writer, writer->begin(first_.spec()), kMiB);
  EXPECT_EQ(first_.wait().error().message, "the ring is gone");
  other_.write_all(*writer, writer->begin(other_.spec()), kMiB);
  EXPECT_EQ(other_.wait().error().message, "the ring is gone") << "files begun later fail too";
  writer.reset();
  EXPECT_EQ(first_.released(), first_.lent());
  EXPECT_EQ(other_.released(), other_.lent());
  EXPECT_THAT(log_.messages(), ElementsAre(HasSubstr("the I/O queue failed")));
}

}  // namespace
}  // namespace slackwater
