#include "formats/selection.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/name_pattern.hpp"

namespace slackwater::formats {
namespace {

// What each star of the pattern stands for, with the first stars as short as possible. nullopt: no match. Names and
// patterns come from the command line and a checkpoint; both are short, so trying all places is quick enough.
std::optional<std::vector<std::string_view>> match_stars(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) {
    if (pattern != name) return std::nullopt;
    return std::vector<std::string_view>();
  }
  if (!name.starts_with(pattern.substr(0, star))) return std::nullopt;
  name.remove_prefix(star);
  const std::string_view rest = pattern.substr(star + 1);
  if (rest.empty()) return std::vector{name};  // the last star takes all that is left
  for (std::size_t length = 0; length <= name.size(); ++length) {
    if (auto found = match_stars(rest, name.substr(length))) {
      found->insert(found->begin(), name.substr(0, length));
      return found;
    }
  }
  return std::nullopt;
}

constexpr std::ptrdiff_t kMostStars = 3;  // more could take for ever to match

}  // namespace

bool Selection::operator()(const std::string& name) const {
  const auto matches = [&](const std::string& pattern) { return matches_name(pattern, name); };
  return (only_.empty() || std::ranges::any_of(only_, matches)) && std::ranges::none_of(exclude_, matches);
}

Result<NameMap> NameMap::parse(const std::vector<std::string>& rules) {
  NameMap map;
  for (const std::string& rule : rules) {
    const std::size_t middle = rule.find('=');
    if (middle == std::string::npos) {
      return fail(ErrorKind::kInvalidArgument,
                  fmt::format("--map '{}' has no '='; write OLD=NEW, such as 'model.=' or 'model.*=net.*'", rule));
    }
    Rule made{rule.substr(0, middle), rule.substr(middle + 1)};
    const auto stars = std::ranges::count(made.from, '*');
    if (std::ranges::count(made.to, '*') > stars || stars > kMostStars) {
      return fail(
          ErrorKind::kInvalidArgument,
          fmt::format("--map '{}' has more than {} stars, or more on the right than on the left", rule, kMostStars));
    }
    map.rules_.push_back(std::move(made));
  }
  return map;
}

std::string NameMap::operator()(std::string_view name) const {
  for (const Rule& rule : rules_) {
    if (rule.from.find('*') == std::string::npos) {
      if (name.starts_with(rule.from)) return rule.to + std::string(name.substr(rule.from.size()));
      continue;
    }
    const auto stars = match_stars(rule.from, name);
    if (!stars) continue;
    std::string out;
    std::size_t used = 0;
    for (const char c : rule.to) {
      if (c == '*')
        out += (*stars)[used++];
      else
        out += c;
    }
    return out;
  }
  return std::string(name);
}

}  // namespace slackwater::formats
