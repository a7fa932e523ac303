#include "engine/part.hpp"

#include <fmt/format.h>

#include "base/json.hpp"
#include "base/result.hpp"
#include "os/durable.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"
#include "version/version_store.hpp"

namespace slackwater {
namespace {

constexpr const char* kWhere = "the part of a rank";  // in errors; a part is no file

std::string directory_of(const PartPlace& place) { return version_path(place.root, {place.step, place.attempt}); }

}  // namespace

std::string serialize(const Part& part) {
  return seal_json({{"run", part.place.run},
                    {"step", part.place.step},
                    {"attempt", part.place.attempt},
                    {"rank", part.place.rank},
                    {"world", part.place.world},
                    {"record", to_hex(part.record)},
                    {"size_bytes", part.size_bytes},
                    {"index", part.index_text}});
}

Result<Part> parse_part(std::string_view text) {
  SW_ASSIGN(const Json json, open_sealed_json(text, kWhere));
  Part part;
  SW_ASSIGN(part.place.run, json_string(json, "run", kWhere));
  SW_ASSIGN(part.place.step, json_u64(json, "step", kWhere));
  SW_ASSIGN(part.place.attempt, json_u32(json, "attempt", kWhere));
  SW_ASSIGN(part.place.rank, json_u32(json, "rank", kWhere));
  SW_ASSIGN(part.place.world, json_u32(json, "world", kWhere));
  SW_ASSIGN(part.record, json_digest(json, "record", kWhere));
  SW_ASSIGN(part.size_bytes, json_u64(json, "size_bytes", kWhere));
  SW_ASSIGN(part.index_text, json_string(json, "index", kWhere));
  return part;
}

Result<std::string> prepare_directory(FileSystem& fs, const PartPlace& place) {
  const std::string directory = directory_of(place);
  const std::string own = RankFiles::of_world(place.world).directory(place.rank);
  if (!own.empty()) SW_TRY(ensure_directory(fs, fmt::format("{}/{}", directory, own)));
  return directory;
}

Result<RecordReference> write_part_record(FileSystem& fs, const PartPlace& place, const Record& record) {
  return VersionStore::write_record_files(fs, place.root, RankFiles::of_world(place.world), record, "");
}

Status remove_part(FileSystem& fs, const PartPlace& place) {
  std::string directory = directory_of(place);
  const std::string own = RankFiles::of_world(place.world).directory(place.rank);
  if (!own.empty()) directory += "/" + own;
  const auto entries = fs.list(directory);
  if (!entries) return entries.error().kind == ErrorKind::kNotFound ? Status() : fail(entries.error());
  Status first;
  for (const DirectoryEntry& entry : *entries) {
    if (rank_of_file(entry.name) != std::optional(place.rank)) continue;
    if (Status gone = fs.unlink(fmt::format("{}/{}", directory, entry.name)); !gone && first) first = std::move(gone);
  }
  return first;
}

}  // namespace slackwater
