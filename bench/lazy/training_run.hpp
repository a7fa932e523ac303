// One training run of `slackwater_bench lazy`, and the probe for threads that spin.
// Thread rule: one thread. Lifetime: the GPU outlives it; the directory of its own is removed by the destructor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "bench/lazy/paper.hpp"
#include "bench/lazy/strategy.hpp"
#include "slackwater/error.hpp"

namespace slackwater::bench {

struct RunSpec {
  const PaperModel* model = nullptr;
  Scale scale;
  Way way = Way::kNone;
  unsigned iterations = 5;
  unsigned every = 1;                   // a checkpoint every so many iterations, the first included
  double flush_bytes_per_s = 0;         // of the paper's size; 0: as fast as the disk
  double pool_bytes = kPaperPoolBytes;  // of the paper's size
  std::uint64_t keep = 0;
};

// Measured seconds, not scaled back.
struct RunResult {
  std::uint64_t state_bytes = 0;
  std::vector<double> blocked_s;  // by checkpoint: inside save(), plus the time the update began late
  std::vector<double> calls_s;    // by checkpoint: inside save() and fence()
  std::vector<double> cpu_s;      // of that, CPU time of the trainer's thread
  double train_s = 0;             // until the last update was done
  double complete_s = 0;          // until the last checkpoint was complete as well
  double late_s = 0;              // by how much the simulated GPU was behind its own clock, over all iterations
  std::uint64_t compared = 0;     // checkpoints read back and found right
  EngineFacts engine;
};

struct SpinProbe {
  double waited_s = 0;               // with a snapshot whose copies cannot go on, and a thread at its fence
  double cpu_s = 0;                  // of the whole process meanwhile
  std::uint64_t spinning_waits = 0;  // that the simulated driver counted since it was loaded
};

class Runner {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Runner>> create(const SimulatedGpu& gpu, const std::string& parent);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  [[nodiscard]] const std::string& directory() const { return directory_; }
  // One checkpoint that is not counted, then the iterations. kCorrupt if a checkpoint read back has a wrong byte.
  [[nodiscard]] Result<RunResult> run(const RunSpec& spec);
  [[nodiscard]] Result<SpinProbe> probe_spinning(const Scale& scale);

 private:
  Runner(const SimulatedGpu& gpu, std::string directory) : gpu_(gpu), directory_(std::move(directory)) {}
  [[nodiscard]] Result<std::string> fresh_directory();
  [[nodiscard]] Status train(const RunSpec& spec, Trainer& trainer, Strategy& strategy, RunResult& result) const;

  const SimulatedGpu& gpu_;
  const std::string directory_;
  UniqueFd descriptor_;  // of the directory
  unsigned runs_ = 0;
};

}  // namespace slackwater::bench
