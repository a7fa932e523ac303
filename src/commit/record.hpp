// Record: what one rank promises about its finished files. Sealed JSON on disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout/stream_layout.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

struct FileRecord {
  std::string name;
  std::uint64_t size_bytes = 0;
  std::uint64_t tensor_count = 0;
  std::vector<std::uint64_t> block_digests;  // one for each started MiB
};

struct Record {
  std::string run;  // id of the run that wrote it
  StreamIdentity identity;
  std::vector<FileRecord> files;
};

[[nodiscard]] std::string serialize(const Record& record);
// Checks digest, bounds, that names stay in the version, count of digests against size.
[[nodiscard]] Result<Record> parse_record(std::string_view text, const std::string& path);

}  // namespace slackwater
