#include "tiers/node_fetch.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/posix_lock.hpp"
#include "os/retry.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{50};

}  // namespace

NodeFetch::NodeFetch(TierPlace target, std::vector<TierPlace> sources, Options options, Log log)
    : target_(std::move(target)), sources_(std::move(sources)), options_(std::move(options)), log_(std::move(log)) {}

Status NodeFetch::fetch(const VersionName& version, std::vector<std::uint32_t> saved_by) {
  if (sources_.empty() || saved_by.empty()) return {};
  TierOverlay below(sources_);
  std::optional<VersionFiles> files;  // read only if something is missing
  const auto first = saved_by.begin() + static_cast<std::ptrdiff_t>(options_.rank % saved_by.size());
  std::ranges::rotate(saved_by, first);
  for (auto pause = kFirstPause; !saved_by.empty();) {
    if (!files) {
      // The manifest may be on tier 0 alone: then there is nothing to bring.
      auto read = VersionFiles::read(below, below.root(), version);
      if (!read && read.error().kind == ErrorKind::kNotFound) return {};
      if (!read) return fail(std::move(read).error());
      files = std::move(*read);
    }
    const std::size_t before = saved_by.size();
    std::vector<std::uint32_t> busy;
    for (const std::uint32_t rank : saved_by) {
      SW_ASSIGN(const bool done, fetch_one(*files, rank));
      options_.on_progress();
      if (!done) busy.push_back(rank);
    }
    saved_by = std::move(busy);
    if (saved_by.empty()) return {};
    // Another rank of this node copies them. It holds its locks only while it lives.
    pause = saved_by.size() < before ? kFirstPause : std::min(2 * pause, kLongestPause);
    std::this_thread::sleep_for(pause);
  }
  return {};
}

Result<bool> NodeFetch::has_part(const VersionFiles& files, std::uint32_t saved_by) const {
  const auto& records = files.manifest().records;
  const auto reference = std::ranges::find(records, saved_by, &RecordReference::rank);
  if (reference == records.end()) return true;  // not of this version
  const std::string path = fmt::format("{}/{}", version_path(target_.root, files.name()), reference->file);
  const auto record = retry_read([&] { return read_whole(*target_.fs, path, kMaxRecordBytes); });
  if (!record && record.error().kind != ErrorKind::kNotFound) return fail(record.error());
  return record && digest128(*record) == reference->digest;  // the record is the last file of a part
}

Result<bool> NodeFetch::fetch_one(const VersionFiles& files, std::uint32_t saved_by) {
  SW_ASSIGN(const bool there, has_part(files, saved_by));
  if (there) return true;
  const std::string lock_name =
      fmt::format("{}/fetch-{}-{:05}.lock", control_path(target_.root), version_directory(files.name()), saved_by);
  auto lock = target_.fs->try_lock(lock_name);
  if (!lock && lock.error().kind == ErrorKind::kBusy) return false;
  if (!lock && !locks_unknown(lock.error())) return fail(std::move(lock).error());
  SW_ASSIGN(const bool meanwhile, has_part(files, saved_by));
  if (!meanwhile) {
    VersionRepair part(
        {.version = files.name(), .sources = sources_}, target_, [=](std::uint32_t rank) { return rank == saved_by; },
        log_);
    const auto caller = std::this_thread::get_id();
    SW_TRY(part.copy(
        {.threads = 4, .buffer_bytes = 32u << 20, .direct_io = options_.direct_io, .on_sent = [&](std::uint64_t) {
           if (std::this_thread::get_id() == caller) options_.on_progress();
         }}));
  }
  (void)target_.fs->unlink(lock_name);  // a rank that still opens it copies in vain, nothing worse
  return true;
}

}  // namespace slackwater
