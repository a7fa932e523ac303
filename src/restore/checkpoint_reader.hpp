// Opening and verifying one version, with memory of one's own or with the engine's pool.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "commit/catalog.hpp"
#include "device/devices.hpp"
#include "os/file_system.hpp"
#include "restore/version_contents.hpp"
#include "slackwater/checkpoint.hpp"
#include "stage/pool.hpp"

namespace slackwater {

struct ReaderParts {
  FileSystem* fs = nullptr;           // outlives the Checkpoint
  Pool* pool = nullptr;               // outlives it too; null: the checkpoint makes its own at the first read
  Devices* devices = nullptr;         // outlives it too; null: only targets in host memory
  std::optional<Viewer> viewer = {};  // a rank that restores; nullopt: sees the tensors of all (see load_version())
  OnProgress on_progress = {};        // on the thread that reads
};

// Reads and cross-checks what load_version() says. kCorrupt names the file and what does not agree. In a version of several ranks the
// records of the files that are read are looked at by Checkpoint::read().
[[nodiscard]] Result<Checkpoint> open_version(const ReaderParts& parts, const std::string& root,
                                              const VersionInfo& version, const ReadOptions& options);

using VerifyProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Looks at every byte of a version that may be damaged anywhere, its manifest included, and goes on after damage. An Error only when
// nothing can be said: no such version, a format of the future, no memory.
[[nodiscard]] Result<VerifyReport> verify_version(const ReaderParts& parts, const std::string& root,
                                                  const VersionName& version, const ReadOptions& options,
                                                  const VerifyProgress& progress = {});

}  // namespace slackwater
