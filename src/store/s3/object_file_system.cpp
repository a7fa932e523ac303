#include "store/s3/object_file_system.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "os/thread_queue.hpp"
#include "store/s3/multipart.hpp"
#include "store/s3/object_file.hpp"
#include "store/s3/object_upload.hpp"

namespace slackwater::s3 {
namespace {

constexpr unsigned kReadersAtOnce = 16;
constexpr std::uint64_t kMaxLinkedBytes = 256u << 20;  // a manifest

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Names that nobody else looks for (os/durable.hpp).
bool is_private(std::string_view path) {
  const std::string_view name = base_name(path);
  return name.starts_with('.') && name.ends_with(".tmp");
}

std::unexpected<Error> not_found(std::string what, const std::string& path) {
  return fail(Error{.kind = ErrorKind::kNotFound, .message = std::move(what), .path = path});
}

// An object and a "directory" may have the same name. The object comes first, as in status().
void sort_entries(std::vector<DirectoryEntry>& entries) {
  std::erase_if(entries, [](const DirectoryEntry& entry) { return entry.name.empty(); });
  std::ranges::stable_sort(entries, {}, &DirectoryEntry::name);
  const auto same = std::ranges::unique(entries, {}, &DirectoryEntry::name);
  entries.erase(same.begin(), same.end());
}

// What the store has under this name. nullopt: nothing. One list tells whether it is an object or a directory, unless
// other names come between the two.
Result<std::optional<FileStatus>> look_up(ObjectClient& client, const std::string& key) {
  const std::string prefix = directory_prefix(key);
  constexpr unsigned kEnough = 4;
  SW_ASSIGN(const ObjectPage page, client.list_page(key, "/", kEnough));
  for (const ObjectInfo& object : page.objects)
    if (object.key == key) return FileStatus{FileType::kRegular, object.size_bytes, 1};
  if (std::ranges::find(page.prefixes, prefix) != page.prefixes.end()) return FileStatus{FileType::kDirectory, 0, 1};
  if (page.next.empty()) return std::nullopt;
  SW_ASSIGN(const ObjectPage below, client.list_page(prefix, {}, 1));
  if (below.objects.empty()) return std::nullopt;
  return FileStatus{FileType::kDirectory, 0, 1};
}

}  // namespace

ObjectFileSystem::ObjectFileSystem(std::unique_ptr<ObjectClient> client, const std::string& root_key,
                                   ListingCache cache)
    : client_(std::move(client)),
      listing_(cache == ListingCache::kOn ? std::make_unique<ObjectListing>(*client_, root_key) : nullptr) {}

// Names.

Result<std::string> ObjectFileSystem::key_of(const std::string& path) const {
  SW_ASSIGN(ObjectLocation location, parse_object_location(path));
  if (location.bucket != client_->bucket())
    return fail(ErrorKind::kInvalidArgument, fmt::format("this is not in bucket '{}'", client_->bucket()), path);
  return std::move(location.key);
}

void ObjectFileSystem::refresh() {
  if (listing_) listing_->forget();
}

Result<std::string> ObjectFileSystem::remembered_names() {
  if (!listing_) return std::string();
  return listing_->to_text();
}

Status ObjectFileSystem::learn_names(std::string_view names) {
  if (!listing_) return {};
  return listing_->learn(names);
}

Result<std::vector<DirectoryEntry>> ObjectFileSystem::list(const std::string& path) {
  SW_ASSIGN(const std::string key, key_of(path));
  const std::string prefix = directory_prefix(key);
  std::vector<DirectoryEntry> entries;
  if (remembers(key)) {
    SW_ASSIGN(entries, listing_->entries(prefix));
  } else {
    SW_ASSIGN(const ObjectPage page, list_own(*client_, prefix, "/"));
    for (const ObjectInfo& object : page.objects) entries.push_back(entry_behind(object.key, prefix.size()));
    for (const std::string& found : page.prefixes) entries.push_back(entry_behind(found, prefix.size()));
  }
  sort_entries(entries);
  if (entries.empty()) {
    const std::lock_guard lock(mutex_);
    if (!made_.contains(key)) return not_found("there are no objects below this name", path);
  }
  return entries;
}

Result<std::vector<FileEntry>> ObjectFileSystem::list_files(const std::string& path) {
  SW_ASSIGN(const std::string key, key_of(path));
  const std::string prefix = directory_prefix(key);
  SW_ASSIGN(ObjectPage all, list_own(*client_, prefix, {}));
  std::vector<FileEntry> files;
  for (const ObjectInfo& object : all.objects)
    if (object.key.size() > prefix.size()) files.push_back({object.key.substr(prefix.size()), object.size_bytes});
  std::ranges::sort(files, {}, &FileEntry::name);
  return files;
}

Result<FileStatus> ObjectFileSystem::status(const std::string& path) {
  SW_ASSIGN(const std::string key, key_of(path));
  {
    const std::lock_guard lock(mutex_);
    if (made_.contains(key)) return FileStatus{FileType::kDirectory, 0, 1};
    if (const auto found = privates_.find(path); found != privates_.end())
      return FileStatus{FileType::kRegular, found->second.bytes.size(), found->second.linked ? 2u : 1u};
  }
  SW_ASSIGN(const auto found, remembers(key) ? listing_->find(key) : look_up(*client_, key));
  if (found) return *found;
  return not_found("there is no such object", path);
}

// Directories.

Status ObjectFileSystem::make_directory(const std::string& path) {
  SW_ASSIGN(std::string key, key_of(path));
  const std::lock_guard lock(mutex_);
  made_.insert(std::move(key));
  return {};
}

// An object is durable, and so is its name, when the store says that it was written.
Status ObjectFileSystem::sync_directory(const std::string& /*path*/) { return {}; }

Status ObjectFileSystem::remove_directory(const std::string& path) {
  SW_ASSIGN(const std::string key, key_of(path));
  SW_ASSIGN(const ObjectPage below, client_->list_page(directory_prefix(key), {}, 1));
  if (!below.objects.empty()) {
    return fail(Error{.kind = ErrorKind::kIo,
                      .message = "cannot remove the directory: there are objects below this name",
                      .path = path,
                      .sys_errno = ENOTEMPTY});
  }
  const std::lock_guard lock(mutex_);
  made_.erase(key);
  return {};
}

// Files.

Result<std::unique_ptr<File>> ObjectFileSystem::open(const std::string& path, OpenMode mode, bool /*direct*/) {
  SW_ASSIGN(std::string key, key_of(path));
  if (mode == OpenMode::kCreateExclusive) {
    const std::lock_guard lock(mutex_);
    if (privates_.contains(path)) return fail(ErrorKind::kAlreadyExists, "cannot create the file", path);
    return std::make_unique<SmallFile>(*this, path, std::move(key), std::string(), FileStatus{.link_count = 1}, true);
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = privates_.find(path); found != privates_.end()) {
      const FileStatus status{FileType::kRegular, found->second.bytes.size(), found->second.linked ? 2u : 1u};
      return std::make_unique<SmallFile>(*this, path, std::move(key), found->second.bytes, status, false);
    }
  }
  std::uint64_t size_bytes = 0;
  if (remembers(key)) {
    SW_ASSIGN(const auto found, listing_->find(key));
    if (!found || found->type != FileType::kRegular) return not_found("there is no such object", path);
    size_bytes = found->size_bytes;
  } else {
    SW_ASSIGN(size_bytes, client_->size_of(key));
  }
  return std::make_unique<ObjectFile>(*this, path, std::move(key), size_bytes);
}

