// Part: what one rank states about its finished files to a coordinator outside of the engine (slackwater/part.hpp).
// Functions without state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "os/file_system.hpp"
#include "slackwater/part.hpp"
#include "version/manifest.hpp"
#include "version/record.hpp"

namespace slackwater {

struct Part {
  PartPlace place;         // without the root
  Digest128 record;        // digest of the rank's record
  std::string index_text;  // its part of the index
  std::uint64_t size_bytes = 0;
};

[[nodiscard]] std::string serialize(const Part& part);
[[nodiscard]] Result<Part> parse_part(std::string_view text);

// The directory of the version. Makes this rank's subdirectory if the world needs them.
[[nodiscard]] Result<std::string> prepare_directory(FileSystem& fs, const PartPlace& place);
// As VersionStore::write_record(), without an attempt of this engine's own.
[[nodiscard]] Result<RecordReference> write_part_record(FileSystem& fs, const PartPlace& place, const Record& record);
// Removes the files of a part that was given up.
[[nodiscard]] Status remove_part(FileSystem& fs, const PartPlace& place);

}  // namespace slackwater
