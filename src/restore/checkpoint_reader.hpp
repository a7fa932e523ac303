// Opens and verifies one version, with memory of its own or with the engine's pool. Thread rule: as for Checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/devices.hpp"
#include "os/file_system.hpp"
#include "restore/version_contents.hpp"
#include "slackwater/checkpoint.hpp"
#include "stage/pool.hpp"
#include "version/catalog.hpp"

namespace slackwater {

struct ReaderDependencies {
  FileSystem* fs = nullptr;           // outlives the Checkpoint
  Pool* pool = nullptr;               // outlives it too; null: it makes its own at the first read
  Devices* devices = nullptr;         // outlives it too; null: only targets in host memory
  std::optional<Viewer> viewer = {};  // the rank that restores; nullopt: sees the tensors of all (see load_version())
  OnProgress on_progress = {};        // called on the thread that reads
};

// Reads and cross-checks what load_version() describes. kCorrupt names the file and the contradiction. With several
// ranks, Checkpoint::read() checks the records of the files that it reads.
[[nodiscard]] Result<Checkpoint> open_version(const ReaderDependencies& parts, const std::string& root,
                                              const VersionInfo& version, const ReadOptions& options);

using VerifyProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Reads every byte of a version that may be damaged anywhere, its manifest included, and goes on after damage. An Error
// only if nothing can be said: no such version, a newer format, no memory.
[[nodiscard]] Result<VerifyReport> verify_version(const ReaderDependencies& parts, const std::string& root,
                                                  const VersionName& version, const ReadOptions& options,
                                                  const VerifyProgress& progress = {});

}  // namespace slackwater
