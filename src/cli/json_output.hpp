// The keys of --json, in one place. They are stable: new ones may be added, none is renamed or removed.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "commit/catalog.hpp"
#include "slackwater/checkpoint.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::cli {

using OrderedJson = nlohmann::ordered_json;

[[nodiscard]] std::string_view state_name(VersionState state);  // "counts", "superseded", ...

// step, attempt, directory, world, size_bytes, tensor_count, created_unix_ms, created, pinned.
[[nodiscard]] OrderedJson version_json(const VersionInfo& version);
// name, dtype, shape, size_bytes, file, offset; alias_of if tied. Of a tensor in parts file and offset are null, and boxes has them.
[[nodiscard]] OrderedJson tensor_json(const TensorInfo& tensor, const Checkpoint& checkpoint);
// file, offset, size_bytes, tensors, what.
[[nodiscard]] OrderedJson damage_json(const Damage& damage);

// ASCII only, so that nothing in it can drive a terminal; bytes that are not UTF-8 are replaced.
[[nodiscard]] std::string dump(const OrderedJson& json);

}  // namespace slackwater::cli
