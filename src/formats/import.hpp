// Imports a file or directory of another format as one committed version, through the engine: atomic and checksummed,
// as every other version. Memory stays bounded: tensors are copied from mapped files into a pool of fixed size.
// Thread rule: one thread. Takes the lock of the directory for as long as it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "formats/import_source.hpp"
#include "slackwater/options.hpp"

namespace slackwater::formats {

struct ImportOptions {
  SourceOptions source;
  std::uint64_t step = 0;
  bool check_crc = true;  // compare the checksums of zip records first
  LogSink log;
};

struct Imported {
  SourceFormat format = SourceFormat::kTorch;
  std::uint64_t step = 0;
  std::uint64_t tensors = 0;
  std::uint64_t size_bytes = 0;  // of the tensors
};

// What is done, how much of it, how much in all.
using ImportProgress = std::function<void(const char* what, std::uint64_t done, std::uint64_t total)>;

// `directory` is made if only its last component is missing. Nothing is committed unless all of it is.
[[nodiscard]] Result<Imported> import_checkpoint(const std::string& from, const std::string& directory,
                                                 const ImportOptions& options, const ImportProgress& progress = {});

}  // namespace slackwater::formats
