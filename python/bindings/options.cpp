// The engine's options: their tables, and what decides about values that Python is given.
#include "slackwater/options.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace slackwater::python {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

std::vector<std::map<std::string, std::string>> rows_of(std::span<const OptionInfo> table) {
  std::vector<std::map<std::string, std::string>> rows;
  for (const OptionInfo& option : table) {
    rows.push_back({{"name", std::string(option.name)},
                    {"type", std::string(option.type)},
                    {"default", std::string(option.default_value)},
                    {"choices", std::string(option.choices)},
                    {"help", std::string(option.help)}});
  }
  return rows;
}

}  // namespace

void bind_options(nb::module_& module) {
  module.def("option_table", [] { return rows_of(option_table()); }, "The engine's table of options.");
  module.def(
      "tier_option_table", [] { return rows_of(tier_option_table()); },
      "The engine's table of the options of a lower tier.");
  module.def(
      "read_options_file",
      [](const std::string& path, const std::vector<std::string>& others) {
        Result<OptionsFile> file = [&] {
          const WithoutGil release;
          return read_options_file(path, others);
        }();
        OptionsFile values = value_or_raise(std::move(file));
        return std::pair(std::move(values.options), std::move(values.tiers));
      },
      nb::arg("path"), nb::arg("others"),
      "The options in a JSON file, and those of its tiers. `others`: names that only Python knows.");
  module.def(
      "check_first_tier",
      [](const Settings& settings) {
        TierOptions tier;
        for (const auto& [name, value] : settings) value_or_raise(set_tier_option(tier, name, value));
        value_or_raise(check_first_tier(tier));
      },
      nb::arg("settings"), "Raises if the ranks cannot save to a tier with these settings.");
  module.def(
      "is_object_location", [](const std::string& location) { return is_object_location(location); },
      nb::arg("location"), "Whether it is s3://bucket/prefix.");
}

}  // namespace slackwater::python
