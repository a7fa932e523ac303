#include "slackwater/options.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "engine/options_check.hpp"
#include "tiers/tier.hpp"

namespace slackwater {
namespace {

template <class Settings>
using Setter = Status (*)(Settings&, std::string_view);

Result<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size())
    return fail(ErrorKind::kInvalidArgument, "takes a whole number, 0 or more");
  return value;
}

Result<unsigned> parse_small_count(std::string_view text, unsigned least, unsigned most) {
  SW_ASSIGN(const std::uint64_t value, parse_count(text));
  if (value < least || value > most)
    return fail(ErrorKind::kInvalidArgument, fmt::format("takes a whole number from {} to {}", least, most));
  return static_cast<unsigned>(value);
}

Result<std::chrono::milliseconds> parse_timeout(std::string_view text) {
  double seconds = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (code != std::errc{} || end != text.data() + text.size() || !(seconds > 0) || seconds > 1e6)
    return fail(ErrorKind::kInvalidArgument, "takes seconds above 0, such as 60 or 0.5");
  return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(seconds * 1000)));
}

// For options that are one parsed value.
template <auto kMember, auto kParse, class Settings = Options>
Status set(Settings& options, std::string_view text) {
  SW_ASSIGN(options.*kMember, kParse(text));
  return {};
}

template <auto kMember, unsigned kLeast, unsigned kMost>
Status set_within(Options& options, std::string_view text) {
  SW_ASSIGN(options.*kMember, parse_small_count(text, kLeast, kMost));
  return {};
}

Status set_pool(Options& options, std::string_view text) {
  if (text == "auto") {
    options.pool_bytes = 0;
    return {};
  }
  SW_ASSIGN(const std::uint64_t bytes, parse_bytes(text));
  if (bytes == 0) return fail(ErrorKind::kInvalidArgument, "takes auto or a size above 0");
  options.pool_bytes = bytes;
  return {};
}

Status set_slab(Options& options, std::string_view text) {
  SW_ASSIGN(const std::uint64_t bytes, parse_bytes(text));
  if (bytes == 0 || bytes % kBlockBytes != 0 || bytes > (1u << 30))
    return fail(ErrorKind::kInvalidArgument, "takes a multiple of 1MiB, at most 1GiB");
  options.slab_bytes = bytes;
  return {};
}

// "min:3:loss", or nothing.
Status set_keep_best(Options& options, std::string_view text) {
  const auto wrong = [] {
    return fail(ErrorKind::kInvalidArgument, "takes min or max, how many, and a metric, such as min:3:loss");
  };
  options.keep_best = {};
  if (text.empty()) return {};
  const auto first = text.find(':');
  const auto second = first == std::string_view::npos ? first : text.find(':', first + 1);
  if (second == std::string_view::npos) return wrong();
  const std::string_view mode = text.substr(0, first);
  const auto count = parse_count(text.substr(first + 1, second - first - 1));
  const std::string_view metric = text.substr(second + 1);
  if ((mode != "min" && mode != "max") || !count || *count == 0 || metric.empty()) return wrong();
  options.keep_best = {.metric = std::string(metric), .count = *count, .highest = mode == "max"};
  return {};
}

Status set_on_busy(Options& options, std::string_view text) {
  if (text != "wait" && text != "skip") return fail(ErrorKind::kInvalidArgument, "takes wait or skip");
  options.on_busy = text == "wait" ? OnBusy::kWait : OnBusy::kSkip;
  return {};
}

Status set_on_damage(Options& options, std::string_view text) {
  if (text != "fallback" && text != "raise") return fail(ErrorKind::kInvalidArgument, "takes fallback or raise");
  options.on_damage = text == "fallback" ? OnDamage::kFallback : OnDamage::kRaise;
  return {};
}

Status set_io_backend(Options& options, std::string_view text) {
  if (text == "auto")
    options.io_backend = IoBackend::kAuto;
  else if (text == "uring")
    options.io_backend = IoBackend::kUring;
  else if (text == "threads")
    options.io_backend = IoBackend::kThreads;
  else
    return fail(ErrorKind::kInvalidArgument, "takes auto, uring or threads");
  return {};
}

Status set_cuda_driver(Options& options, std::string_view text) {
  if (text.empty()) {
    return fail(ErrorKind::kInvalidArgument, "takes the name or the path of the driver's library");
  }
  options.cuda_driver = text;
  return {};
}

constexpr std::uint64_t kMinCopyTurnBytes = 64u << 10;

Status set_copy_turn(Options& options, std::string_view text) {
  SW_ASSIGN(const std::uint64_t size, parse_bytes(text));
  if (size != 0 && size < kMinCopyTurnBytes) return fail(ErrorKind::kInvalidArgument, "takes 0, or at least 64 KiB");
  options.copy_turn_bytes = size;
  return {};
}

Status set_run_name(Options& options, std::string_view text) {
  if (text.size() > 1024) return fail(ErrorKind::kInvalidArgument, "takes at most 1024 bytes of text");
  options.run_name = text;
  return {};
}

