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
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "store/s3/object_client.hpp"

namespace slackwater::s3 {

// Whether names and sizes may come from one list of all objects, made at the first question. For readers: a whole
// restore takes one list. It is made again after refresh(), and when an object that it names turns out to be gone.
enum class Names : std::uint8_t { kFresh, kRemembered };

class ObjectFileSystem final : public FileSystem {
 public:
  ObjectFileSystem(std::unique_ptr<ObjectClient> client, std::string root_key, Names names);
  ~ObjectFileSystem() override;

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
  void stop_transfers() override;

  [[nodiscard]] ObjectClient& client() { return *client_; }

  // For the files of this file system.
  [[nodiscard]] Status store_small(const std::string& path, const std::string& key, std::string bytes);
  void noticed_missing(const std::string& key);

 private:
  struct PrivateFile {
    std::string bytes;
    bool linked = false;
  };
  using Listing = std::map<std::string, std::uint64_t>;  // key -> size of every object below the root

  [[nodiscard]] Result<std::string> key_of(const std::string& path) const;
  [[nodiscard]] bool covers(const std::string& key) const;
  [[nodiscard]] Result<std::shared_ptr<const Listing>> listing();
  [[nodiscard]] Result<std::vector<DirectoryEntry>> list_remembered(const Listing& listing, const std::string& prefix);
  [[nodiscard]] Result<std::optional<FileStatus>> look_up(const std::string& key);
  [[nodiscard]] Result<std::optional<FileStatus>> look_up_fresh(const std::string& key);
  void changed();

  // Constant after construction.
  const std::unique_ptr<ObjectClient> client_;
  const std::string root_key_;
  const Names names_;

  std::mutex mutex_;
  std::shared_ptr<const Listing> listing_;       // guarded by mutex_; null: to be made
  std::set<std::string> made_;                   // keys of directories; guarded by mutex_
  std::map<std::string, PrivateFile> privates_;  // by path; guarded by mutex_
  std::set<std::string> not_created_;            // paths; guarded by mutex_; see unlink()
};

}  // namespace slackwater::s3
