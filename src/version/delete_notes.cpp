#include "version/delete_notes.hpp"

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "os/retry.hpp"
#include "store/s3/locations.hpp"
#include "version/attempt.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"
#include "version/retention.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kDeleteNoteFormat = 1;

std::string note_path(const std::string& root, const std::string& name) {
  return fmt::format("{}/{}", control_path(root), name);
}

// The names of notes, damaged ones too. A link or a directory of that name is none, and nobody waits for a pipe.
Result<std::vector<std::string>> note_names(FileSystem& fs, const std::string& root) {
  std::vector<std::string> names;
  const auto entries = retry_read([&] { return fs.list(control_path(root)); });
  if (!entries && entries.error().kind == ErrorKind::kNotFound) return names;
  if (!entries) return fail(entries.error());
  for (const DirectoryEntry& entry : *entries)
    if (entry.type == FileType::kRegular && parse_delete_note_file(entry.name)) names.push_back(entry.name);
  return names;
}

Result<DeleteNote> read_note(FileSystem& fs, const std::string& root, const std::string& name) {
  const std::string path = note_path(root, name);
  SW_ASSIGN(const std::string text, read_listed(fs, control_path(root), name, kMaxDeleteNoteBytes));
  SW_ASSIGN(DeleteNote note, parse_delete_note(text, path));
  if (delete_note_file(note.version, note.tier) != name)
    return corrupt("the note is about another version or tier than its name says", path);
  return note;
}

// Whether the version is gone from tier 0. Its directory may still be there, without a manifest.
Result<bool> is_in_force(FileSystem& fs, const std::string& root, const VersionName& version) {
  const auto decided = retry_read([&] { return lists_name(fs, version_path(root, version), kManifestName); });
  if (decided) return !*decided;
  if (decided.error().kind == ErrorKind::kNotFound) return true;
  return fail(decided.error());
}

std::string ignored_note(const std::string& name, const Error& why) {
  return fmt::format(
      "the note {} of a delete() is ignored, so the step may still be live on a lower tier (slackwater rm removes it "
      "there): {}",
      name, why.to_string());
}

Status unlink_notes(FileSystem& fs, const std::string& root, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    Status unlinked = fs.unlink(note_path(root, name));
    if (!unlinked && unlinked.error().kind != ErrorKind::kNotFound) return unlinked;
  }
  // They must not come back after a power cut.
  return names.empty() ? Status() : fs.sync_directory(control_path(root));
}

}  // namespace

std::string noted_location(const std::string& root) {
  if (is_object_location(root)) return root;
  std::error_code trouble;
  const std::filesystem::path path = std::filesystem::absolute(root, trouble);
  return trouble ? root : path.lexically_normal().string();
}

std::string serialize(const DeleteNote& note) {
  return seal_json({{"format", kDeleteNoteFormat},
                    {"step", note.version.step},
                    {"attempt", note.version.attempt},
                    {"run", note.run},
                    {"tier", note.tier}});
}

Result<DeleteNote> parse_delete_note(std::string_view text, const std::string& path) {
  SW_ASSIGN(const Json json, open_sealed_json(text, path));
  SW_TRY(check_format(json, kDeleteNoteFormat, "delete note", path));
  DeleteNote note;
  SW_ASSIGN(note.version.step, json_u64(json, "step", path));
  SW_ASSIGN(note.version.attempt, json_u32(json, "attempt", path));
  SW_ASSIGN(note.run, json_string(json, "run", path));
  SW_ASSIGN(note.tier, json_string(json, "tier", path));
  return note;
}

Status write_delete_note(FileSystem& fs, const std::string& root, const DeleteNote& note) {
  const std::string name = delete_note_file(note.version, note.tier);
  const std::string text = serialize(note);
  Status written = publish_exclusively(fs, control_path(root), name, text, random_id());
  if (written || written.error().kind != ErrorKind::kAlreadyExists) return written;
  // An earlier delete() failed behind it, or it is damaged.
  const auto there = retry_read([&] { return read_whole(fs, note_path(root, name), kMaxDeleteNoteBytes); });
  if (there && *there == text) return fs.sync_directory(control_path(root));
  SW_TRY(unlink_notes(fs, root, {name}));
  return publish_exclusively(fs, control_path(root), name, text, random_id());
}

Status erase_delete_note(FileSystem& fs, const std::string& root, const VersionName& version, const std::string& tier) {
  return unlink_notes(fs, root, {delete_note_file(version, tier)});
}

Status withdraw_delete_notes(FileSystem& fs, const std::string& root, const VersionName& version) {
  SW_ASSIGN(std::vector<std::string> names, note_names(fs, root));
  std::erase_if(names, [&](const std::string& name) { return parse_delete_note_file(name) != version; });
  return unlink_notes(fs, root, names);
}

Result<std::vector<std::string>> take_back_delete(FileSystem& fs, const std::string& root, const VersionName& version,
                                                  const std::string& run) {
  SW_ASSIGN(const std::vector<std::string> listed, note_names(fs, root));
  std::vector<std::string> names;
  std::vector<std::string> tiers;
  for (const std::string& name : listed) {
    if (parse_delete_note_file(name) != version) continue;
    const auto note = read_note(fs, root, name);
    if (note && !is_meant(*note, run)) continue;  // another version of that name
    names.push_back(name);
    // One that cannot be read now may be readable, and followed, later.
    tiers.push_back(note ? note->tier : fmt::format("a tier (its note {} cannot be read)", name));
  }
  SW_TRY(unlink_notes(fs, root, names));
  return tiers;
}

Status withdraw_void_delete_notes(FileSystem& fs, const std::string& root) {
  SW_ASSIGN(const std::vector<std::string> names, note_names(fs, root));
  std::vector<std::string> void_names;
  for (const std::string& name : names) {
    SW_ASSIGN(const bool in_force, is_in_force(fs, root, *parse_delete_note_file(name)));
    if (!in_force) void_names.push_back(name);
  }
  return unlink_notes(fs, root, void_names);
}

Result<DeleteNotes> list_delete_notes(FileSystem& fs, const std::string& root) {
  SW_ASSIGN(const std::vector<std::string> names, note_names(fs, root));
  DeleteNotes found;
  for (const std::string& name : names) {
    auto note = read_note(fs, root, name);
    if (note) {
      found.notes.push_back(std::move(*note));
    } else if (note.error().kind != ErrorKind::kNotFound) {  // its tier has followed since it was listed
      found.warnings.push_back(ignored_note(name, note.error()));
    }
  }
  return found;
}

Result<DeleteNotes> pending_deletes(FileSystem& fs, const std::string& root) {
  SW_ASSIGN(DeleteNotes found, list_delete_notes(fs, root));
  std::vector<DeleteNote> pending;
  for (DeleteNote& note : found.notes) {
    const auto in_force = is_in_force(fs, root, note.version);
    if (!in_force)
      found.warnings.push_back(ignored_note(delete_note_file(note.version, note.tier), in_force.error()));
    else if (*in_force)
      pending.push_back(std::move(note));
  }
  found.notes = std::move(pending);
  return found;
}

}  // namespace slackwater
