// Garbage: what killed runs left on a tier that no run uses, for `slackwater gc`. A run that uses it removes its own
// leftovers with the same rules (retention.hpp). One function without state. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "version/catalog.hpp"
#include "version/retention.hpp"

namespace slackwater {

// Never a version that is live, pinned or set aside. The caller holds the tier's lock, and has scanned it since.
// `newest_attempt`: by the attempt files.
[[nodiscard]] std::vector<Removal> find_garbage(FileSystem& fs, const std::string& root, const Catalog& catalog,
                                                std::uint32_t newest_attempt);

}  // namespace slackwater