Status set_keeper(Options& options, std::string_view text) {
  if (text.empty()) return fail(ErrorKind::kInvalidArgument, "takes the name or the path of a program");
  options.keeper = text;
  return {};
}

template <class Settings>
struct RowOf {
  OptionInfo info;
  Setter<Settings> set;
};
using Row = RowOf<Options>;
using TierRow = RowOf<TierOptions>;

constexpr std::array kRows{
    Row{{"pool", "bytes", "auto", "",
         "Host memory for bytes on their way; auto is the size of the state, at most a quarter of available memory "
         "shared by the ranks of this machine."},
        set_pool},
    Row{{"slab", "bytes", "8MiB", "", "Size of one buffer of the pool, a multiple of 1 MiB."}, set_slab},
    Row{{"copy_threads", "count", "0", "",
         "Threads that copy tensors into the pool, and threads that touch its memory at the start; 0 takes up to two "
         "and four, as cores allow."},
        set_within<&Options::copy_threads, 0, 64>},
    Row{{"queue_depth", "count", "0", "", "Writes under way at once; 0 chooses by itself."},
        set_within<&Options::queue_depth, 0, 1024>},
    Row{{"in_flight", "count", "2", "", "Snapshots on their way at once before a save finds the engine busy."},
        set_within<&Options::in_flight, 1, 64>},
    Row{{"on_busy", "choice", "wait", "wait|skip",
         "What save does when that many are on their way: wait for one, or skip this step."},
        set_on_busy},
    Row{{"on_damage", "choice", "fallback", "fallback|raise",
         "What restore does with a damaged version: use the one before it, or raise an error."},
        set_on_damage},
    Row{{"keep", "count", "2", "", "Newest checkpoints kept; 0 keeps all."}, set<&Options::keep, parse_count>},
    Row{{"keep_every", "count", "0", "", "Checkpoints of steps divisible by this are kept too; 0 is none."},
        set<&Options::keep_every, parse_count>},
    Row{{"keep_best", "text", "", "",
         "The best checkpoints by a metric are kept too: min:3:loss keeps the three with the lowest loss."},
        set_keep_best},
    Row{{"paranoid", "flag", "false", "",
         "Hash every byte inside save and again after the copy, to catch any change in between."},
        set<&Options::paranoid, parse_flag>},
    Row{{"io_backend", "choice", "auto", "auto|uring|threads",
         "How files are written and read; auto takes io_uring where it is permitted."},
        set_io_backend},
    Row{{"direct_io", "flag", "true", "", "Bypass the page cache (O_DIRECT) where the file system takes it."},
        set<&Options::direct_io, parse_flag>},
    Row{{"stall_timeout", "seconds", "60", "",
         "A snapshot that makes no progress for this long is given up, so that training goes on."},
        set<&Options::stall_timeout, parse_timeout>},
    Row{{"cuda_driver", "text", "libcuda.so.1", "",
         "The CUDA driver's library, by name or path; it is loaded when the first CUDA tensor is seen."},
        set_cuda_driver},
    Row{{"copies_ahead", "bytes", "64MiB", "",
         "Bytes queued on a CUDA device before the fence; less lets the trainer's own copies pass sooner; 0 is no "
         "limit."},
        set<&Options::copies_ahead_bytes, parse_bytes>},
    Row{{"copies_ahead_operations", "count", "256", "",
         "Calls of the CUDA driver that may be outstanding on a device before the fence; a state of small tensors "
         "takes many."},
        set_within<&Options::copies_ahead_operations, 1, 4096>},
    Row{{"copy_turn", "bytes", "2MiB", "",
         "Bytes that leave a CUDA device before the trainer's own copies may pass, until the fence; 0 leaves no gaps."},
        set_copy_turn},
    Row{{"batched_copies", "flag", "true", "", "Use the CUDA driver's call for many copies at once, where it has one."},
        set<&Options::batched_copies, parse_flag>},
    Row{{"rank", "count", "0", "", "Which of the processes that save together this one is."},
        set_within<&Options::rank, 0, kMaxWorld - 1>},
    Row{{"world", "count", "1", "", "How many processes save together, each its own part, as one version."},
        set_within<&Options::world, 1, kMaxWorld>},
    Row{{"local_ranks", "count", "1", "",
         "How many of them run on this machine; each takes its share of the memory for an automatic pool."},
        set_within<&Options::local_ranks, 1, kMaxWorld>},
    Row{{"commit_timeout", "seconds", "60", "",
         "How long ranks wait for each other; a step that one of them does not finish in time is given up by all."},
        set<&Options::commit_timeout, parse_timeout>},
    Row{{"fan_in", "count", "64", "", "Ranks in a group, which reports as one; groups form groups, up to rank 0."},
        set_within<&Options::fan_in, 2, kMaxWorld>},
    Row{{"copy_timeout", "seconds", "60", "",
         "How long close waits for a lower tier that makes no progress; the next run copies what is left."},
        set<&Options::copy_timeout, parse_timeout>},
    Row{{"node_local", "flag", "false", "",
         "Each node has a directory of its own at this path, such as a local disk; the ranks need the job's store, and "
         "a lower tier that all nodes share."},
        set<&Options::node_local, parse_flag>},
    Row{{"memory", "flag", "false", "",
         "Hold the newest version in a process of its own (the keeper), so that a trainer that was killed restarts "
         "from memory."},
        set<&Options::memory, parse_flag>},
    Row{{"memory_versions", "count", "1", "",
         "Versions that the keeper holds, 1 or 2; the pool has room for one more, the one that is being copied."},
        set_within<&Options::memory_versions, 1, 2>},
    Row{{"memory_timeout", "seconds", "600", "",
         "How long the keeper holds them without a trainer before it releases its memory."},
        set<&Options::memory_timeout, parse_timeout>},
    Row{{"keeper", "text", "slackwater", "", "The keeper's program, by name or path; it is the slackwater command."},
        set_keeper},
    Row{{"run_name", "text", "", "", "Free text about this run, kept with its checkpoints."}, set_run_name},
};

