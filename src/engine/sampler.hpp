// Sampler: queues the first samples of the torn-capture guard on each device, on a thread of its own (sw-sample).
// Planning may take long: the disk hangs, other ranks are late. If sw-plan took the samples, those of the next step
// would wait for that, and an update that ran meanwhile would go unnoticed. The step would be committed with the bytes
// of the one after it. Nor may the trainer's thread take them: with many tensors, the driver may make it wait.
// Owner: Planner. Thread rule: start() with InFlight's lock held; stop() from close(), before sw-plan is stopped, so
// that nobody else touches the job that is being sampled.
#pragma once

#include <stop_token>
#include <thread>

#include "engine/engine_shared.hpp"

namespace slackwater {

class Sampler {
 public:
  explicit Sampler(EngineShared& shared) : jobs_(shared.jobs) {}

  void start();  // idempotent; throws std::system_error, as start_thread() does
  void stop();   // jobs that are left are never sampled

 private:
  void loop(const std::stop_token& stop);
  [[nodiscard]] static Status sample(SaveJob& job);

  InFlight& jobs_;
  std::jthread thread_;  // started last
};

}  // namespace slackwater
