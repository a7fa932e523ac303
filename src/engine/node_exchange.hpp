// What the nodes tell each other at a restore, if each has a directory of its own (Options::node_local). One rank of
// each node sends the small files that say what there is: the newest attempt file, the manifests of the versions that
// its directory has, the newest index, and notes of delete() that are in force. So every rank sees the union of all
// nodes, even if a node was lost or died before it had a copy of the last decision. Functions without state. Thread
// rule: the trainer's thread, in restore().
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_shared.hpp"
#include "tiers/other_nodes_files.hpp"
#include "version/delete_notes.hpp"

namespace slackwater {

// `call`: the number of this rank's restore() call. Waits for all ranks; kTimeout names the silent ones. Returns the
// notes of delete() in other directories than rank 0's: for rank 0 those that it received, for the others those that
// they sent.
[[nodiscard]] Result<std::vector<DeleteNote>> exchange_node_catalogs(EngineShared& shared, std::uint64_t call,
                                                                     OtherNodesFiles& others);

// After a restore that brought files of this version here: this node's directory gets attempt, index and manifest, so
// that it can be read alone. `all` is what the restore read from.
[[nodiscard]] Status settle_node(EngineShared& shared, FileSystem& all, const VersionName& version);

}  // namespace slackwater
