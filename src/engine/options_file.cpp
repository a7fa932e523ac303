#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/json.hpp"
#include "base/result.hpp"
#include "engine/options_check.hpp"
#include "os/durable.hpp"
#include "slackwater/options.hpp"

namespace slackwater {
namespace {

constexpr std::uint64_t kMaxOptionsBytes = 1u << 20;

// The file as values of its own, and as the engine's options.
struct Loaded {
  OptionsFile file;
  Options options;
};

std::unexpected<Error> wrong(const std::string& what, const std::string& path) {
  return fail(ErrorKind::kInvalidArgument, fmt::format("the options file {}", what), path);
}

Status in_file(Status status, const std::string& path) {
  if (!status && status.error().path.empty()) status.error().path = path;
  return status;
}

// As set_option() takes it.
Result<std::string> option_text(const std::string& name, const Json& value, const std::string& path) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return value.dump();
  return wrong(fmt::format("gives '{}' something else than a number, true, false or a text", name), path);
}

template <class Number>
OptionValue number_or_text(const std::string& text) {
  Number value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc{} && end == text.data() + text.size()) return value;
  return text;
}

// `text` was accepted for an option of this type.
OptionValue typed(std::string_view type, const std::string& text) {
  if (type == "flag") return parse_flag(text).value_or(false);
  if (type == "count") return number_or_text<std::int64_t>(text);
  if (type == "seconds") return number_or_text<double>(text);
  return text;
}

// Of an option that only the caller knows.
OptionValue as_written(const Json& value, const std::string& text) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return number_or_text<std::int64_t>(text);
  if (value.is_number()) return value.get<double>();
  return text;
}

std::string_view type_of(std::span<const OptionInfo> table, std::string_view name) {
  const auto row = std::ranges::find(table, name, &OptionInfo::name);
  return row == table.end() ? std::string_view("text") : row->type;
}

Status read_tier(const Json& object, const std::string& path, Loaded& loaded) {
  if (!object.is_object()) return wrong("takes a list of objects for 'tiers'", path);
  TierOptions tier;
  std::map<std::string, OptionValue> values;
  for (const auto& [name, value] : object.items()) {
    SW_ASSIGN(const std::string text, option_text(name, value, path));
    SW_TRY(in_file(set_tier_option(tier, name, text), path));
    values.emplace(name, typed(type_of(tier_option_table(), name), text));
  }
  if (tier.location.empty()) return wrong("has a tier without a 'location'", path);
  loaded.file.tiers.push_back(std::move(values));
  loaded.options.tiers.push_back(std::move(tier));
  return {};
}

Status read_option(const std::string& name, const Json& value, const std::vector<std::string>& others,
                   const std::string& path, Loaded& loaded) {
  SW_ASSIGN(const std::string text, option_text(name, value, path));
  const auto table = option_table();
  const bool known = std::ranges::find(table, name, &OptionInfo::name) != table.end();
  OptionValue& into = loaded.file.options[name];
  if (name == "path") {
    into = loaded.options.path = text;
  } else if (!known && std::ranges::find(others, name) != others.end()) {
    into = as_written(value, text);
  } else {
    Status set = set_option(loaded.options, name, text);
    if (!set && !known && !others.empty()) set.error().message += fmt::format(", {}", fmt::join(others, ", "));
    SW_TRY(in_file(std::move(set), path));
    into = typed(type_of(table, name), text);
  }
  return {};
}

Result<Loaded> load(const std::string& path, const std::vector<std::string>& others) {
  const auto fs = make_posix_file_system();
  const auto text = read_whole(*fs, path, kMaxOptionsBytes);
  if (!text) return wrong(fmt::format("cannot be read: {}", text.error().message), path);
  const auto parsed = parse_json(*text, path);
  if (!parsed) return wrong(fmt::format("is not JSON: {}", parsed.error().message), path);
  if (!parsed->is_object()) return wrong("is not a JSON object, such as {\"path\": \"runs/gpt\"}", path);
  Loaded loaded;
  for (const auto& [name, value] : parsed->items()) {
    if (name != "tiers") {
      SW_TRY(read_option(name, value, others, path, loaded));
      continue;
    }
    if (!value.is_array()) return wrong("takes a list of objects for 'tiers'", path);
    for (const Json& object : value) SW_TRY(read_tier(object, path, loaded));
  }
  return loaded;
}

}  // namespace

Result<Options> load_options(const std::string& path) {
  SW_ASSIGN(Loaded loaded, load(path, {}));
  return std::move(loaded.options);
}

Result<OptionsFile> read_options_file(const std::string& path, const std::vector<std::string>& others) {
  SW_ASSIGN(Loaded loaded, load(path, others));
  return std::move(loaded.file);
}

}  // namespace slackwater
