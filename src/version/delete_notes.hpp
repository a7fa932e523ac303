// Delete notes: files in .slackwater of tier 0 that remember what delete() has removed there while a lower tier still
// has it. The tier may be out of reach for longer than the run lives; the next run finds the note and goes on. Each
// note is about one version and one tier, and is unlinked when that tier has followed.
// A note is written before the version goes. It is *in force* once tier 0 has no manifest of the version. Before that,
// nothing was deleted, and it says nothing. Whoever removes a version from tier 0 for another reason withdraws its
// notes first (VersionRemover), so that no note comes into force because of that.
// What a note allows to be deleted is in retention.hpp. Plain values and functions without state. Thread rule: any
// thread, but one writer for each version.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

struct DeleteNote {
  VersionName version;
  std::string run;   // that saved it, as its manifest says; empty: it could not be read
  std::string tier;  // noted_location() of the lower tier
  friend auto operator<=>(const DeleteNote&, const DeleteNote&) = default;
};

inline constexpr std::uint64_t kMaxDeleteNoteBytes = 64u << 10;

// How a note names a tier: a directory by its absolute path, so that it is the same one from anywhere.
[[nodiscard]] std::string noted_location(const std::string& root);

[[nodiscard]] std::string serialize(const DeleteNote& note);
[[nodiscard]] Result<DeleteNote> parse_delete_note(std::string_view text, const std::string& path);

// `root` is that of tier 0, everywhere below.

// Durable when it returns. A note of the same version and tier that says something else is replaced.
[[nodiscard]] Status write_delete_note(FileSystem& fs, const std::string& root, const DeleteNote& note);

// The tier has followed: it is never told again, even if somebody copies the version there later.
[[nodiscard]] Status erase_delete_note(FileSystem& fs, const std::string& root, const VersionName& version,
                                       const std::string& tier);

// Nothing was deleted, or the version goes for another reason.
[[nodiscard]] Status withdraw_delete_notes(FileSystem& fs, const std::string& root, const VersionName& version);
// A restore could not read the notes, and has chosen a version that was deleted. The run goes on from it, so no tier
// may delete it any more: call it before the attempt that adopts the version. `run` saved it; empty: unknown. Returns
// the tiers that were to delete it.
[[nodiscard]] Result<std::vector<std::string>> take_back_delete(FileSystem& fs, const std::string& root,
                                                                const VersionName& version, const std::string& run);
// All that are not in force: a crash came between a note and what it was to announce. Call it with the lock held, while
// no delete() runs.
[[nodiscard]] Status withdraw_void_delete_notes(FileSystem& fs, const std::string& root);

struct DeleteNotes {
  std::vector<DeleteNote> notes;
  std::vector<std::string> warnings;  // one sentence per note that is ignored, because it is damaged or not readable
};
// All notes below `root`, in force or not.
[[nodiscard]] Result<DeleteNotes> list_delete_notes(FileSystem& fs, const std::string& root);
// Those in force.
[[nodiscard]] Result<DeleteNotes> pending_deletes(FileSystem& fs, const std::string& root);

}  // namespace slackwater
