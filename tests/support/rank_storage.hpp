// RankStorage: the storage that one rank of a test sees. It is plain storage, or, with SLACKWATER_TEST_NFS=1 in the
// environment, what a separate host sees over NFS (nfs_file_system.hpp). The clock of the NFS caches stands still, so
// nothing expires, and a test that passes does not rely on expiry. A host keeps its caches when a run is restarted, so
// a test names the host that a rank runs on.
// Lifetime: outlives the engine that uses it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "os/file_system.hpp"
#include "support/manual_clock.hpp"
#include "support/nfs_file_system.hpp"

namespace slackwater::test {

[[nodiscard]] inline bool ranks_are_nfs_hosts() {
  const char* const wanted = std::getenv("SLACKWATER_TEST_NFS");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

class RankStorage {
 public:
  explicit RankStorage(bool nfs = ranks_are_nfs_hosts()) {
    if (nfs) nfs_ = std::make_unique<NfsFileSystem>(*real_, clock_);
  }
  [[nodiscard]] FileSystem& fs() { return nfs_ ? *nfs_ : *real_; }
  [[nodiscard]] NfsFileSystem& nfs() { return *nfs_; }  // only if it is one

 private:
  const ManualClock clock_;
  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  std::unique_ptr<NfsFileSystem> nfs_;
};

// The same for the same run and host, as long as the process lives.
[[nodiscard]] inline RankStorage& storage_of_host(const std::string& run, std::uint32_t host) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::uint32_t>, std::unique_ptr<RankStorage>> hosts;
  const std::lock_guard lock(mutex);
  auto& storage = hosts[{run, host}];
  if (!storage) storage = std::make_unique<RankStorage>();
  return *storage;
}

}  // namespace slackwater::test
