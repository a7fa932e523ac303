#include "keeper/flush.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "os/durable.hpp"
#include "version/attempt_files.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"
#include "version/manifest.hpp"
#include "version/record.hpp"
#include "version/version_store.hpp"

namespace slackwater {
namespace {

std::unexpected<Error> taken_over(const std::string& root) {
  return fail(ErrorKind::kAborted, "the next trainer has taken over, so the keeper publishes nothing", root);
}

// The dead trainer's files of this version, if it came that far. Its names are free then. Writes of it that are still
// in flight go to files that have no name any more.
Status remove_partial(FileSystem& fs, const std::string& directory, const StagedVersion& version) {
  std::vector<std::string> names{record_file(version.rank), kIndexName};
  for (const StagedFile& file : version.files) names.push_back(file.name);
  for (const std::string& name : names) {
    const Status removed = fs.unlink(fmt::format("{}/{}", directory, name));
    if (!removed && removed.error().kind != ErrorKind::kNotFound) return removed;
  }
  return {};
}

// Slab by slab, each block checked against its digest before it is written: a checkpoint must never get valid digests
// for bytes that were not captured.
Status write_file(FileSystem& fs, const std::string& path, const Region& region, const StagedFile& file,
                  const FileRecord& record, const PublishGate& gate) {
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
  }
  return durable.finish();
}

}  // namespace

Status flush_version(FileSystem& fs, const Clock& clock, const std::string& root, const Region& region,
                     const Region::Kept& kept, PublishGate& gate, const Log& log) {
  const StagedVersion& version = kept.version;
  const std::string directory = version_path(root, version.name);
  if (version.world != 1)
    return fail(ErrorKind::kUnsupported, "a step of several ranks cannot be committed by one keeper", directory);
  SW_ASSIGN(const Record record, parse_record(version.record, directory));
  SW_ASSIGN(Manifest manifest, parse_manifest(version.manifest, directory));
  if (record.files.size() != version.files.size())
    return fail(ErrorKind::kCorrupt, "the record in the keeper's memory is of another version", directory);

  // As a member: the caller holds the lock. accept() makes sure that the attempt is the trainer's. A version that a
  // later attempt went on from stays in memory: nobody can commit it any more under its own attempt.
  SW_ASSIGN(const auto store, VersionStore::open(fs, clock, root, log, VersionStore::Role::kMember));
  SW_TRY(check_newest_attempt(fs, root, version.name.attempt));
  SW_TRY(store->accept(version.name.attempt, version.rank, kept.members[0]));
  const auto decided = read_manifest(fs, root, version.name);
  if (decided) return {};
  if (decided.error().kind != ErrorKind::kNotFound) return fail(decided.error());

  if (!gate.open()) return taken_over(root);
  SW_TRY(ensure_directory(fs, directory));
  SW_TRY(remove_partial(fs, directory, version));
  for (std::size_t i = 0; i < version.files.size(); ++i) {
    const StagedFile& file = version.files[i];
    if (file.name != record.files[i].name || file.size_bytes != record.files[i].size_bytes)
      return fail(ErrorKind::kCorrupt, "the record in the keeper's memory is of another file", directory);
    SW_TRY(write_file(fs, directory + "/" + file.name, region, file, record.files[i], gate));
  }
  if (!gate.open()) return taken_over(root);
  SW_ASSIGN(const RecordReference reference, store->write_record(record, version.index));
  if (manifest.records.size() != 1 || manifest.records[0].digest != reference.digest)
    return fail(ErrorKind::kCorrupt, "the manifest in the keeper's memory names another record", directory);
  Result<Manifest> published = taken_over(root);
  static_cast<void>(gate.pass([&] { published = store->decide(std::move(manifest)); }));
  if (!published) return fail(std::move(published).error());
  return {};
}

}  // namespace slackwater
