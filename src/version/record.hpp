// Record: what one rank states about its finished files: names, sizes, digests. Sealed JSON on disk. Plain values and
// pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout/file_layout.hpp"
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
  FileIdentity identity;
  std::vector<FileRecord> files;
};

[[nodiscard]] std::string serialize(const Record& record);
// Checks the seal, the bounds, that names stay in the version, and that the number of digests fits the size.
[[nodiscard]] Result<Record> parse_record(std::string_view text, const std::string& path);

}  // namespace slackwater
