// ComputeEngine: runs kernels, and copies inside a device, as timed work. Any number of streams run at the same time.
// The effects of kernels on memory happen on one thread, in the order in which the kernels end.
// Thread rule: everything but run() is called with Simulator::mutex held. Lifetime: owned by its Device.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "sim/work.hpp"

namespace slackwater::sim {

class Simulator;

class ComputeEngine {
 public:
  ComputeEngine(Simulator& simulator, Device& device) : simulator_(simulator), device_(device) {}

  void add(OpPtr op);
  void wake() { changed_.notify_all(); }
  void run();  // body of its thread; ends when the simulator stops

 private:
  struct Running {
    TimePoint ends_at;
    OpPtr op;
  };
  static bool ends_later(const Running& a, const Running& b);
  void start(std::unique_lock<std::mutex>& lock);
  void end_first(std::unique_lock<std::mutex>& lock);

  Simulator& simulator_;
  Device& device_;
  std::condition_variable changed_;
  std::deque<OpPtr> ready_;
  std::vector<Running> running_;  // a heap with the first to end in front
};

}  // namespace slackwater::sim
