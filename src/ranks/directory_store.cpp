#include "ranks/directory_store.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/durable.hpp"
#include "ranks/message_names.hpp"
#include "version/attempt.hpp"

namespace slackwater {
namespace {

std::string directory_of(const std::string& key) {
  const std::size_t slash = key.rfind('/');
  return slash == std::string::npos ? "" : key.substr(0, slash);
}

std::string key_in(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : fmt::format("{}/{}", directory, name);
}

std::string name_of(const std::string& key) { return key.substr(key.rfind('/') + 1); }

bool no_space(const Status& status) { return !status && status.error().kind == ErrorKind::kNoSpace; }

}  // namespace

DirectoryStore::DirectoryStore(FileSystem& fs, const Clock& clock, std::string root)
    : fs_(fs), root_(std::move(root)), reserve_(fs, clock, root_), seen_{""} {}

std::string DirectoryStore::path_of(const std::string& key) const {
  return key.empty() ? root_ : fmt::format("{}/{}", root_, key);
}

bool DirectoryStore::has(const std::string& directory) const {
  std::lock_guard lock(mutex_);
  return seen_.contains(directory);
}

bool DirectoryStore::is_still_there(const std::string& directory) {
  const auto entries = fs_.list(path_of(directory));
  return entries || entries.error().kind != ErrorKind::kNotFound;
}

// A directory may not exist yet. Until it was seen, it is looked up in the listing of its parent (see the header).
Result<DirectoryStore::Entries> DirectoryStore::list_entries(const std::string& directory) {
  if (has(directory)) {
    auto entries = fs_.list(path_of(directory));
    if (entries || directory.empty() || entries.error().kind != ErrorKind::kNotFound) return entries;
  }
  const std::string above = directory_of(directory);
  const auto siblings = fs_.list(path_of(above));
  if (siblings || siblings.error().kind == ErrorKind::kNotFound) {
    std::lock_guard lock(mutex_);
    std::erase_if(seen_, [&](const std::string& each) { return each == above || directory_of(each) == above; });
    if (siblings) seen_.insert(above);
    for (const DirectoryEntry& each : siblings.value_or(Entries())) seen_.insert(key_in(above, each.name));
  }
  if (!siblings) return fail(siblings.error());
  if (!has(directory)) return fail(ErrorKind::kNotFound, "no message has arrived yet", path_of(directory));
  return fs_.list(path_of(directory));
}

Result<std::set<std::string>> DirectoryStore::list(const std::string& directory) {
  SW_ASSIGN(const Entries entries, list_entries(directory));
  std::set<std::string> names;
  for (const DirectoryEntry& entry : entries) {
    const auto piece = parse_name_piece(entry.name);
    if (entry.type == FileType::kDirectory) {
      names.insert(entry.name + "/");
    } else if (!piece || piece->completes()) {
      names.insert(piece ? piece->file : entry.name);
    }
  }
  return names;
}

std::optional<std::string> DirectoryStore::read(const std::string& key, const Entries& entries) {
  if (std::ranges::binary_search(entries, name_of(key), {}, &DirectoryEntry::name)) {
    auto value = read_whole(fs_, path_of(key), kMaxValueBytes);
    return value ? std::optional(std::move(*value)) : std::nullopt;
  }
  const std::string start = name_of(key) + "=";
  auto entry = std::ranges::lower_bound(entries, start, {}, &DirectoryEntry::name);
  for (; entry != entries.end() && entry->name.starts_with(start); ++entry) {
    const auto piece = parse_name_piece(entry->name);
    if (!piece || !piece->completes()) continue;
    if (auto value = spelled_text(entries, *piece)) return value;
  }
  return std::nullopt;
}

Result<std::vector<std::optional<std::string>>> DirectoryStore::get(const std::vector<std::string>& keys) {
  std::map<std::string, Entries> listed;
  std::vector<std::optional<std::string>> values(keys.size());
  std::uint64_t size_bytes = 0;
  for (std::size_t i = 0; i < keys.size() && size_bytes < kMaxGetBytes; ++i) {
    const auto [entries, first] = listed.try_emplace(directory_of(keys[i]));
    if (first) entries->second = list_entries(entries->first).value_or(Entries());
    values[i] = read(keys[i], entries->second);
    size_bytes += values[i] ? values[i]->size() : 0;
  }
  return values;
}

Status DirectoryStore::set(const std::string& key, const std::string& value) {
  remove({key});
  return create(key, value);
}

Status DirectoryStore::create(const std::string& key, const std::string& value) {
  Status made = spelled_ ? check_missing(key) : Status();
  if (made) made = write_file(key, value);
  // Even if the disk is full to the last byte, the ranks must be able to restore from it.
  if (no_space(made)) {
    reserve_.release();
    made = write_file(key, value);
  }
  if (no_space(made)) {
    if (const Status spelled = write_names(key, value); !no_space(spelled)) made = spelled;
  }
  if (made) {
    std::lock_guard lock(mutex_);
    seen_.insert({directory_of(key), directory_of(directory_of(key))});
  }
  return made;
}

Status DirectoryStore::write_file(const std::string& key, const std::string& value) {
  const std::string directory = path_of(directory_of(key));
  SW_TRY(ensure_directory(fs_, directory));
  const std::string private_path = fmt::format("{}/.{}.{}.tmp", directory, name_of(key), random_id());
  const auto write = [&]() -> Status {
    SW_ASSIGN(auto file, fs_.open(private_path, OpenMode::kCreateExclusive, false));
    SW_TRY(file->write_at(std::as_bytes(std::span(value)), 0));
    return file->close();  // NFS sends it to the server here; it need not be durable
  };
  Status status = write();
  if (status) status = link_exclusively(fs_, private_path, path_of(key));
  (void)fs_.unlink(private_path);
  return status;
}

// kAlreadyExists: the key has a value, in whatever form.
Status DirectoryStore::check_missing(const std::string& key) {
  SW_TRY(ensure_directory(fs_, path_of(directory_of(key))));
  SW_ASSIGN(const std::set<std::string> names, list(directory_of(key)));
  if (!names.contains(name_of(key))) return {};
  return fail(ErrorKind::kAlreadyExists, "this rank has already sent a message about this", path_of(key));
}

// Creates empty files: tmpfs can do that without a free block, ext4 as long as the directory has space for the names.
Status DirectoryStore::write_names(const std::string& key, const std::string& value) {
  SW_TRY(check_missing(key));
  const std::string directory = path_of(directory_of(key));
  const std::vector<std::string> names = spell_in_names(name_of(key), value);
  if (names.empty()) {
    return fail(ErrorKind::kNoSpace, "the disk is full, and the message is too long to be stored in file names",
                directory);
  }
  spelled_ = true;
  for (const std::string& name : names) {
    const auto made = fs_.open(fmt::format("{}/{}", directory, name), OpenMode::kCreateExclusive, false);
    if (made || made.error().kind == ErrorKind::kAlreadyExists) continue;  // the same piece of the same value
    remove({key});
    return fail(made.error());
  }
  return {};
}

void DirectoryStore::remove(const std::vector<std::string>& keys) {
  std::map<std::string, std::set<std::string>> missing;  // by directory: names spelled in other names, or missing
  for (const std::string& key : keys) {
    const Status removed = fs_.unlink(path_of(key));
    if (!removed && removed.error().kind == ErrorKind::kNotFound) missing[directory_of(key)].insert(name_of(key));
  }
  for (const auto& [directory, names] : missing) {
    for (const DirectoryEntry& entry : list_entries(directory).value_or(Entries())) {
      const auto piece = parse_name_piece(entry.name);
      if (piece ? names.contains(piece->file) : names.contains(entry.name))
        (void)fs_.unlink(path_of(key_in(directory, entry.name)));
    }
  }
}

Status DirectoryStore::replace(const std::vector<std::string>& others, const std::string& directory,
                               std::uint32_t world) {
  const auto remove_others = [&] {
    for (const std::string& other : others) remove_tree(other);
  };
  auto made = ensure_directory(fs_, path_of(directory));  // first, so that ranks can join while the others are removed
  if (!made && made.error().kind == ErrorKind::kNoSpace) {
    remove_others();
    reserve_.release();
    made = ensure_directory(fs_, path_of(directory));
  }
  if (!made) return fail(std::move(made).error());
  {
    std::lock_guard lock(mutex_);
    seen_.insert(directory);
  }
  remove_others();
  reserve_world_ = world;
  keep_reserve();
  return {};
}

// A rank that looks for its run may join an old session at the same time, and so bring its directory back. Hence
// several passes.
void DirectoryStore::remove_tree(const std::string& directory) {
  constexpr int kPasses = 16;
  const std::string path = path_of(directory);
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto below = fs_.list(path);
    if (!below) return;
    for (const DirectoryEntry& each : *below) {
      if (each.type != FileType::kDirectory) continue;
      const std::string inner = fmt::format("{}/{}", path, each.name);
      for (const DirectoryEntry& file : fs_.list(inner).value_or(Entries()))
        (void)fs_.unlink(fmt::format("{}/{}", inner, file.name));
      (void)fs_.remove_directory(inner);
    }
    if (fs_.remove_directory(path)) return;
  }
}

void DirectoryStore::keep_reserve() {
  if (const std::uint32_t world = reserve_world_; world > 0) reserve_.keep(world);
}

}  // namespace slackwater
