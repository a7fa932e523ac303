#include "cli/doctor/storage.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "cli/doctor/aligned_buffer.hpp"
#include "cli/doctor/fake_training.hpp"
#include "cli/doctor/raw_io.hpp"
#include "cli/doctor/thresholds.hpp"
#include "cli/text.hpp"
#include "os/file_system.hpp"

namespace slackwater::cli::doctor {
namespace {

constexpr const char* kStorage = "storage";
constexpr std::uint64_t kMostBytes = 768ull << 20;
constexpr std::uint64_t kFewBytes = 64ull << 20;
constexpr int kSyncs = 50;
constexpr double kDiskSeconds = 20;  // of writing, and of reading, after which no further pair is measured
constexpr double kSettleSeconds = 2;

constexpr std::array kNetworkTypes{"nfs",  "nfs4", "lustre", "gpfs",       "beegfs",
                                   "ceph", "cifs", "smb3",   "fuse.sshfs", "9p"};
constexpr std::array kMemoryTypes{"tmpfs", "ramfs"};

Result<bool> try_direct(FileSystem& fs, const std::string& path) {
  SW_ASSIGN(const std::unique_ptr<File> file, fs.open(path, OpenMode::kCreateExclusive, true));
  AlignedBuffer page(kDirectAlignment);
  const bool direct = file->direct();
  SW_TRY(file->write_at(page.bytes(), 0));
  return direct && file->direct();
}

Result<std::vector<double>> time_syncs(FileSystem& fs, const std::string& path, int count) {
  SW_ASSIGN(const std::unique_ptr<File> file, fs.open(path, OpenMode::kCreateExclusive, false));
  AlignedBuffer page(kDirectAlignment);
  std::vector<double> milliseconds;
  for (int i = 0; i < count; ++i) {
    SW_TRY(file->write_at(page.bytes(), static_cast<std::uint64_t>(i) * kDirectAlignment));
    const Stopwatch watch;
    SW_TRY(file->sync_all());
    milliseconds.push_back(watch.seconds() * 1e3);
  }
  return milliseconds;
}

struct DiskRates {
  std::uint64_t size_bytes = 0;
  double huge_part = 0;  // of the engine's pool, and of the memory for raw I/O
  Rates write;
  Rates read;
};

// Leftovers are dealt with outside the measured time. The engine deletes the version before last in the background, and
// the blocks of a deleted file are given back by the next one that syncs.
void settle(const std::string& scratch, const std::string& checkpoints) {
  namespace fs = std::filesystem;
  const auto versions = [&] {
    std::error_code ignored;
    return std::ranges::count_if(fs::directory_iterator(checkpoints, ignored), [](const fs::directory_entry& entry) {
      return entry.path().filename().string().starts_with("step-");
    });
  };
  const Stopwatch watch;
  while (versions() > 1 && watch.seconds() < kSettleSeconds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const UniqueFd directory(::open(scratch.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) (void)::fsync(directory.get());
}

// One pair after the other, first ours, then raw, then the other way round: what drifts meanwhile hits both alike. The
// first pair does not count: whatever is made once, is made there. Raw I/O has as much memory as the engine's pool, and
// as much of it on huge pages. With huge pages on one side only, it would be that which is measured.
Result<DiskRates> measure_disk(const Settings& settings, std::uint64_t size_bytes) {
  DiskRates rates{.size_bytes = size_bytes};
  const double gigabytes = static_cast<double>(size_bytes) / 1e9;
  AlignedBuffer state(size_bytes);
  AlignedBuffer restored(size_bytes);
  fill_random(state.bytes(), 1);
  fill_random(restored.bytes(), 2);  // touched

  Options options = settings.engine_options("disk");
  options.pool_bytes = std::min<std::uint64_t>(round_up(size_bytes, options.slab_bytes), 256ull << 20);
  const std::uint64_t pool_bytes = options.pool_bytes;
  const std::string checkpoints = options.path;
  SW_ASSIGN(EngineRun engine, EngineRun::open(settings, std::move(options)));
  const auto view = [&] {
    State whole;
    whole.tensors.push_back(
        {.name = "state", .shape = {static_cast<std::int64_t>(size_bytes)}, .data = state.bytes().data()});
    return whole;
  };
  const auto huge_bytes = [] { return huge_page_bytes(read_text("/proc/self/smaps"), 0, kUnlimited); };
  const std::uint64_t huge_before = huge_bytes();
  SW_TRY(engine->prepare(view()));
  SW_TRY(engine->wait_prepared(settings.time_limit()));
  const std::uint64_t huge_pool = std::min(std::max(huge_bytes(), huge_before) - huge_before, pool_bytes);
  rates.huge_part = static_cast<double>(huge_pool) / static_cast<double>(pool_bytes);
  const std::string raw_file = settings.scratch + "/raw";
  const AlignedBuffer raw_buffer(pool_bytes, huge_pool);
  fill_random(raw_buffer.bytes(), 3);

  const auto save_ours = [&, step = std::uint64_t{0}]() mutable -> Status {
    settle(settings.scratch, checkpoints);
    const Stopwatch saving;
    SW_ASSIGN(auto snapshot, engine->save(step++, view()));
    SW_TRY(snapshot->wait(Level::kCommitted, 3 * settings.time_limit()));
    rates.write.ours.push_back(gigabytes / saving.seconds());
    return {};
  };
  const auto save_raw = [&]() -> Status {
    settle(settings.scratch, checkpoints);
    // The file before goes afterwards, as the engine's version before does. Where blocks that were just given back are
    // written again, a disk can take half as long again.
    const std::string next_file = raw_file + ".next";
    SW_ASSIGN(const double seconds, write_raw(next_file, size_bytes, raw_buffer.bytes()));
    rates.write.raw.push_back(gigabytes / seconds);
    std::error_code ignored;
    std::filesystem::rename(next_file, raw_file, ignored);
    return {};
  };
  const auto read_ours = [&]() -> Status {
    settle(settings.scratch, checkpoints);
    const Stopwatch reading;
    SW_TRY(engine->restore({}, [&](const Checkpoint&) -> Result<std::vector<Target>> {
      return std::vector<Target>{
          {.name = "state", .shape = {static_cast<std::int64_t>(size_bytes)}, .data = restored.bytes().data()}};
    }));
    rates.read.ours.push_back(gigabytes / reading.seconds());
    if (std::memcmp(state.bytes().data(), restored.bytes().data(), size_bytes) != 0)
      return fail(ErrorKind::kCorrupt, "restored bytes differ from the bytes saved");
    return {};
  };
  const auto read_raw_file = [&]() -> Status {
    SW_ASSIGN(const double seconds, read_raw(raw_file, size_bytes, raw_buffer.bytes()));
    rates.read.raw.push_back(gigabytes / seconds);
    return {};
  };

  const auto measure = [&](auto ours, auto raw, Rates& found) -> Status {
    const Stopwatch watch;
    const int most = settings.quick ? 1 : 5;
    const int fewest = settings.quick ? 1 : 2;
    for (int pair = 0; pair <= most && (pair <= fewest || watch.seconds() < kDiskSeconds); ++pair) {
      if (pair % 2 == 0) SW_TRY(ours());
      SW_TRY(raw());
      if (pair % 2 == 1) SW_TRY(ours());
      if (pair == 0) found = {};
    }
    return {};
  };
  // All saves first: the first one after a restore claims a new attempt.
  SW_TRY(measure(save_ours, save_raw, rates.write));
  SW_TRY(measure(read_ours, read_raw_file, rates.read));
  SW_TRY(engine.close());
  ::unlink(raw_file.c_str());
  return rates;
}

Check broken(const char* name, const Error& error) {
  return {.section = kStorage,
          .name = name,
          .verdict = Verdict::kFail,
          .figure = error.to_string(),
          .remedy = "check the disk, its quota and the permissions of the directory"};
}

}  // namespace

Check direct_io_check(bool direct, const std::optional<Mount>& mount) {
  Check check{.section = kStorage, .name = "O_DIRECT"};
  const std::string type = mount ? mount->type : "unknown";
  const std::string where = mount ? fmt::format("{} ({} on {})", type, mount->source, mount->point) : type;
  const auto is_one_of = [&](const auto& types) { return std::ranges::find(types, type) != types.end(); };
  check.figure = fmt::format("{} on {}", direct ? "works" : "does not work", where);
  if (is_one_of(kMemoryTypes)) {
    check.verdict = Verdict::kWarn;
    check.remedy = "this is memory, not a disk: a reboot loses every checkpoint; choose another directory";
  } else if (!direct) {
    check.verdict = Verdict::kWarn;
    check.remedy = is_one_of(kNetworkTypes) ? "checkpoints go through the page cache; prefer a local NVMe disk"
                                            : "checkpoints go through the page cache; prefer ext4 or xfs";
  }
  return check;
}

Check sync_check(const std::vector<double>& milliseconds) {
  const double middle = median(milliseconds);
  const double worst = milliseconds.empty() ? 0 : *std::ranges::max_element(milliseconds);
  Check check{.section = kStorage, .name = "fsync"};
  check.figure = fmt::format("median {:.2f} ms, worst of {} {:.1f} ms", middle, milliseconds.size(), worst);
  check.threshold = fmt::format("median {:.0f} ms, worst {:.0f} ms", kSyncMedianMs.warn, kSyncWorstMs);
  check.verdict = at_most(middle, kSyncMedianMs);
  if (check.verdict == Verdict::kPass && worst > kSyncWorstMs) check.verdict = Verdict::kWarn;
  if (check.verdict != Verdict::kPass) check.remedy = "see who else writes to this disk: iostat -x 1";
  return check;
}

Check free_space_check(std::uint64_t free_bytes, std::uint64_t state_bytes, std::uint64_t keep, unsigned in_flight) {
  const std::uint64_t versions = keep + in_flight;
  const std::string formula = fmt::format("keep {} + {} in flight", keep, in_flight);
  Check check{.section = kStorage, .name = "free space", .figure = format_bytes(free_bytes)};
  if (keep == 0) {
    check.verdict = Verdict::kWarn;
    check.figure += ", and every checkpoint is kept (keep 0)";
    if (state_bytes > 0) check.figure += fmt::format(": full after {}", plural(free_bytes / state_bytes, "checkpoint"));
    check.remedy = "set keep, or watch the disk";
  } else if (state_bytes == 0) {
    check.figure += fmt::format(", for states of up to {} ({}); --state-bytes checks yours",
                                format_bytes(free_bytes / versions), formula);
    check.threshold = format_bytes(kFreeSpaceWanted);
    if (free_bytes < kFreeSpaceWanted) {
      check.verdict = Verdict::kWarn;
      check.remedy = "free some space, or choose a larger disk";
    }
  } else {
    const bool overflow = state_bytes > kUnlimited / versions;
    const std::uint64_t needed = overflow ? kUnlimited : state_bytes * versions;
    check.threshold = fmt::format("{}: {} x ({})", format_bytes(needed), format_bytes(state_bytes), formula);
    if (free_bytes < needed) {
      check.verdict = Verdict::kFail;
      check.remedy = "free some space, lower keep, or choose a larger disk";
    } else if (static_cast<double>(free_bytes) < kFreeSpaceMargin * static_cast<double>(needed)) {
      check.verdict = Verdict::kWarn;
      check.remedy = "leave a fifth more: disks that are nearly full are slow";
    }
  }
  return check;
}

Check ratio_check(Check check, const Rates& rates, const char* raw_name, bool quick) {
  const double raw = median(rates.raw);
  const double ratio = raw > 0 ? median(rates.ours) / raw : 0;
  check.figure = fmt::format("{:.2f} GB/s, {:.2f} of {} ({:.2f} GB/s){}{}", median(rates.ours), ratio, raw_name, raw,
                             check.figure.empty() ? "" : "; ", check.figure);
  check.threshold = fmt::format("{:.1f} of it", kOursOverRaw.warn);
  check.verdict = soften(at_least(ratio, kOursOverRaw), quick);
  if (check.verdict == Verdict::kPass) check.remedy.clear();
  return check;
}

void storage_checks(const Settings& settings, const MachineFiles& files, const Emit& emit) {
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  const auto mount = find_mount(read_text(files.proc + "/self/mountinfo"),
                                std::filesystem::absolute(settings.scratch).lexically_normal().string());
  const auto direct = try_direct(*fs, settings.scratch + "/direct");
  emit(direct ? direct_io_check(*direct, mount) : broken("O_DIRECT", direct.error()));

  const auto free_bytes = fs->free_bytes(settings.scratch);
  const std::uint64_t room = free_bytes.value_or(0);
  const std::uint64_t memory = read_memory(files).usable_bytes();
  const std::uint64_t size_bytes =
      round_down(std::min({settings.quick ? kFewBytes : kMostBytes, room / 8, memory / 8}), 1u << 20);
  if (size_bytes < (8u << 20)) {
    emit({.section = kStorage,
          .name = "write and read",
          .verdict = Verdict::kSkip,
          .figure = fmt::format("not measured: {} of disk and {} of memory are too little", format_bytes(room),
                                format_bytes(memory))});
  } else if (const auto rates = measure_disk(settings, size_bytes); rates) {
    const char* const remedy = "see the lines about load and pool touch; run it again when the machine is idle";
    Check write{.section = kStorage, .name = "write", .remedy = remedy};
    if (rates->huge_part < kHugePart)
      write.figure = fmt::format("both from memory with {:.0f} % on huge pages", rates->huge_part * 100);
    Check read{.section = kStorage, .name = "read", .figure = write.figure, .remedy = remedy};
    if (settings.state_bytes > 0)
      write.figure +=
          fmt::format("{}a checkpoint takes {}", write.figure.empty() ? "" : "; ",
                      format_seconds(static_cast<double>(settings.state_bytes) / (median(rates->write.ours) * 1e9)));
    emit(ratio_check(std::move(write), rates->write, "raw O_DIRECT", settings.soft));
    emit(ratio_check(std::move(read), rates->read, "raw O_DIRECT", settings.soft));
  } else {
    emit(broken("write and read", rates.error()));
  }

  const auto syncs = time_syncs(*fs, settings.scratch + "/sync", settings.quick ? 10 : kSyncs);
  emit(syncs ? sync_check(*syncs) : broken("fsync", syncs.error()));
  emit(free_bytes ? free_space_check(room, settings.state_bytes, settings.keep, Options().in_flight)
                  : broken("free space", free_bytes.error()));
}

}  // namespace slackwater::cli::doctor
