// Attempt: one numbered claim of the directory. A run makes one at its first save, and another after each restore. It
// is claimed exclusively. From then on, a late writer of an earlier attempt can do no harm. Plain values and pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"
#include "version/names.hpp"

namespace slackwater {

// A version that is kept although it is not live: a restore skipped it as damaged, another run saved it, or a restore
// that went on from an earlier step did not see it. Only delete(), rm or gc removes it.
struct SetAside {
  VersionName version;
  std::string why;  // one sentence, for the user
  friend bool operator==(const SetAside&, const SetAside&) = default;
};

struct Attempt {
  std::uint32_t number = 0;
  std::string run;       // random id of this start, 32 hex digits
  std::string run_name;  // chosen by the user
  std::uint32_t world = 1;
  std::vector<std::string> members;      // each member's random id
  std::vector<VersionName> adopted;      // versions of earlier attempts that stay live
  std::vector<SetAside> set_aside = {};  // versions of earlier attempts that are kept, but are not live
  // Versions of earlier attempts that the user went back behind, with restore(step=...). A lower tier that was out of
  // reach then may delete these once it is back. What is in none of the three lists, nobody has seen.
  std::vector<VersionName> left_behind = {};
  std::int64_t created_unix_ms = 0;
};

[[nodiscard]] std::string serialize(const Attempt& attempt);
[[nodiscard]] Result<Attempt> parse_attempt(std::string_view text, const std::string& path);
[[nodiscard]] std::string random_id();  // 32 hex digits from the kernel

}  // namespace slackwater
