#include "engine/pipeline.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/result.hpp"
#include "stage/window_copy.hpp"

namespace slackwater {
namespace {

constexpr unsigned kMaxAutoCopyThreads = 2;

unsigned copy_threads(const Options& options) {
  if (options.copy_threads != 0) return options.copy_threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxAutoCopyThreads);
}

}  // namespace

void Pipeline::Registrar::slab_ready(int index, std::span<std::byte> memory) {
  std::lock_guard lock(mutex);
  if (writer != nullptr) writer->register_buffer(index, memory);
  ready.push_back(memory);
  if (devices != nullptr && devices->cuda_in_use()) pin_ready();
}

void Pipeline::Registrar::pin_ready() {
  for (std::size_t i = pinned.size(); i < ready.size() && !trouble; ++i) {
    if (auto status = devices->pin(ready[i], ready[i].size()); !status) {
      trouble = std::move(status).error();
    } else {
      pinned.push_back(ready[i]);
    }
  }
}

Result<std::unique_ptr<Pipeline>> Pipeline::create(FileSystem& fs, Devices& devices, const Options& options,
                                                   std::uint32_t slab_count, Log log) {
  std::unique_ptr<Pipeline> pipeline(new Pipeline);
  pipeline->direct_io_ = options.direct_io;
  SW_ASSIGN(pipeline->writer_, StreamWriter::create(fs,
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
  pipeline->log_ = log;
  SW_ASSIGN(pipeline->pool_, Pool::create(
                                 options.slab_bytes, slab_count,
                                 [registrar = pipeline->registrar_](int index, std::span<std::byte> memory) {
                                   registrar->slab_ready(index, memory);
                                 },
                                 devices.numa_node()));
  pipeline->stager_ = std::make_unique<Stager>(
      *pipeline->pool_, StagerOptions{.copy_threads = copy_threads(options), .stall_timeout = options.stall_timeout});
  return pipeline;
}

Pipeline::~Pipeline() { stop(); }

void Pipeline::stop() {
  // The stager stays, without threads: streams that the writer ends below still tell it to cancel their copies.
  if (stager_) stager_->stop();
  if (registrar_) {
    std::lock_guard lock(registrar_->mutex);
    registrar_->writer = nullptr;
    for (const auto slab : registrar_->pinned) registrar_->devices->unpin(slab);
    registrar_->pinned.clear();
    registrar_->devices = nullptr;
  }
  writer_.reset();  // gives its slabs back
}

// The copies' road from each device: pinned slabs first, without which the driver copies slowly and makes its callers wait.
Status Pipeline::begin_passages(const Capture& captured, StageJob& job) {
  if (captured.devices.empty()) return {};
  {
    std::lock_guard lock(registrar_->mutex);
    registrar_->pin_ready();
    if (registrar_->trouble && !std::exchange(told_pin_trouble_, true)) {
      log_->warn("the pool could not be registered with CUDA, so copies from the device are slow: {}",
                 registrar_->trouble->to_string());
    }
  }
  for (const DeviceCapture& part : captured.devices) {
    std::vector<const StridedMemory*> guarded;
    if (!captured.whole_fingerprint) {
      for (const std::uint32_t i : part.guarded) guarded.push_back(&job.sources[i].memory);
    }
    SW_ASSIGN(auto passage, part.device->begin(part.produced, guarded, captured.seed));
    job.passages.push_back({part.device, std::move(passage)});
  }
  return {};
}

Status Pipeline::launch(const std::shared_ptr<Voyage>& voyage, std::function<void()> on_arrived,
                        std::function<bool()> make_room) {
  const auto& parts = voyage->layout->parts;
  auto job = std::make_shared<StageJob>();
  job->sources = std::move(voyage->captured.sources);
  SW_TRY(begin_passages(voyage->captured, *job));
  voyage->under_way = static_cast<std::uint32_t>(parts.size()) + 2;
  voyage->written.resize(parts.size());
  voyage->job = job;

  for (std::uint32_t part = 0; part < parts.size(); ++part) {
    // A stream that fails takes the copies with it, and they the other streams: the whole snapshot fails once.
    voyage->streams.push_back(writer_->begin(StreamSpec{
        .path = voyage->directory + "/" + parts[part].file_name(),
        .size_bytes = parts[part].size_bytes(),
        .direct = direct_io_,
        .make_room = make_room,
        .on_progress =
            [snapshot = voyage->snapshot, counted = std::uint64_t{0}](std::uint64_t bytes) mutable {
              snapshot->add_written(bytes - counted);
              counted = bytes;
            },
        .on_written =
            [this, voyage, part, on_arrived](Result<WrittenStream> result) {
              if (result) {
                std::lock_guard lock(voyage->mutex);
                voyage->written[part] = std::move(*result);
              } else {
                voyage->snapshot->fail(result.error());
                stager_->cancel(voyage->job, result.error());
              }
              voyage->end_one(on_arrived);
            },
    }));
  }

  job->layout = voyage->layout;
  job->names.reserve(voyage->state.tensors.size());
  for (const Tensor& tensor : voyage->state.tensors) job->names.push_back(tensor.name);
  job->tree = std::move(voyage->state.tree);
  job->seed = voyage->captured.seed;
  job->whole_fingerprint = voyage->captured.whole_fingerprint;
  // `voyage` is captured weakly where the job itself would otherwise keep the voyage, and the voyage the job, alive for ever.
  job->on_slab = [this, snapshot = voyage->snapshot, streams = voyage->streams](FullSlab slab) {
    snapshot->add_staged(slab.size_bytes);
    const std::span<std::byte> memory = slab.lease.memory();
    const int buffer = slab.lease.index();
    writer_->write(streams[slab.part],
                   SlabWrite{.memory = memory,
                             .buffer = buffer,
                             .offset = slab.offset,
                             .size_bytes = slab.size_bytes,
                             .release = [lease = std::move(slab.lease)]() mutable { lease.release(); }});
  };
  job->on_queued = [snapshot = voyage->snapshot](std::vector<DevicePoint> points) {
    snapshot->reach_fenced(std::move(points));
  };
  job->on_done = [this, weak = std::weak_ptr(voyage), on_arrived](Status status) {
    const auto self = weak.lock();
    if (!self) return;  // cannot happen: the engine holds every voyage until it arrived
    if (status) {
      self->snapshot->reach(Level::kStaged);
    } else {
      if (status.error().kind == ErrorKind::kTorn)
        self->snapshot->fail_torn(changed_tensors(*self->job, status.error().path));
      self->snapshot->fail(status.error());
      for (const auto stream : self->streams) writer_->abandon(stream, status.error());
    }
    self->captured.devices.clear();  // copies out of the duplicates are over
    self->state.owner.reset();
    self->snapshot->release_sources();
    self->end_one(on_arrived);
  };
  stager_->enqueue(std::move(job));
  return {};
}

void Pipeline::cancel(Voyage& voyage, const Error& error) { stager_->cancel(voyage.job, error); }

}  // namespace slackwater
