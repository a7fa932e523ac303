#include "version/attempt.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "version/fields.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kAttemptFormat = 1;

// The field is absent if the list is empty.
Result<std::vector<SetAside>> parse_set_aside(const Json& json, std::uint32_t number, const std::string& path) {
  std::vector<SetAside> versions;
  if (!json.contains("set_aside")) return versions;
  SW_ASSIGN(const Json* list, json_array(json, "set_aside", path));
  for (const Json& entry : *list) {
    SW_ASSIGN(const std::string name, json_string(entry, "version", path));
    SW_ASSIGN(std::string why, json_string(entry, "why", path));
    const auto version = parse_version_directory(name);
    if (!version || version->attempt >= number)
      return corrupt("field 'set_aside' holds something that is not a version of an earlier attempt", path);
    versions.push_back({*version, std::move(why)});
  }
  return versions;
}

}  // namespace

std::string serialize(const Attempt& attempt) {
  Json json = {{"format", kAttemptFormat},
               {"number", attempt.number},
               {"run", attempt.run},
               {"run_name", attempt.run_name},
               {"world", attempt.world},
               {"members", attempt.members},
               {"adopted", version_names(attempt.adopted)},
               {"created_unix_ms", std::max<std::int64_t>(attempt.created_unix_ms, 0)}};
  if (!attempt.left_behind.empty()) json["left_behind"] = version_names(attempt.left_behind);
  for (const SetAside& aside : attempt.set_aside) {
    json["set_aside"].push_back({{"version", version_directory(aside.version)}, {"why", aside.why}});
  }
  return seal_json(json);
}

Result<Attempt> parse_attempt(std::string_view text, const std::string& path) {
  SW_ASSIGN(const Json json, open_sealed_json(text, path));
  SW_TRY(check_format(json, kAttemptFormat, "attempt file", path));
  Attempt attempt;
  SW_ASSIGN(attempt.number, json_u32(json, "number", path));
  SW_ASSIGN(attempt.run, json_string(json, "run", path));
  SW_ASSIGN(attempt.run_name, json_string(json, "run_name", path));
  SW_ASSIGN(attempt.world, json_u32(json, "world", path));
  SW_ASSIGN(attempt.members, json_strings(json, "members", path));
  if (attempt.members.size() != attempt.world) {
    return corrupt(fmt::format("the attempt lists {} members for a world of {}", attempt.members.size(), attempt.world),
                   path);
  }
  SW_ASSIGN(attempt.adopted, json_versions(json, "adopted", path));
  if (json.contains("left_behind")) {
    SW_ASSIGN(attempt.left_behind, json_versions(json, "left_behind", path));
  }
  for (const auto& [field, versions] :
       {std::pair("adopted", &attempt.adopted), std::pair("left_behind", &attempt.left_behind)}) {
    if (std::ranges::any_of(*versions, [&](const auto& version) { return version.attempt >= attempt.number; }))
      return corrupt(fmt::format("field '{}' holds a version that is not of an earlier attempt", field), path);
  }
  SW_ASSIGN(attempt.set_aside, parse_set_aside(json, attempt.number, path));
  SW_ASSIGN(attempt.created_unix_ms, json_time(json, "created_unix_ms", path));
  return attempt;
}

std::string random_id() {
  Digest128 id;
  std::array<std::byte, sizeof id> bytes{};
  std::size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t count = ::getrandom(bytes.data() + got, bytes.size() - got, 0);
    if (count < 0 && errno != EINTR) break;
    if (count > 0) got += static_cast<std::size_t>(count);
  }
  if (got == bytes.size()) {
    id = digest128(std::span<const std::byte>(bytes));
  } else {
    // A sandbox forbids getrandom(). An id must be unique, not secret: time, process and stack address are enough.
    id = digest128(fmt::format("{} {} {}", std::chrono::steady_clock::now().time_since_epoch().count(), ::getpid(),
                               fmt::ptr(&id)));
  }
  return to_hex(id);
}

}  // namespace slackwater
