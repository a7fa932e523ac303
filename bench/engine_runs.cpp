#include "engine_runs.hpp"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/units.hpp"

namespace slackwater::bench {

namespace {

Status remove_file(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) return fail(error_from_errno(error.value(), "cannot delete a file of the benchmark", path));
  return {};
}

}  // namespace

Result<RepeatedSave> RepeatedSave::create(const Options& options, const HostState& state) {
  SW_ASSIGN(Engine engine, Engine::open(options));
  return RepeatedSave(std::make_unique<Engine>(std::move(engine)), options.path, state);
}

Result<SaveRun> RepeatedSave::run() {
  State state = state_->state();
  SaveRun run;
  const double cpu_before = process_cpu_seconds();
  const Stopwatch watch;
  SW_ASSIGN(std::optional<Snapshot> snapshot, engine_->save(++step_, std::move(state)));
  if (!snapshot) return fail(ErrorKind::kInternal, "a save was skipped although the engine waits when it is busy");
  run.save = watch.seconds();
  SW_TRY(snapshot->wait(Level::kStaged));
  run.staged = watch.seconds();
  SW_TRY(snapshot->wait(Level::kDurable));
  run.durable = watch.seconds();
  SW_TRY(snapshot->wait(Level::kCommitted));
  run.committed = watch.seconds();
  run.cpu = process_cpu_seconds() - cpu_before;
  if (step_ > 1) SW_TRY(engine_->remove(step_ - 1));
  return run;
}

Result<std::string> RepeatedSave::newest_file() const {
  SW_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(directory_));
  return fmt::format("{}/{}/{}", directory_, checkpoint.version().directory, checkpoint.files().front().name);
}

Status RepeatedSave::verify() const {
  SW_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory_));
  SW_ASSIGN(const VerifyReport report, checkpoint.verify());
  if (!report.damages.empty())
    return fail(ErrorKind::kCorrupt, "the benchmark's checkpoint does not verify: " + report.damages.front().what,
                directory_);
  return {};
}

Result<ReferenceFile> ReferenceFile::load(const Settings& settings, const std::string& path, std::uint64_t pool_bytes) {
  std::error_code error;
  const std::uint64_t size_bytes = std::filesystem::file_size(path, error);
  if (error) return fail(error_from_errno(error.value(), "cannot find the file the engine wrote", path));
  const RawOptions options{
      .depth = static_cast<unsigned>(std::min<std::uint64_t>(settings.queue_depth, pool_bytes / settings.slab_bytes)),
      .request_bytes = settings.slab_bytes};
  SW_ASSIGN(HostMemory image, HostMemory::create(round_up(size_bytes, 4096), Pages::kHuge));
  image.fill_zero();
  SW_ASSIGN(RawIo io, RawIo::create(image.bytes(), options));
  SW_TRY(io.read_file(path, size_bytes));
  return ReferenceFile(settings.directory, std::move(image), std::move(io), size_bytes, options);
}

Result<double> ReferenceFile::write() {
  const auto path = [&](std::uint64_t number) { return fmt::format("{}/reference-{}", directory_, number); };
  SW_ASSIGN(const double seconds, io_.write_file(path(++written_), size_bytes_));
  if (written_ > 1) SW_TRY(remove_file(path(written_ - 1)));
  return seconds;
}

Json ReferenceFile::describe() const {
  return {{"depth", options_.depth},
          {"request_bytes", options_.request_bytes},
          {"registered_buffers", io_.registered()},
          {"file_bytes", size_bytes_}};
}

}  // namespace slackwater::bench
