// ObjectFileSystem: a bucket of an object store as a FileSystem, so that everything which reads or writes a tier works
// there unchanged. Paths are whole locations: "s3://bucket/run/step-0000000042.a7/index".
//   directories    implied by the names of objects. A directory made by make_directory() exists for this object only.
//   small files    written with one PutObject when they are synced; exclusively, by If-None-Match
//   private names  (".x.tmp") stay in memory until link() gives them a public name
//   large files    begin_upload(): in parts (object_upload.hpp)
//   reads          ranged GETs, many at a time through make_queue()
//   locks          there are none: try_lock() returns kUnsupported
// Thread rule: thread-safe. Lifetime: outlives its files, queues and uploads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "os/file_system.hpp"
#include "store/s3/object_client.hpp"
#include "store/s3/object_listing.hpp"

namespace slackwater::s3 {

// Whether names and sizes come from one remembered list (object_listing.hpp). For readers only. The list is made again
// after refresh(), and when an object that it names turns out to be gone.
enum class ListingCache : std::uint8_t { kOff, kOn };

class ObjectFileSystem final : public FileSystem {
 public:
  ObjectFileSystem(std::unique_ptr<ObjectClient> client, const std::string& root_key, ListingCache cache);

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode, bool direct) override;
  [[nodiscard]] Status make_directory(const std::string& path) override;
  [[nodiscard]] Status sync_directory(const std::string& path) override;
  [[nodiscard]] Status link(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status unlink(const std::string& path) override;
  [[nodiscard]] Status remove_directory(const std::string& path) override;
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  [[nodiscard]] Result<FileStatus> status(const std::string& path) override;
  [[nodiscard]] Result<std::vector<FileEntry>> list_files(const std::string& path) override;
  [[nodiscard]] Result<std::uint64_t> free_bytes(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueOptions& options) override;
  [[nodiscard]] Result<std::unique_ptr<FileUpload>> begin_upload(const std::string& path,
                                                                 std::uint64_t size_bytes) override;
  [[nodiscard]] Result<std::vector<PendingUpload>> list_uploads(const std::string& path) override;
  [[nodiscard]] Status abandon_upload(const PendingUpload& upload) override;
  [[nodiscard]] std::uint64_t accepted_bytes() const override { return client_->sent_bytes(); }
  void refresh() override;
  [[nodiscard]] Result<std::string> remembered_names() override;
  [[nodiscard]] Status learn_names(std::string_view names) override;
  void stop_transfers() override;

  [[nodiscard]] ObjectClient& client() { return *client_; }

  // For the files of this file system.
  [[nodiscard]] Status store_small(const std::string& path, const std::string& key, std::string bytes);

 private:
  struct PrivateFile {
    std::string bytes;
    bool linked = false;
  };

  [[nodiscard]] Result<std::string> key_of(const std::string& path) const;
  [[nodiscard]] bool remembers(const std::string& key) const { return listing_ && listing_->covers(key); }

  // Constant after construction.
  const std::unique_ptr<ObjectClient> client_;
  const std::unique_ptr<ObjectListing> listing_;  // null: ListingCache::kOff

  std::mutex mutex_;
  std::set<std::string> made_;                   // keys of directories; guarded by mutex_
  std::map<std::string, PrivateFile> privates_;  // by path; guarded by mutex_
  std::set<std::string> not_created_;            // paths; guarded by mutex_; see unlink()
};

}  // namespace slackwater::s3
