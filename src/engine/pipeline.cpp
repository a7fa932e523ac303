#include "engine/pipeline.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/result.hpp"
#include "stage/chunk_copier.hpp"

namespace slackwater {
namespace {

constexpr unsigned kMaxAutoCopyThreads = 2;
constexpr unsigned kMaxAutoTouchThreads = 4;
// While memory is registered, other calls of the driver wait, the trainer's too. So a registration is followed by a
// pause of so many times its length, unless training waits for the slab.
constexpr int kPinPauses = 3;

unsigned copy_threads(const Options& options) {
  if (options.copy_threads != 0) return options.copy_threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxAutoCopyThreads);
}

// They run once, while the trainer has something else to do, so they may use more cores than the copies.
unsigned touch_threads(const Options& options) {
  if (options.copy_threads != 0) return options.copy_threads;
  return std::clamp(std::thread::hardware_concurrency() / options.local_ranks, 1u, kMaxAutoTouchThreads);
}

}  // namespace

void Pipeline::Registrar::slab_ready(int index, std::span<std::byte> memory) {
  const std::lock_guard lock(mutex);
  if (writer != nullptr) writer->register_buffer(index, memory);
  last_took = {};
  if (devices != nullptr && devices->cuda_in_use()) pin(index, memory);
}

void Pipeline::Registrar::pin(int index, std::span<std::byte> memory) {
  auto& known = pinned[static_cast<std::size_t>(index)];
  if (devices == nullptr || refused || !known.empty()) return;
  const auto began = std::chrono::steady_clock::now();
  if (const Status status = devices->pin(memory, memory.size()); status) {
    known = memory;
  } else {
    // With slabs that are not pinned, the driver copies slowly and blocks its caller.
    refused = true;
    log->warn("the pool could not be registered with CUDA, so copies from the device are slow: {}",
              status.error().to_string());
  }
  last_took = std::chrono::steady_clock::now() - began;
}

bool Pipeline::Registrar::needs_pin(int index) {
  const std::lock_guard lock(mutex);
  return !refused && pinned[static_cast<std::size_t>(index)].empty();
}

void Pipeline::Registrar::pin_now(int index, std::span<std::byte> memory) {
  const std::lock_guard lock(mutex);
  pin(index, memory);
}

std::chrono::nanoseconds Pipeline::Registrar::pause() {
  const std::lock_guard lock(mutex);
  return kPinPauses * last_took;
}

Result<std::unique_ptr<Pipeline>> Pipeline::create(FileSystem& fs, Devices& devices, const Options& options,
                                                   std::uint32_t slab_count, int numa_node, Log log,
                                                   std::shared_ptr<KeptSlabs> kept) {
  std::unique_ptr<Pipeline> pipeline(new Pipeline);
  pipeline->numa_node_ = numa_node;
  pipeline->direct_io_ = options.direct_io;
  SW_ASSIGN(pipeline->writer_, FileWriter::create(fs,
                                                  {.queue_depth = options.queue_depth,
                                                   .force_threads = options.io_backend == IoBackend::kThreads,
                                                   .buffer_slots = slab_count},
                                                  log));
  if (options.io_backend == IoBackend::kUring && pipeline->writer_->backend() != "io_uring") {
    return fail(
        ErrorKind::kUnsupported,
        "io_backend is set to uring, but io_uring is not permitted here; set it to auto to use worker threads instead");
  }
  pipeline->registrar_ = std::make_shared<Registrar>();
  pipeline->registrar_->writer = pipeline->writer_.get();
  pipeline->registrar_->devices = &devices;
  pipeline->registrar_->log = log;
  pipeline->registrar_->pinned.resize(slab_count);
  std::optional<PoolMemory> given;
  if (kept) {
    given = PoolMemory{.bytes = kept->region()->slabs(),
                       .owner = kept->region(),
                       .reserved = kept->reserved(),
                       .on_starved = [slabs = kept.get()] { slabs->make_room(); }};
  }
  SW_ASSIGN(pipeline->pool_,
            Pool::create(
                options.slab_bytes, slab_count,
                [registrar = pipeline->registrar_](int index, std::span<std::byte> memory) {
                  registrar->slab_ready(index, memory);
                },
                numa_node,
                TouchOptions{.threads = touch_threads(options),
                             .log = log,
                             .pause = [registrar = pipeline->registrar_] { return registrar->pause(); }},
                std::move(given)));
  if (kept) {
    kept->attach(*pipeline->pool_);
    pipeline->kept_ = std::move(kept);
  }
  pipeline->stager_ = std::make_unique<Stager>(
      *pipeline->pool_,
      StagerOptions{.copy_threads = copy_threads(options),
                    .copies_ahead_bytes = options.copies_ahead_bytes,
                    .copies_ahead_operations = options.copies_ahead_operations,
                    .stall_timeout = options.stall_timeout,
                    .needs_pin = [registrar = pipeline->registrar_](int slab) { return registrar->needs_pin(slab); },
                    .pin = [registrar = pipeline->registrar_](
                               int slab, std::span<std::byte> memory) { registrar->pin_now(slab, memory); },
                    .pin_pauses = kPinPauses});
  return pipeline;
}

