// StagedVersion: all that a rank knows about a version whose bytes are in slabs: which slabs make up its files, and the
// texts that a commit would write. The memory of a keeper holds it as one text (region.hpp). Plain values and pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

struct StagedFile {
  std::string name;  // relative to the version's directory
  std::uint64_t size_bytes = 0;
  std::vector<std::uint32_t> slabs;  // in the order of the file; the last one may be filled in part
};

struct StagedVersion {
  VersionName name;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::vector<StagedFile> files;
  std::string record;    // the bytes of the record file: sizes, and one digest per MiB
  std::string index;     // one rank: the bytes of the index file; several: what is attached to the vote
  std::string manifest;  // one rank: the bytes of the manifest, a commit; several: one without records, an abort
  std::string vote;      // several ranks: this rank's vote, as it would send it to the others
};

[[nodiscard]] std::string serialize(const StagedVersion& version);
// The text is untrusted. Checks that slabs exist, that no slab is used twice, and that they hold as many bytes as the
// files have.
[[nodiscard]] Result<StagedVersion> parse_staged_version(std::string_view text, std::uint64_t slab_bytes,
                                                         std::uint32_t slab_count);

}  // namespace slackwater
