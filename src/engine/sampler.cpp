#include "engine/sampler.hpp"

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/thread.hpp"

namespace slackwater {

void Sampler::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread("sw-sample", [this](const std::stop_token& stop) { loop(stop); });
}

void Sampler::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Sampler::loop(const std::stop_token& stop) {
  while (const std::shared_ptr<SaveJob> job = jobs_.next_to_sample(stop)) {
    Status sampled;
    try {
      sampled = sample(*job);
    } catch (const std::exception& trouble) {  // no memory: this snapshot is lost, training is not
      sampled = fail(ErrorKind::kOutOfMemory,
                     fmt::format("step {} could not be sampled: {}", job->snapshot->step(), trouble.what()));
    }
    if (!sampled) job->snapshot->fail(sampled.error());
    jobs_.mark_sampled(*job);
  }
}

Status Sampler::sample(SaveJob& job) {
  {
    const std::lock_guard lock(job.mutex);
    if (job.given_up) return {};  // its sources were released
  }
  for (const DeviceCapture& part : job.captured.devices) {
    std::vector<const StridedMemory*> guarded;
    if (!job.captured.whole_fingerprint) {  // save() has already read every byte of those
      for (const std::uint32_t i : part.guarded) guarded.push_back(&job.captured.sources[i].memory);
    }
    SW_ASSIGN(auto copies, part.device->begin(part.produced, guarded, job.captured.seed));
    job.device_copies.push_back(
        {part.device, std::move(copies), part.early == nullptr ? nullptr : part.early->filled()});
  }
  return {};
}

}  // namespace slackwater