template <auto kMember>
Status set_positive(TierOptions& tier, std::string_view text) {
  SW_ASSIGN(const std::uint64_t value, parse_count(text));
  SW_TRY(check_tier_count(value));
  tier.*kMember = value;
  return {};
}

Status set_location(TierOptions& tier, std::string_view text) {
  SW_TRY(check_tier_location(text));
  tier.location = text;
  return {};
}

template <auto kMember>
Status set_s3_text(TierOptions& tier, std::string_view text) {
  tier.s3.*kMember = text;
  return {};
}

Status set_path_style(TierOptions& tier, std::string_view text) {
  SW_ASSIGN(tier.s3.path_style, parse_flag(text));
  return {};
}

constexpr std::array kTierRows{
    TierRow{{"location", "text", "", "", "Where the tier is: a directory, or s3://bucket/prefix."}, set_location},
    TierRow{{"every", "count", "1", "", "Committed steps divisible by this are copied to the tier."},
            set_positive<&TierOptions::every>},
    TierRow{{"keep", "count", "2", "", "Newest checkpoints kept on the tier; 0 keeps all."},
            set<&TierOptions::keep, parse_count, TierOptions>},
    TierRow{{"keep_every", "count", "0", "", "Checkpoints of steps divisible by this are kept there too; 0 is none."},
            set<&TierOptions::keep_every, parse_count, TierOptions>},
    TierRow{{"bandwidth", "bytes", "0", "", "Most bytes per second that each rank sends to the tier; 0 is no limit."},
            set<&TierOptions::bandwidth_bytes, parse_bytes, TierOptions>},
    TierRow{{"backlog", "count", "4", "", "Versions that may wait for the tier; older ones are skipped and counted."},
            set_positive<&TierOptions::backlog>},
    TierRow{
        {"endpoint", "text", "", "", "Address of an object store that is not Amazon's: https://minio.example:9000."},
        set_s3_text<&S3Options::endpoint>},
    TierRow{{"region", "text", "", "", "Region of the bucket; by default that of the environment or the profile."},
            set_s3_text<&S3Options::region>},
    TierRow{{"profile", "text", "", "", "Profile of ~/.aws/credentials; by default the environment decides."},
            set_s3_text<&S3Options::profile>},
    TierRow{{"path_style", "flag", "false", "", "Address objects as https://host/bucket/key."}, set_path_style},
    TierRow{{"node_local", "flag", "false", "",
             "The tier is another directory on each node; only a first tier that takes the place of the path can be."},
            set<&TierOptions::node_local, parse_flag, TierOptions>},
};

template <auto& kTable>
constexpr auto infos_of() {
  std::array<OptionInfo, kTable.size()> infos{};
  for (std::size_t i = 0; i < kTable.size(); ++i) infos[i] = kTable[i].info;
  return infos;
}
constexpr auto kInfos = infos_of<kRows>();
constexpr auto kTierInfos = infos_of<kTierRows>();

template <auto& kTable, class Settings>
Status set_by_table(Settings& settings, const char* what, std::string_view name, std::string_view value) {
  std::string known;
  for (const auto& row : kTable) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.info.name);
    if (row.info.name != name) continue;
    if (auto status = row.set(settings, value); !status) {
      return fail(ErrorKind::kInvalidArgument,
                  fmt::format("{} '{}' was given '{}': {}", what, name, value, status.error().message));
    }
    return {};
  }
  return fail(ErrorKind::kInvalidArgument, fmt::format("there is no {} '{}'; there are: {}", what, name, known));
}

}  // namespace

Result<bool> parse_flag(std::string_view text) {
  if (text == "true" || text == "1" || text == "yes") return true;
  if (text == "false" || text == "0" || text == "no") return false;
  return fail(ErrorKind::kInvalidArgument, "takes true or false");
}

std::span<const OptionInfo> option_table() { return kInfos; }
std::span<const OptionInfo> tier_option_table() { return kTierInfos; }

Status set_option(Options& options, std::string_view name, std::string_view value) {
  return set_by_table<kRows>(options, "option", name, value);
}

Status set_tier_option(TierOptions& tier, std::string_view name, std::string_view value) {
  return set_by_table<kTierRows>(tier, "tier option", name, value);
}

}  // namespace slackwater
