// Flush: writes a version from the memory of keepers to tier 0 and commits it, in the order of docs/durability.md. A
// keeper does so after its trainer has died, with a version of one rank. A trainer does so after it has restored a
// version that is only in memory; with several ranks, rank 0 then writes the parts of all.
// Thread rule: one thread. Once the gate is closed, nothing is published, and no name is created or removed any more.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/log.hpp"
#include "keeper/publish_gate.hpp"
#include "keeper/rank_parts.hpp"
#include "os/clock.hpp"
#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "version/manifest.hpp"

namespace slackwater {

// `parts`: of all ranks, in order. `member`: of rank 0, in the attempt that staged the version. The caller holds the
// lock of the directory, and no other flush uses these names (PublishGate::wait_idle). Returns the decision, which is a
// commit; a version that is on disk already counts as flushed.
// kAborted: the gate was closed, another run has taken the directory, or the step was given up. kCorrupt: the memory
// does not hold what its digests say. Then nothing is published.
[[nodiscard]] Result<Manifest> flush_version(FileSystem& fs, const Clock& clock, const std::string& root,
                                             std::span<const RankPart> parts, const std::string& member,
                                             PublishGate& gate, const Log& log);

// Whether the step would be lost with this memory: the newest attempt is the one that it belongs to, and tier 0 has no
// decision about it. True also if that cannot be read, for whatever reason.
[[nodiscard]] bool is_unsaved(FileSystem& fs, const std::string& root, const Region::Kept& kept);
// Such a step in the memory, if there is one.
[[nodiscard]] std::optional<std::uint64_t> unsaved_step(FileSystem& fs, const std::string& root, const Region& region);

}  // namespace slackwater
