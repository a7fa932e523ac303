#include "engine/node_exchange.hpp"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "ranks/poll.hpp"
#include "ranks/restore_chooser.hpp"
#include "version/delete_notes.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr const char* kNodesChannel = "node-catalogs";
constexpr unsigned kPollsPerLook = 8;
constexpr std::uint64_t kMaxSentIndexBytes = 16u << 20;  // a larger one is read from a lower tier
constexpr int kNodeQuarters = 5;                         // of commit_timeout

// The small files of this node's directory, by name below its root.
Result<Json> own_files(FileSystem& fs, const std::string& root, std::vector<DeleteNote>& noted) {
  Json files = Json::object();
  SW_ASSIGN(const Catalog catalog, scan_catalog(fs, root));
  const auto add = [&](const std::string& directory, const std::string& name, std::uint64_t max_bytes) {
    const auto text = read_listed(fs, fmt::format("{}/{}", root, directory), name, max_bytes);
    if (text) files[fmt::format("{}/{}", directory, name)] = *text;
  };
  if (catalog.newest_attempt) add(kControlDirectory, attempt_file(catalog.newest_attempt->number), kMaxAttemptBytes);
  const CatalogEntry* newest = nullptr;
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.state == VersionState::kUndecided || entry.error) continue;
    add(version_directory(entry.name), kManifestName, kMaxManifestBytes);
    if (entry.state == VersionState::kLive) newest = &entry;
  }
  if (newest != nullptr) add(version_directory(newest->name), kIndexName, kMaxSentIndexBytes);
  // All ranks must leave out the same versions. Only this node can tell whether a note is in force.
  if (const auto pending = pending_deletes(fs, root)) {
    for (const DeleteNote& note : pending->notes) {
      add(kControlDirectory, delete_note_file(note.version, note.tier), kMaxDeleteNoteBytes);
      noted.push_back(note);
    }
  }
  return files;
}

}  // namespace

Result<std::vector<DeleteNote>> exchange_node_catalogs(EngineShared& shared, std::uint64_t call,
                                                       OtherNodesFiles& others) {
  const Options& options = shared.options;
  const bool leads =
      shared.versions.exclusive([&](VersionStore& store) { return options.rank == 0 || store.attempt().lead_node(); });
  Json files = Json::object();
  std::vector<DeleteNote> noted;
  if (leads) {
    SW_ASSIGN(files, own_files(*shared.fs, options.path, noted));
  }
  const Topic own{kNodesChannel, 1, call};
  SW_TRY(shared.transport->publish(own, options.rank, Message(Json{{"files", std::move(files)}})));

  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < options.world; ++rank) {
    if (rank != options.rank) missing.push_back(rank);
  }
  const auto take = [&](std::uint32_t rank, const Message& message) {
    std::erase(missing, rank);
    if (const auto sent = json_object(message.body, "files", kNodesChannel)) {
      for (const auto& [name, text] : (*sent)->items())
        if (text.is_string()) others.add(name, text.get<std::string>());
    }
    return true;
  };
  Poll poll(*shared.clock, shared.protocol->deadline({}, kNodeQuarters));
  for (unsigned polls = 1; !missing.empty(); ++polls) {
    const std::vector<std::uint32_t> asked = missing;
    SW_TRY(shared.protocol->poll_once(own, asked, {}, take));
    // A rank may have called restore() more or less often than this one. What it sent last is what its node has.
    if (polls % kPollsPerLook == 0 && !missing.empty()) {
      for (const auto& [rank, number] : shared.transport->latest({kNodesChannel, 1, 0}, std::vector(missing)))
        SW_TRY(shared.protocol->poll_once({kNodesChannel, 1, number}, {rank}, {}, take));
    }
    if (missing.empty()) break;
    SW_ASSIGN(const bool again, poll.again());
    if (!again) return fail(silent_ranks(missing, "did not call restore", options.commit_timeout, kNodeQuarters));
  }
  if (options.rank != 0) return noted;
  SW_ASSIGN(DeleteNotes heard, list_delete_notes(others, OtherNodesFiles::kRoot));
  return std::move(heard.notes);
}

Status settle_node(EngineShared& shared, FileSystem& all, const VersionName& version) {
  const std::string& root = shared.options.path;
  const auto listed = lists_name(*shared.fs, version_path(root, version), kManifestName);
  if (!listed && listed.error().kind == ErrorKind::kNotFound) return {};  // nothing of it is here
  if (!listed) return fail(listed.error());
  if (*listed) return {};
  SW_ASSIGN(const std::uint32_t newest, newest_attempt_number(all, root));
  SW_ASSIGN(const std::string attempt, read_listed(all, control_path(root), attempt_file(newest), kMaxAttemptBytes));
  const std::string directory = version_path(root, version);
  SW_ASSIGN(const std::string manifest, read_listed(all, directory, kManifestName, kMaxManifestBytes));
  const auto index = read_listed(all, directory, kIndexName, kMaxSentIndexBytes);
  return shared.versions.exclusive([&](VersionStore& store) -> Status {
    SW_TRY(store.attempt().place(attempt));
    return store.place_decision(version, manifest, index.value_or(""));
  });
}

}  // namespace slackwater
