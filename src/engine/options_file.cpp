#include <string>

#include <fmt/format.h>

#include "base/json.hpp"
#include "base/result.hpp"
#include "os/durable.hpp"
#include "slackwater/options.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kMaxOptionsBytes = 1u << 20;

// As set_option() takes it.
Result<std::string> option_text(const std::string& name, const Json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  return fail(ErrorKind::kInvalidArgument,
              fmt::format("'{}' in the options file takes a number, true, false or a text", name), path);
}

Status in_file(Status status, const std::string& path) {
  if (!status && status.error().path.empty()) status.error().path = path;
  return status;
}

Result<TierOptions> read_tier(const Json& object, const std::string& path) {
  if (!object.is_object())
    return fail(ErrorKind::kInvalidArgument, "'tiers' in the options file takes a list of objects", path);
  TierOptions tier;
  for (const auto& [name, value] : object.items()) {
    SW_ASSIGN(const std::string text, option_text(name, value, path));
    SW_TRY(in_file(set_tier_option(tier, name, text), path));
  }
  if (tier.location.empty())
    return fail(ErrorKind::kInvalidArgument, "a tier in the options file has no 'location'", path);
  return tier;
}

}  // namespace

Result<Options> load_options(const std::string& path) {
  const auto fs = make_posix_file_system();
  SW_ASSIGN(const std::string text, read_whole(*fs, path, kMaxOptionsBytes));
  auto parsed = parse_json(text, path);
  if (!parsed || !parsed->is_object()) {
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("the options file is not a JSON object{}{}", parsed ? "" : ": ",
                            parsed ? "" : parsed.error().message),
                path);
  }
  Options options;
  for (const auto& [name, value] : parsed->items()) {
    if (name == "tiers") {
      if (!value.is_array())
        return fail(ErrorKind::kInvalidArgument, "'tiers' in the options file takes a list of objects", path);
      for (const Json& object : value) {
        SW_ASSIGN(TierOptions tier, read_tier(object, path));
        options.tiers.push_back(std::move(tier));
      }
      continue;
    }
    SW_ASSIGN(const std::string given, option_text(name, value, path));
    if (name == "path") {
      options.path = given;
    } else {
      SW_TRY(in_file(set_option(options, name, given), path));
    }
  }
  return options;
}

}  // namespace slackwater