Pipeline::~Pipeline() { stop(); }

void Pipeline::stop() {
  // The stager stays, without threads: files that the writer ends below still tell it to cancel their copies.
  if (stager_) stager_->stop();
  if (registrar_) {
    std::lock_guard lock(registrar_->mutex);
    registrar_->writer = nullptr;
    for (auto& slab : registrar_->pinned)
      if (!slab.empty()) registrar_->devices->unpin(std::exchange(slab, {}));
    registrar_->devices = nullptr;
  }
  writer_.reset();  // gives its slabs back
  if (kept_) kept_->detach();
}

void Pipeline::launch(const std::shared_ptr<SaveJob>& job, std::function<void()> on_drained,
                      std::function<bool()> make_room) {
  const auto& parts = job->layout->parts;
  auto stage_job = std::make_shared<StageJob>();
  // Moved, not copied: the device copies point to the sources.
  stage_job->sources = std::move(job->captured.sources);
  stage_job->device_copies = std::move(job->device_copies);
  job->under_way = static_cast<std::uint32_t>(parts.size()) + 2;
  job->written.resize(parts.size());
  job->stage_job = stage_job;
  // A part belongs to another directory, whose keeper this is not.
  if (kept_ && !job->state.part) job->kept = kept_->begin(job->name, *job->layout, job->snapshot);

  for (std::uint32_t part = 0; part < parts.size(); ++part) {
    // A file that fails cancels the copies, and they abandon the other files. So the whole snapshot fails once.
    job->files.push_back(writer_->begin(FileSpec{
        .path = job->directory + "/" + parts[part].file_name(),
        .size_bytes = parts[part].size_bytes(),
        .direct = direct_io_,
        .make_room = make_room,
        .on_progress =
            [snapshot = job->snapshot, counted = std::uint64_t{0}](std::uint64_t bytes) mutable {
              snapshot->add_written(bytes - counted);
              counted = bytes;
            },
        .on_hashed =
            [kept = job->kept, part](const std::vector<std::uint64_t>& digests) {
              if (kept) kept->set_digests(part, digests);
            },
        .on_written =
            [this, job, part, on_drained](Result<WrittenFile> result) {
              if (!result && job->kept) job->kept->fail();
              if (result) {
                std::lock_guard lock(job->mutex);
                job->written[part] = std::move(*result);
              } else {
                job->snapshot->fail(result.error());
                stager_->cancel(job->stage_job, result.error());
              }
              job->finish_operation(on_drained);
            },
    }));
  }

  stage_job->layout = job->layout;
  stage_job->names.reserve(job->state.tensors.size());
  for (const Tensor& tensor : job->state.tensors) stage_job->names.push_back(tensor.name);
  stage_job->tree = std::move(job->state.tree);
  stage_job->seed = job->captured.seed;
  stage_job->whole_fingerprint = job->captured.whole_fingerprint;
  // The stage job's callbacks hold the snapshot, or the save job weakly. The save job owns the stage job, so a strong
  // reference would keep both alive for ever.
  stage_job->on_slab = [this, snapshot = job->snapshot, files = job->files, kept = job->kept](FullSlab slab) {
    snapshot->add_staged(slab.size_bytes);
    const std::span<std::byte> memory = slab.lease.memory();
    const int buffer = slab.lease.index();
    if (kept) {
      kept->add_slab(slab.part, slab.offset / pool_->slab_bytes(), buffer);
    } else if (kept_) {
      kept_->begin_unkept_write();
    }
    writer_->write(files[slab.part], SlabWrite{.memory = memory,
                                               .buffer = buffer,
                                               .offset = slab.offset,
                                               .size_bytes = slab.size_bytes,
                                               .release = [this, kept, lease = std::move(slab.lease)]() mutable {
                                                 if (kept) return kept->return_lease(std::move(lease));
                                                 if (kept_) return kept_->end_unkept_write(std::move(lease));
                                                 lease.release();
                                               }});
  };
  stage_job->on_queued = [snapshot = job->snapshot](std::vector<DevicePoint> points) {
    snapshot->reach(Level::kFenced, std::move(points));
  };
  stage_job->on_done = [this, weak = std::weak_ptr(job), on_drained](Status status) {
    const auto self = weak.lock();
    if (!self) return;  // cannot happen: InFlight holds every save job until it is drained
    if (status && self->kept) {
      // Not staged yet: with a memory tier, that means that the bytes survive this process. sw-memory says when.
      self->snapshot->reach(Level::kFenced);
      self->kept->set_staged();
    } else if (status) {
      self->snapshot->reach(Level::kStaged);
    } else {
      if (self->kept) self->kept->fail();
      if (status.error().kind == ErrorKind::kTorn)
        self->snapshot->fail_torn(changed_tensors(*self->stage_job, status.error().tensor));
      self->snapshot->fail(status.error());
      for (const auto file : self->files) writer_->abandon(file, status.error());
    }
    self->captured.devices.clear();  // the early copies have been read
    self->state.owner.reset();
    self->snapshot->release_sources();
    self->finish_operation(on_drained);
  };
  // The hook is removed when the snapshot's hooks retire, which is before the stager goes.
  const bool on_device = !job->captured.devices.empty();  // on_done clears them
  stager_->enqueue(stage_job);
  if (on_device) {
    job->snapshot->hooks().set_queue_all([stager = stager_.get(), weak = std::weak_ptr(stage_job)] {
      if (const auto self = weak.lock()) stager->queue_all(self);
    });
  }
}

void Pipeline::give_up(SaveJob& job, const Error& error) {
  {
    std::lock_guard lock(job.mutex);
    if (job.launched == nullptr) {
      job.given_up = true;
      job.snapshot->fail(error);
      job.snapshot->release_sources();
      return;
    }
  }
  job.launched->stager_->cancel(job.stage_job, error);
}

EngineStats PipelineSlot::stats() const {
  if (!pipeline || stopped) return last_stats;
  EngineStats stats;
  stats.pool_bytes = pipeline->pool_bytes();
  stats.pool_numa_node = pipeline->numa_node();
  stats.bytes_written = pipeline->writer().bytes_written();
  stats.io_backend = pipeline->writer().backend();
  stats.direct_io = pipeline->direct_io() && pipeline->writer().direct();
  stats.registered_buffers = pipeline->writer().registered_buffers();
  return stats;
}

bool PipelineSlot::busy_touching() const {
  return skips_steps && pipeline && !stopped && pipeline->pool().touched_count() < pipeline->pool().slab_count();
}

std::shared_ptr<Pipeline> PipelineSlot::idle() const {
  return pipeline && !stopped && pipeline->pool().free_count() > 0 ? pipeline : nullptr;
}

}  // namespace slackwater
