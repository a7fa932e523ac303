// One save through the public interface, timed level by level, and the reference that writes the same file raw.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "harness.hpp"
#include "host_state.hpp"
#include "reference_io.hpp"
#include "slackwater/engine.hpp"

namespace slackwater::bench {

inline constexpr std::uint32_t kFewTensors = 16;   // of a state of "few large ones"
inline constexpr std::uint64_t kStatePerPool = 8;  // the pool is an eighth of the state

// Seconds from just before save().
struct SaveRun {
  double save = 0;  // save() returned
  double staged = 0;
  double durable = 0;
  double committed = 0;
  double cpu = 0;  // used by all threads until committed
};

// An engine that writes one state again and again under rising steps. The version before the last is deleted outside
// the timed part.
class RepeatedSave {
 public:
  [[nodiscard]] static Result<RepeatedSave> create(const Options& options, const HostState& state);
  [[nodiscard]] Result<SaveRun> run();
  [[nodiscard]] Engine& engine() { return *engine_; }
  // The data file of the newest version.
  [[nodiscard]] Result<std::string> newest_file() const;
  // Reads the newest version back: speed is worth nothing if bytes are lost.
  [[nodiscard]] Status verify() const;

 private:
  RepeatedSave(std::unique_ptr<Engine> engine, std::string directory, const HostState& state)
      : engine_(std::move(engine)), directory_(std::move(directory)), state_(&state) {}
  std::unique_ptr<Engine> engine_;
  std::string directory_;
  const HostState* state_;
  std::uint64_t step_ = 0;
};

// The reference, loaded with the very bytes of a file the engine wrote.
class ReferenceFile {
 public:
  // As many requests in flight as the engine can have, which is at most one per slab of the pool.
  [[nodiscard]] static Result<ReferenceFile> load(const Settings& settings, const std::string& path,
                                                  std::uint64_t pool_bytes);
  // Writes the bytes to a new file; the one before is deleted afterwards, as on the engine's side.
  [[nodiscard]] Result<double> write();
  [[nodiscard]] Result<double> read(const std::string& path) { return io_.read_file(path, size_bytes_); }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] Json describe() const;

 private:
  ReferenceFile(std::string directory, HostMemory image, RawIo io, std::uint64_t size_bytes, RawOptions options)
      : directory_(std::move(directory)),
        image_(std::move(image)),
        io_(std::move(io)),
        size_bytes_(size_bytes),
        options_(options) {}
  std::string directory_;
  HostMemory image_;
  RawIo io_;
  std::uint64_t size_bytes_;
  RawOptions options_;
  std::uint64_t written_ = 0;
};

}  // namespace slackwater::bench
