// The record. Input: its text without the closing digest.
#include <set>
#include <string>

#include "base/digest.hpp"
#include "fuzz.hpp"
#include "version/names.hpp"
#include "version/record.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  fuzz::round_trip(
      fuzz::text_of(data, size), [](std::string_view text) { return parse_record(text, "record"); },
      [](const Record& record) { return serialize(record); },
      [](const Record& record) {
        fuzz::require(record.identity.rank < record.identity.world, "the rank is one of its world");
        fuzz::require(!record.files.empty(), "a record names a file");
        std::set<std::string> names;
        for (const FileRecord& file : record.files) {
          fuzz::require(stays_in_version(file.name), "names stay in the directory");
          fuzz::require(names.insert(file.name).second, "names are unique");
          const std::uint64_t covered = file.block_digests.size() * kBlockBytes;
          fuzz::require(file.size_bytes <= covered && covered - file.size_bytes < kBlockBytes,
                        "there is a digest for each started block");
        }
      });
  return 0;
}
