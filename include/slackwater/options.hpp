// Options: everything that Engine::open() can be told. Plain values, copied at open.
// The table behind set_option() is the one place where options are documented. `--help`, docs and the Python signature
// are generated from it or tested against it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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

// Keeps the best checkpoints by a metric (State::metrics), in addition to the newest.
struct KeepBest {
  std::string metric;       // name; empty: off
  std::uint64_t count = 0;  // how many
  bool highest = false;     // whether the highest values are best, or the lowest
};

// How to reach an object store, beyond s3://bucket/prefix. What is empty comes from the environment, and then from the
// profile files of the AWS command line (docs/s3.md).
struct S3Options {
  std::string endpoint;     // "https://minio.example:9000"; empty: Amazon's
  std::string region;       // empty: AWS_REGION, then the profile's, then us-east-1
  std::string profile;      // of ~/.aws/credentials; empty: credentials of the environment, then AWS_PROFILE
  bool path_style = false;  // https://host/bucket/key instead of https://bucket.host/key
};

// A slower place that committed versions are copied to in the background. All nodes share it.
struct TierOptions {
  std::string location;               // a directory, or s3://bucket/prefix
  std::uint64_t every = 1;            // steps divisible by this are copied here
  std::uint64_t keep = 2;             // how many of the newest checkpoints to keep on this tier; 0: all
  std::uint64_t keep_every = 0;       // also keep steps divisible by this; 0: none
  std::uint64_t bandwidth_bytes = 0;  // per second, by each rank; 0: no limit
  std::uint64_t backlog = 4;          // versions that may wait for this tier; older ones are skipped and counted
  S3Options s3;                       // if the location is in an object store
  bool node_local = false;            // only for a first tier that takes the place of Options::path
};

struct Options {
  // Directory of tier 0; created if its parent exists. Empty: the first of `tiers` takes its place; without tiers, the
  // engine saves parts only.
  std::string path;
  std::uint64_t pool_bytes = 0;         // 0: automatic, min(state, 1/4 of available memory / local ranks)
  std::uint64_t slab_bytes = 8u << 20;  // a multiple of 1 MiB
  unsigned copy_threads = 0;            // 0: automatic
  unsigned queue_depth = 0;             // writes in flight; 0: automatic
  unsigned in_flight = 2;               // unfinished snapshots at a time
  OnBusy on_busy = OnBusy::kWait;
  OnDamage on_damage = OnDamage::kFallback;
  std::uint64_t keep = 2;        // how many of the newest checkpoints to keep; 0: all
  std::uint64_t keep_every = 0;  // also keep steps divisible by this; 0: none
  KeepBest keep_best;            // also keep the best by a metric
  bool paranoid = false;         // hash every byte at save() and again after the copy
  IoBackend io_backend = IoBackend::kAuto;
  bool direct_io = true;  // O_DIRECT if the file system supports it
  std::chrono::milliseconds stall_timeout{60'000};
  std::string cuda_driver = "libcuda.so.1";          // loaded when the first CUDA tensor is seen
  std::uint64_t copies_ahead_bytes = 64u << 20;      // outstanding on each device before the fence; 0: no limit
  std::uint64_t copies_ahead_operations = 256;       // the same, in calls of the driver
  std::uint64_t copy_turn_bytes = 2u << 20;          // leave a device before the trainer's copies pass; 0: no turns
  bool batched_copies = true;                        // use the driver's batch call if it has one
  std::uint32_t rank = 0;                            // number of this process
  std::uint32_t world = 1;                           // processes that save together into one directory; at most 65536
  std::uint32_t local_ranks = 1;                     // how many of them share the memory of this machine
  std::chrono::milliseconds commit_timeout{60'000};  // how long ranks wait for each other
  std::uint32_t fan_in = 64;       // ranks per group, which votes as one; groups form groups, up to rank 0
  std::vector<TierOptions> tiers;  // below `path`, the fastest first
  // close() and wait_copied() give up on a lower tier that has made no progress for this long.
  std::chrono::milliseconds copy_timeout{60'000};
  bool node_local = false;            // `path` is another directory on each node; the ranks need `store`
  bool memory = false;                // hold the newest versions in a keeper process, which survives this one
  std::uint32_t memory_versions = 1;  // how many it holds: 1 or 2; the pool has room for one more
  std::chrono::milliseconds memory_timeout{600'000};  // how long it holds them without a trainer
  std::string keeper = "slackwater";                  // its program, by name or path
  std::shared_ptr<KeyValueStore> store;               // how the ranks talk; null: through files in the shared directory
  std::string run_name;                               // free text, stored in the attempt file
  LogSink log;                                        // empty: warnings and errors go to stderr
};

struct OptionInfo {
  std::string_view name;
  std::string_view type;           // "bytes", "count", "flag", "seconds", "text", "choice"
  std::string_view default_value;  // as set_option() takes it
  std::string_view choices;        // "wait|skip", empty for other types
  std::string_view help;           // one sentence
};

[[nodiscard]] std::span<const OptionInfo> option_table();
// Sets one option from text ("512MiB", "0.5", "true"). kInvalidArgument names the option and what it accepts.
[[nodiscard]] Status set_option(Options& options, std::string_view name, std::string_view value);

// The same for the options of one lower tier.
[[nodiscard]] std::span<const OptionInfo> tier_option_table();
[[nodiscard]] Status set_tier_option(TierOptions& tier, std::string_view name, std::string_view value);

// Reads an options file: a JSON object with the names of option_table(), "path", and "tiers", a list of objects with
// the names of tier_option_table(). Values are numbers, true, false, or text as set_option() takes it.
//   {"path": "/nvme/run", "keep": 2, "tiers": [{"location": "/shared/run", "every": 50, "keep": 10}]}
// kInvalidArgument names the file and what is wrong in it.
[[nodiscard]] Result<Options> load_options(const std::string& path);

// The same file for a program that keeps options of its own in it, such as the Python package. Every value is checked.
// Flags, counts and seconds come as such, whichever way the file writes them.
using OptionValue = std::variant<bool, std::int64_t, double, std::string>;
struct OptionsFile {
  std::map<std::string, OptionValue> options;  // "path", names of option_table(), and `others` as the file has them
  std::vector<std::map<std::string, OptionValue>> tiers;
};
[[nodiscard]] Result<OptionsFile> read_options_file(const std::string& path,
                                                    const std::vector<std::string>& others = {});

// Whether a tier can be the first one, to which the ranks save, in place of Options::path. kInvalidArgument says which
// of its options only a lower tier has. Engine::open() asks too.
[[nodiscard]] Status check_first_tier(const TierOptions& tier);
// "s3://bucket/prefix". Everything else is a path on this machine.
[[nodiscard]] bool is_object_location(std::string_view location);

}  // namespace slackwater
