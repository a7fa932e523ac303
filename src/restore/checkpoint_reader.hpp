// Opening one version for reading, with memory of one's own or with the engine's pool.
#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "commit/catalog.hpp"
#include "os/file_system.hpp"
#include "slackwater/checkpoint.hpp"
#include "stage/pool.hpp"

namespace slackwater {

struct ReaderParts {
  FileSystem* fs = nullptr;  // outlives the Checkpoint
  Pool* pool = nullptr;      // outlives it too; null: the checkpoint makes its own at the first read
};

// Reads and cross-checks manifest, records and headers (step, attempt, rank, world, sizes on disk, digest of each header block).
// kCorrupt names the file and what does not agree.
[[nodiscard]] Result<Checkpoint> open_version(const ReaderParts& parts, const std::string& root, const VersionInfo& version,
                                              const ReadOptions& options);

}  // namespace slackwater
