// Checkpoint: one committed version, opened for reading. Takes no lock, needs no Engine, never writes.
// Thread rule: one thread at a time may call read() or verify(); the rest is constant after open.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/options.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater {

struct VersionInfo {
  std::uint64_t step = 0;
  std::uint32_t attempt = 0;
  std::string directory;  // name inside the tier, "step-0000000042.a7"
  std::uint32_t world = 1;
  std::uint64_t size_bytes = 0;  // of all data files
  std::uint64_t tensor_count = 0;
  std::int64_t created_unix_ms = 0;  // the writer's wall clock; for people, never for decisions
  bool pinned = false;
  std::map<std::string, double> metrics = {};  // of the step, as given by rank 0; NaN for what was not finite
};

struct FileInfoOnTier {
  std::string name;  // inside the version's directory
  std::uint32_t rank = 0;
  std::uint64_t size_bytes = 0;  // with several ranks: up to the end of its last tensor
};

struct Damage {
  std::string file;
  std::uint64_t offset = 0;  // of the damaged block; 0 if it is the whole file
  std::uint64_t size_bytes = 0;
  std::vector<std::string> tensors;  // whose bytes lie there; "(header)" for the header
  std::string what;
};

struct VerifyReport {
  std::uint64_t bytes_read = 0;
  double seconds = 0;
  std::vector<Damage> damages;  // empty: every byte is as it was written
};

struct ReadOptions {
  std::uint64_t buffer_bytes = 64u << 20;  // memory for reads; at least two slabs are used
  IoBackend io_backend = IoBackend::kAuto;
  bool direct_io = true;
  LogSink log;
  S3Options s3 = {};  // if the location is in an object store
};

// The live versions of a directory, oldest first. Empty if there are none; kNotFound if the directory is missing.
// `s3`: as in ReadOptions.
[[nodiscard]] Result<std::vector<VersionInfo>> list_versions(const std::string& directory, const S3Options& s3 = {});

class Checkpoint {
 public:
  // step: nullopt takes the newest live version. Metadata is verified here (manifest, record and headers; with several
  // ranks manifest and index), the rest when it is read.
  [[nodiscard]] static Result<Checkpoint> open(const std::string& directory, std::optional<std::uint64_t> step = {},
                                               ReadOptions options = {});

  [[nodiscard]] const VersionInfo& version() const;
  [[nodiscard]] std::span<const TensorInfo> tensors() const;  // aliases included, sorted by name
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  [[nodiscard]] std::span<const FileInfoOnTier> files() const;
  [[nodiscard]] const std::string& tree() const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;
  // Top-level members of the tree that differed between the ranks that saved it. They can be restored only on the same
  // number of ranks.
  [[nodiscard]] std::span<const std::string> rank_local_values() const;

  // Reads the targets' tensors. Each block is verified before its bytes are placed. kMismatch, before any byte moves,
  // if a target differs in shape or dtype; kCorrupt names file and tensor.
  [[nodiscard]] Status read(std::span<const Target> targets);

  // Reads every byte. `progress` (bytes done, bytes in all) is called from this thread, at most ten times per second.
  [[nodiscard]] Result<VerifyReport> verify(const std::function<void(std::uint64_t, std::uint64_t)>& progress = {});

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  struct Impl;  // src/restore
  explicit Checkpoint(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace slackwater
