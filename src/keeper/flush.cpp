#include "keeper/flush.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "keeper/gated_file_system.hpp"
#include "os/durable.hpp"
#include "version/attempt_files.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"
#include "version/manifest.hpp"
#include "version/record.hpp"
#include "version/version_store.hpp"

namespace slackwater {
namespace {

// The dead trainer's files of this version, if it came that far. Its names are free then. Writes of it that are still
// in flight go to files that have no name any more.
Status remove_partial(FileSystem& fs, const std::string& directory, std::span<const RankPart> parts) {
  std::vector<std::string> names{kIndexName};
  for (const RankPart& part : parts) {
    names.push_back(RankFiles::of_world(part.version.world).record(part.version.rank));
    for (const StagedFile& file : part.version.files) names.push_back(file.name);
  }
  for (const std::string& name : names) {
    const Status removed = fs.unlink(fmt::format("{}/{}", directory, name));
    if (!removed && removed.error().kind != ErrorKind::kNotFound) return removed;
  }
  return {};
}

// Slab by slab, each block checked against its digest before it is written: a checkpoint must never get valid digests
// for bytes that were not captured.
Status write_file(FileSystem& fs, const std::string& path, const Region& region, const StagedFile& file,
                  const FileRecord& record, PublishGate& gate) {
  SW_ASSIGN(DurableFile durable, DurableFile::create(fs, path, file.size_bytes, false));
  for (std::size_t i = 0; i < file.slabs.size(); ++i) {
    if (!gate.open()) return taken_over(path);
    const std::uint64_t offset = i * region.shape().slab_bytes;
    const std::uint64_t size = std::min(region.shape().slab_bytes, file.size_bytes - offset);
    const std::span<const std::byte> bytes = region.slab(file.slabs[i]).first(size);
    for (std::uint64_t at = 0; at < size; at += kBlockBytes) {
      const auto block = bytes.subspan(at, std::min(kBlockBytes, size - at));
      if (digest64(block) != record.block_digests[(offset + at) / kBlockBytes])
        return fail(ErrorKind::kCorrupt, "the copy in memory is damaged (checksum differs)", path);
    }
    SW_TRY(durable.file().write_at(bytes, offset));
    gate.note_progress();
  }
  return durable.finish();
}

// The data files of one rank, each synced.
Status write_files(FileSystem& fs, const std::string& directory, const RankPart& part, const Record& record,
                   PublishGate& gate) {
  const StagedVersion& version = part.version;
  if (record.files.size() != version.files.size() || record.identity.rank != version.rank)
    return fail(ErrorKind::kCorrupt, "the record in the keeper's memory is of another version", directory);
  const std::string own = RankFiles::of_world(version.world).directory(version.rank);
  if (!own.empty()) SW_TRY(ensure_directory(fs, fmt::format("{}/{}", directory, own)));
  for (std::size_t i = 0; i < version.files.size(); ++i) {
    const StagedFile& file = version.files[i];
    if (file.name != record.files[i].name || file.size_bytes != record.files[i].size_bytes)
      return fail(ErrorKind::kCorrupt, "the record in the keeper's memory is of another file", directory);
    SW_TRY(write_file(fs, directory + "/" + file.name, *part.region, file, record.files[i], gate));
  }
  return {};
}

// Before the decision: whoever finds that must be able to read all of it.
Status check_files(FileSystem& fs, const std::string& directory, std::span<const RankPart> parts,
                   const PartsCommit& commit) {
  SW_ASSIGN(const std::vector<FileEntry> there, fs.list_files(directory));
  const auto has = [&](const std::string& name, std::optional<std::uint64_t> size_bytes) {
    const auto found = std::ranges::lower_bound(there, name, {}, &FileEntry::name);
    return found != there.end() && found->name == name && size_bytes.value_or(found->size_bytes) == found->size_bytes;
  };
  bool complete = has(kIndexName, commit.index.size());
  for (const RankPart& part : parts) {
    complete &= has(RankFiles::of_world(part.version.world).record(part.version.rank), std::nullopt);
    for (const StagedFile& file : part.version.files) complete &= has(file.name, file.size_bytes);
  }
  if (complete) return {};
  return fail(Error{.kind = ErrorKind::kIo,
                    .message = "files that were just written are missing; end the process that deletes files here",
                    .path = directory,
                    .retryable = true});
}

// Everything but the decision.
Status write_parts(FileSystem& fs, VersionStore& store, const std::string& directory, std::span<const RankPart> parts,
                   const PartsCommit& commit, PublishGate& gate) {
  SW_TRY(ensure_directory(fs, directory));
  SW_TRY(remove_partial(fs, directory, parts));
  const bool alone = parts.size() == 1;
  for (const RankPart& part : parts) {
    SW_ASSIGN(const Record record, parse_record(part.version.record, directory));
    if (record.run != commit.manifest.run)
      return fail(ErrorKind::kCorrupt, "the record in the keeper's memory is of another run", directory);
    SW_TRY(write_files(fs, directory, part, record, gate));
    SW_ASSIGN(const RecordReference reference, store.write_record(record, alone ? commit.index : std::string()));
    const auto& records = commit.manifest.records;
    const auto named = std::ranges::find(records, reference.rank, &RecordReference::rank);
    if (named == records.end() || named->digest != reference.digest)
      return fail(ErrorKind::kCorrupt, "the manifest in the keeper's memory names another record", directory);
  }
  return alone ? Status() : store.write_index(parts.front().version.name, commit.index);
}

}  // namespace

Result<Manifest> flush_version(FileSystem& file_system, const Clock& clock, const std::string& root,
                               std::span<const RankPart> parts, const std::string& member, PublishGate& gate,
                               const Log& log) {
  GatedFileSystem fs(file_system, gate);
  const VersionName name = parts.front().version.name;
  const std::string directory = version_path(root, name);
  SW_ASSIGN(PartsCommit commit, commit_of(parts, directory));
  const auto given_up = [&](const Manifest& decided) {
    return fail(ErrorKind::kAborted, fmt::format("the step was given up: {}", decided.reason), directory);
  };

  // As a member: the caller holds the lock. accept() makes sure that the attempt is the trainer's. A version that a
  // later attempt went on from stays in memory: nobody can commit it any more under its own attempt.
  SW_ASSIGN(const auto store, VersionStore::open(fs, clock, root, log, VersionStore::Role::kMember));
  SW_TRY(check_newest_attempt(fs, root, name.attempt));
  SW_TRY(store->attempt().accept(name.attempt, 0, member));
  auto decided = read_manifest(fs, root, name);
  if (decided && decided->decision == Decision::kAbort) return given_up(*decided);
  // Its writer may have died before its last sync, or that failed. It is safe only when a power cut cannot undo it.
  if (decided) SW_TRY(fs.sync_directory(directory));
  if (decided || decided.error().kind != ErrorKind::kNotFound) return decided;

  Status written = write_parts(fs, *store, directory, parts, commit, gate);
  // The dead trainer's last operation may have ended only after its names were removed.
  if (!written && written.error().kind == ErrorKind::kAlreadyExists)
    written = write_parts(fs, *store, directory, parts, commit, gate);
  if (!written) {
    // It may be the disk that is full. Once the gate is closed, the names belong to others, and nothing is removed.
    (void)remove_partial(fs, directory, parts);
    return fail(std::move(written).error());
  }
  // A list may hang, and whoever takes over must not wait for it. So it comes before the gate: once that is closed,
  // nothing is published, whatever this list says.
  const Status complete = check_files(fs, directory, parts, commit);
  decided = taken_over(root);
  static_cast<void>(gate.pass([&] {
    // Slabs are filled with something else only after their version has left the table. So what was read is what was
    // staged, as long as the table has it still.
    const auto still_there = [](const RankPart& part) { return part.region->holds(part.entry, part.version.name); };
    if (!std::ranges::all_of(parts, still_there)) {
      decided = fail(ErrorKind::kAborted, "the version left the keeper's memory while it was written", directory);
    } else {
      decided = complete ? store->decide(std::move(commit.manifest)) : fail(complete.error());
    }
  }));
  if (decided && decided->decision == Decision::kAbort) return given_up(*decided);
  return decided;
}

bool is_unsaved(FileSystem& fs, const std::string& root, const Region::Kept& kept) {
  if (kept.state == KeptState::kCommitted) return false;
  const auto number = newest_attempt_number(fs, root);
  if (!number) return number.error().kind != ErrorKind::kNotFound;
  if (*number == 0) return false;
  if (const auto newest = read_attempt(fs, root, *number)) {
    const std::uint32_t rank = kept.version.rank;
    if (newest->world != kept.version.world || rank >= newest->members.size()) return false;
    if (std::ranges::find(kept.members, newest->members[rank]) == kept.members.end()) return false;
  }
  return !read_manifest(fs, root, kept.version.name);  // an abort decides it as well
}

std::optional<std::uint64_t> unsaved_step(FileSystem& fs, const std::string& root, const Region& region) {
  const auto kept = region.kept();
  const auto found = std::ranges::find_if(kept, [&](const Region::Kept& each) { return is_unsaved(fs, root, each); });
  return found == kept.end() ? std::nullopt : std::optional(found->version.name.step);
}

}  // namespace slackwater