Status ObjectFileSystem::store_small(const std::string& path, const std::string& key, std::string bytes) {
  if (is_private(path)) {
    const std::lock_guard lock(mutex_);
    privates_.insert_or_assign(path, PrivateFile{std::move(bytes)});
    return {};
  }
  refresh();
  Status created = client_->create(key, bytes);
  const std::lock_guard lock(mutex_);
  if (!created) not_created_.insert(path);
  return created;
}

Status ObjectFileSystem::link(const std::string& from, const std::string& to) {
  SW_ASSIGN(const std::string to_key, key_of(to));
  std::optional<std::string> bytes;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = privates_.find(from); found != privates_.end()) bytes = found->second.bytes;
  }
  if (!bytes) {
    SW_ASSIGN(const std::string from_key, key_of(from));
    SW_ASSIGN(bytes, client_->read_whole(from_key, kMaxLinkedBytes));
  }
  refresh();
  SW_TRY(client_->create(to_key, *bytes));
  const std::lock_guard lock(mutex_);
  if (const auto found = privates_.find(from); found != privates_.end()) found->second.linked = true;
  return {};
}

Status ObjectFileSystem::unlink(const std::string& path) {
  SW_ASSIGN(const std::string key, key_of(path));
  {
    const std::lock_guard lock(mutex_);
    if (privates_.erase(path) > 0) return {};
    // Whoever could not create a file removes what is left of it (os/durable.hpp). Of an object nothing is left, and
    // one of that name is somebody else's.
    if (not_created_.erase(path) > 0) return {};
  }
  refresh();
  return client_->remove(key);
}

Result<std::uint64_t> ObjectFileSystem::free_bytes(const std::string& /*path*/) { return std::uint64_t{1} << 62; }

Result<std::unique_ptr<FileLock>> ObjectFileSystem::try_lock(const std::string& path) {
  return fail(Error{.kind = ErrorKind::kUnsupported,
                    .message = "an object store has no locks",
                    .path = path,
                    .sys_errno = EOPNOTSUPP});
}

Result<std::unique_ptr<IoQueue>> ObjectFileSystem::make_queue(const IoQueueOptions& options) {
  return ThreadQueue::create(options, {}, kReadersAtOnce);
}

// Uploads.

Result<std::unique_ptr<FileUpload>> ObjectFileSystem::begin_upload(const std::string& path, std::uint64_t size_bytes) {
  SW_ASSIGN(std::string key, key_of(path));
  refresh();
  return ObjectUpload::begin(*client_, std::move(key), size_bytes);
}

Result<std::vector<PendingUpload>> ObjectFileSystem::list_uploads(const std::string& path) {
  SW_ASSIGN(const std::string key, key_of(path));
  // Only data files are uploaded in parts.
  const std::string prefix = key.empty() ? std::string(kOwnNames.back()) : directory_prefix(key);
  SW_ASSIGN(const std::vector<UploadInfo> found, s3::list_uploads(*client_, prefix));
  std::vector<PendingUpload> uploads;
  for (const UploadInfo& upload : found) uploads.push_back({client_->path_of(upload.key), upload.id});
  return uploads;
}

Status ObjectFileSystem::abandon_upload(const PendingUpload& upload) {
  SW_ASSIGN(std::string key, key_of(upload.path));
  return abort_upload(*client_, {std::move(key), upload.id});
}

void ObjectFileSystem::stop_transfers() { client_->stop(); }

}  // namespace slackwater::s3
