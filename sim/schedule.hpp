// Schedule: the order of work. Streams, waits and the rules of the legacy default stream become edges between ops.
// Owner: Simulator. Thread rule: guarded by Simulator::mutex; wait() and a full queue give it up meanwhile.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/call.hpp"
#include "sim/device.hpp"
#include "sim/graph.hpp"
#include "sim/work.hpp"

namespace slackwater::sim {

class Simulator;

// Work to be queued on a stream.
struct Task {
  EngineKind engine = EngineKind::kNone;
  std::shared_ptr<Work> work;
  std::vector<std::shared_ptr<const void>> held{};  // memory that must stay until it is done
  Duration duration{0};
  std::uint64_t copy_bytes = 0;
  bool pageable = false;
};

class Schedule {
 public:
  explicit Schedule(Simulator& simulator) : simulator_(simulator) {}

  // Queues tasks after everything on the stream, without order among themselves. No task: queues a marker. `queued`
  // gets the op that stands for all of them, or null if a capture recorded them. Gives up the lock while the stream's
  // queue is full.
  [[nodiscard]] CUresult enqueue(Call& call, const StreamPtr& stream, std::vector<Task> tasks, OpPtr* queued = nullptr,
                                 OpPtr also_after = nullptr);
  // Queues every node of a graph after everything on the stream and after the graph's last launch.
  [[nodiscard]] CUresult enqueue_graph(Call& call, const StreamPtr& stream, GraphExec& graph);
  void complete(const OpPtr& op, TimePoint at);
  // The calling thread sleeps. `spins` says that it would spin with a real device.
  void wait(Call& call, const OpPtr& op, bool spins);
  void wait_for_device(Call& call, Device& device);
  void notify_progress() { progress_.notify_all(); }
  [[nodiscard]] bool idle(const Stream& stream) const;
  // Whether a host thread that asks is told that it is done. Null counts as done.
  [[nodiscard]] static bool seen_done(const OpPtr& op);

 private:
  // Checks that the stream takes work, and waits for room.
  [[nodiscard]] CUresult make_room(Call& call, const StreamPtr& stream);
  [[nodiscard]] std::vector<OpPtr> last_before(const Stream& stream) const;  // what the next op of the stream waits for
  void wait_for_room(Call& call, const Stream& stream);
  void link(const OpPtr& before, const OpPtr& after);
  void launch(const OpPtr& op);
  // With `uncounted`, the op takes no place in the stream's queue.
  [[nodiscard]] OpPtr new_op(const Stream& stream, Task task, bool uncounted = false);

  Simulator& simulator_;
  std::condition_variable progress_;  // a watched op is done
  std::uint64_t next_sequence_ = 0;
};

}  // namespace slackwater::sim
