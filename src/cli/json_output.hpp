// The keys of --json, in one place. They are stable: keys may be added, but none is renamed or removed.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "slackwater/checkpoint.hpp"
#include "slackwater/tensor.hpp"
#include "version/catalog.hpp"

namespace slackwater::cli {

using OrderedJson = nlohmann::ordered_json;

[[nodiscard]] std::string_view state_name(VersionState state);  // "live", "replaced", ...

// step, attempt, directory, world, size_bytes, tensor_count, created_unix_ms, created, pinned.
[[nodiscard]] OrderedJson version_json(const VersionInfo& version);
[[nodiscard]] OrderedJson version_json(const CatalogEntry& entry);  // the same, and state
// name, dtype, shape, size_bytes, file, offset; alias_of if tied. For a tensor in boxes, file and offset are null, and
// each entry of boxes has its own.
[[nodiscard]] OrderedJson tensor_json(const TensorInfo& tensor, const Checkpoint& checkpoint);
// file, offset, size_bytes, tensors, what.
[[nodiscard]] OrderedJson damage_json(const Damage& damage);

// ASCII only, so that nothing in it can control a terminal. Bytes that are not UTF-8 are replaced.
[[nodiscard]] std::string dump(const OrderedJson& json);

}  // namespace slackwater::cli
