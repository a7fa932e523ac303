#include "commit/attempt.hpp"

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
#include "commit/fields.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kAttemptFormat = 1;

// Absent where there are none.
Result<std::vector<SetAside>> parse_set_aside(const Json& json, std::uint32_t number, const std::string& path) {
  std::vector<SetAside> versions;
  if (!json.contains("set_aside")) return versions;
  SW_ASSIGN(const Json* list, json_array(json, "set_aside", path));
  for (const Json& entry : *list) {
    SW_ASSIGN(const std::string name, json_string(entry, "version", path));
    SW_ASSIGN(std::string why, json_string(entry, "why", path));
    const auto version = parse_version_directory(name);
    if (!version || version->attempt >= number)
      return corrupt("field 'set_aside' holds something that is not the name of an earlier version", path);
    versions.push_back({*version, std::move(why)});
  }
  return versions;
}

}  // namespace

std::string serialize(const Attempt& attempt) {
  Json adopted = Json::array();
  for (const VersionName& version : attempt.adopted) adopted.push_back(version_directory(version));
  Json json = {{"format", kAttemptFormat},
               {"number", attempt.number},
               {"run", attempt.run},
               {"run_name", attempt.run_name},
               {"world", attempt.world},
               {"members", attempt.members},
               {"adopted", std::move(adopted)},
               {"created_unix_ms", std::max<std::int64_t>(attempt.created_unix_ms, 0)}};
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
  SW_ASSIGN(const Json* members, json_array(json, "members", path));
  for (const Json& member : *members) {
    if (!member.is_string()) return corrupt("field 'members' holds something that is not a text", path);
    attempt.members.push_back(member.get<std::string>());
  }
  if (attempt.members.size() != attempt.world) {
    return corrupt(fmt::format("the attempt lists {} members for a world of {}", attempt.members.size(), attempt.world),
                   path);
  }
  SW_ASSIGN(const Json* adopted, json_array(json, "adopted", path));
  for (const Json& entry : *adopted) {
    const auto version =
        entry.is_string() ? parse_version_directory(entry.get_ref<const std::string&>()) : std::nullopt;
    if (!version || version->attempt >= attempt.number) {
      return corrupt("field 'adopted' holds something that is not the name of an earlier version", path);
    }
    attempt.adopted.push_back(*version);
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
    // A sandbox forbids getrandom. An id must differ from others, it is no secret: time, process and place in memory do
    // that.
    id = digest128(fmt::format("{} {} {}", std::chrono::steady_clock::now().time_since_epoch().count(), ::getpid(),
                               fmt::ptr(&id)));
  }
  return to_hex(id);
}

}  // namespace slackwater
