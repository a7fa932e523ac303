// Options: everything Engine::open() can be told. Plain values, copied at open.
// The table behind set_option() is the one place an option is documented; `--help`, docs and the Python
// signature are made from it or tested against it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "slackwater/error.hpp"

namespace slackwater {

class KeyValueStore;  // slackwater/key_value_store.hpp

enum class LogLevel : std::uint8_t { kInfo, kWarning, kError };
// May be called from any engine thread; must not block, must not throw, must not call the engine.
using LogSink = std::function<void(LogLevel, std::string_view)>;

enum class OnBusy : std::uint8_t { kWait, kSkip };
enum class OnDamage : std::uint8_t { kFallback, kRaise };
enum class IoBackend : std::uint8_t { kAuto, kUring, kThreads };

inline constexpr std::uint32_t kMaxWorld = 65'536;

// The best checkpoints by a metric (State::metrics), kept besides the newest.
struct KeepBest {
  std::string metric;       // its name; empty: none are kept for being good
  std::uint64_t count = 0;  // how many
  bool highest = false;     // which are best: those with the highest value, or those with the lowest
};

struct Options {
  std::string path;                       // directory of tier 0; made if its parent exists
  std::uint64_t pool_bytes = 0;           // 0: auto, min(state, 1/4 of available memory / local ranks)
  std::uint64_t slab_bytes = 8u << 20;    // a multiple of 1 MiB
  unsigned copy_threads = 0;              // 0: auto
  unsigned queue_depth = 0;               // writes in flight; 0: auto
  unsigned in_flight = 2;                 // snapshots on their way at once
  OnBusy on_busy = OnBusy::kWait;
  OnDamage on_damage = OnDamage::kFallback;
  std::uint64_t keep = 2;                 // newest checkpoints kept; 0 keeps all
  std::uint64_t keep_every = 0;           // also keep steps divisible by this; 0: none
  KeepBest keep_best;                     // also keep the best ones by a metric
  bool paranoid = false;                  // hash every byte at save() and again after the copy
  IoBackend io_backend = IoBackend::kAuto;
  bool direct_io = true;                  // O_DIRECT where the file system takes it
  std::chrono::milliseconds stall_timeout{60'000};
  std::string cuda_driver = "libcuda.so.1";  // loaded when the first CUDA tensor is seen
  std::uint32_t rank = 0;                 // of this process, among
  std::uint32_t world = 1;                // so many that save together into the same directory; at most 65536
  std::uint32_t local_ranks = 1;          // so many of them on this machine share its memory
  std::chrono::milliseconds commit_timeout{60'000};  // ranks wait so long for each other
  std::uint32_t fan_in = 64;              // ranks in a group, which reports as one; groups form groups, up to rank 0
  std::shared_ptr<KeyValueStore> store;   // how the ranks talk; null: through files in the directory they share
  std::string run_name;                   // free text, kept in the attempt file
  LogSink log;                            // empty: warnings and errors go to stderr
};

struct OptionInfo {
  std::string_view name;
  std::string_view type;           // "bytes", "count", "flag", "seconds", "text", "choice"
  std::string_view default_value;  // as set_option() takes it
  std::string_view choices;        // "wait|skip", empty for other types
  std::string_view help;           // one sentence
};

[[nodiscard]] std::span<const OptionInfo> option_table();
// Sets one option from text ("512MiB", "0.5", "true"); kInvalidArgument names the option and what it takes.
[[nodiscard]] Status set_option(Options& options, std::string_view name, std::string_view value);

}  // namespace slackwater
