#include "tiers/node_fetch.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
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

Status NodeFetch::mend(const VersionName& version, const std::string& name) {
  const auto saved_by = rank_of_file(name);
  if (sources_.empty() || !saved_by) return fail(ErrorKind::kNotFound, "no lower tier has it", name);
  TierOverlay below(sources_);
  SW_ASSIGN(const VersionFiles files, VersionFiles::read(below, below.root(), version));
  const auto& records = files.manifest().records;
  const auto reference = std::ranges::find(records, *saved_by, &RecordReference::rank);
  if (reference == records.end()) return fail(ErrorKind::kNotFound, "it is not part of the version", name);
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    SW_ASSIGN(const bool done, with_lock(files, *saved_by, [&]() -> Status {
                // Perhaps another rank has mended it since this one read it.
                SW_ASSIGN(const bool intact, is_intact(files, *reference, name));
                if (intact) return {};
                return copy({.version = version, .sources = sources_, .damaged = {name}}, [](auto) { return false; });
              }));
    if (done) return {};
    options_.on_progress();
    std::this_thread::sleep_for(pause);
  }
}

// Reads the file on tier 0 alone.
Result<bool> NodeFetch::is_intact(const VersionFiles& files, const RecordReference& reference,
                                  const std::string& name) const {
  const std::string path = fmt::format("{}/{}", version_path(target_.root, files.name()), name);
  if (name == reference.file) {
    const auto text = read_whole(*target_.fs, path, kMaxRecordBytes);
    return text && digest128(*text) == reference.digest;
  }
  SW_ASSIGN(const VersionFiles::RankPart part, files.rank_part(reference));
  const auto record = std::ranges::find(part.record.files, name, &FileRecord::name);
  if (record == part.record.files.end()) return fail(ErrorKind::kNotFound, "it is not part of the version", path);
  const auto file = target_.fs->open(path, OpenMode::kRead, false);
  if (!file) return false;
  const auto status = (*file)->status();
  if (!status || status->size_bytes != record->size_bytes) return false;
  std::vector<std::byte> block(kBlockBytes);
  for (std::uint64_t offset = 0; offset < record->size_bytes; offset += kBlockBytes) {
    const std::span<std::byte> bytes(block.data(), std::min<std::uint64_t>(kBlockBytes, record->size_bytes - offset));
    const auto got = (*file)->read_at(bytes, offset);
    if (!got || *got != bytes.size() || digest64(bytes) != record->block_digests[offset / kBlockBytes]) return false;
    options_.on_progress();
  }
  return true;
}

// Whether the record of a part is there, which is its last file, and its data files with their sizes.
Result<bool> NodeFetch::has_part(const VersionFiles& files, std::uint32_t saved_by) const {
  const auto& records = files.manifest().records;
  const auto reference = std::ranges::find(records, saved_by, &RecordReference::rank);
  if (reference == records.end()) return true;  // not of this version
  const std::string directory = version_path(target_.root, files.name());
  const std::string path = fmt::format("{}/{}", directory, reference->file);
  const auto text = retry_read([&] { return read_whole(*target_.fs, path, kMaxRecordBytes); });
  if (!text && text.error().kind != ErrorKind::kNotFound) return fail(text.error());
  if (!text || digest128(*text) != reference->digest) return false;
  SW_ASSIGN(const Record record, parse_record(*text, path));
  for (const FileRecord& file : record.files) {
    const auto found = retry_read([&] { return target_.fs->status(fmt::format("{}/{}", directory, file.name)); });
    if (!found && found.error().kind != ErrorKind::kNotFound) return fail(found.error());
    if (!found || found->size_bytes != file.size_bytes) return false;
  }
  return true;
}

Result<bool> NodeFetch::fetch_one(const VersionFiles& files, std::uint32_t saved_by) const {
  SW_ASSIGN(const bool there, has_part(files, saved_by));
  if (there) return true;
  return with_lock(files, saved_by, [&]() -> Status {
    SW_ASSIGN(const bool meanwhile, has_part(files, saved_by));
    if (meanwhile) return {};
    return copy({.version = files.name(), .sources = sources_}, [=](std::uint32_t rank) { return rank == saved_by; });
  });
}

Result<bool> NodeFetch::with_lock(const VersionFiles& files, std::uint32_t saved_by,
                                  const std::function<Status()>& call) const {
  const std::string lock_name =
      fmt::format("{}/fetch-{}-{:05}.lock", control_path(target_.root), version_directory(files.name()), saved_by);
  auto lock = target_.fs->try_lock(lock_name);
  if (!lock && lock.error().kind == ErrorKind::kBusy) return false;
  if (!lock && !locks_unknown(lock.error())) return fail(std::move(lock).error());
  SW_TRY(call());
  (void)target_.fs->unlink(lock_name);  // a rank that still opens it copies in vain, nothing worse
  return true;
}

Status NodeFetch::copy(RepairOrder order, const std::function<bool(std::uint32_t rank)>& in_share) const {
  VersionRepair repair(std::move(order), target_, in_share, log_);
  const auto caller = std::this_thread::get_id();
  return repair.copy(
      {.threads = 4, .buffer_bytes = 32u << 20, .direct_io = options_.direct_io, .on_sent = [&](std::uint64_t) {
         if (std::this_thread::get_id() == caller) options_.on_progress();
       }});
}

}  // namespace slackwater
