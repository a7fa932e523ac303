#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/removal.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "version/version_store.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kPinFooter =
    R"(No run deletes a pinned checkpoint: not because of keep, not after a rollback, not on a full disk.
pin takes no lock and works while a trainer runs. The pin stays until the checkpoint is removed
(slackwater rm --pinned, or delete(step) in the run).
If one of the steps is missing, none is pinned.

Keys of --json: directory, pinned [as in ls, already], failed [as in ls, error].

Examples:
  slackwater pin runs/gpt 1000 2000
  slackwater pin runs/gpt@42 --json)";

struct PinArguments {
  std::string location;
  std::vector<std::uint64_t> steps;
  bool json = false;
  S3Options store;
};

// The live version; otherwise one that a rollback replaced, which a pin also keeps. Prints its errors.
std::optional<CatalogEntry> find_entry(const Catalog& catalog, const std::string& directory, std::uint64_t step) {
  const auto first = [&](VersionState state) -> const CatalogEntry* {
    for (const CatalogEntry& entry : catalog.entries)
      if (entry.name.step == step && entry.state == state) return &entry;
    return nullptr;
  };
  for (const VersionState state : {VersionState::kLive, VersionState::kReplaced})
    if (const CatalogEntry* entry = first(state)) return *entry;
  if (const CatalogEntry* aside = first(VersionState::kSetAside)) {
    print_error(fmt::format("{} was set aside and cannot be pinned: {}", spoken_name(aside->name), aside->why),
                "it needs no pin: only slackwater rm, gc --set-aside or delete(step) removes it");
    return std::nullopt;
  }
  if (const CatalogEntry* unreadable = first(VersionState::kUnreadable)) {
    print_error(*unreadable->error);
    print_problem("hint", "it needs no pin: no run deletes a checkpoint that cannot be read");
    return std::nullopt;
  }
  (void)choose_version(catalog, {directory, step});  // prints that there is none, and the live steps
  return std::nullopt;
}

int run_pin(const PinArguments& arguments) {
  const Location location = parse_location(arguments.location);
  const auto steps = steps_named(location, arguments.steps);
  if (!steps) return kFailed;
  const std::unique_ptr<FileSystem> fs = open_file_system(location.directory, Access::kWrite, arguments.store);
  if (!fs) return kFailed;
  const std::optional<Catalog> catalog = open_catalog(*fs, location.directory);
  if (!catalog) return kFailed;
  std::vector<CatalogEntry> entries;
  for (const std::uint64_t step : *steps) {
    auto entry = find_entry(*catalog, location.directory, step);
    if (!entry) return kFailed;
    entries.push_back(std::move(*entry));
  }

  // Open the store as a rank other than 0 does: such a rank may pin, and takes no lock.
  const SystemClock clock;
  const Log log([](LogLevel, std::string_view message) { print_problem("warning", message); });
  const auto store = VersionStore::open(*fs, clock, location.directory, log, VersionStore::Role::kMember);
  if (!store) {
    print_error(store.error());
    return kFailed;
  }
  OrderedJson pinned = OrderedJson::array();
  OrderedJson failed = OrderedJson::array();
  for (const CatalogEntry& entry : entries) {
    OrderedJson version = version_json(entry.info);
    if (const Status status = (*store)->pin(entry.name); !status) {
      print_error(status.error());
      version["error"] = status.error().to_string();
      failed.push_back(std::move(version));
      continue;
    }
    version["pinned"] = true;
    version["already"] = entry.info.pinned;
    pinned.push_back(std::move(version));
    if (!arguments.json)
      fmt::print("{} {} pinned\n", spoken_name(entry.name), entry.info.pinned ? "was already" : "is");
  }
  const int code = failed.empty() ? kFine : kFailed;
  if (arguments.json)
    fmt::print("{}\n",
               dump({{"directory", location.directory}, {"pinned", std::move(pinned)}, {"failed", std::move(failed)}}));
  return code;
}

}  // namespace

Verb add_pin(CLI::App& parser) {
  auto arguments = std::make_shared<PinArguments>();
  CLI::App* verb = parser.add_subcommand("pin", "Protect the checkpoints of some steps from deletion");
  verb->add_option("DIR[@STEP]", arguments->location, "Directory the trainer saves to")->required();
  verb->add_option("STEP", arguments->steps, "Which steps");
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  add_store_options(*verb, arguments->store);
  verb->footer(kPinFooter);
  return {verb, [arguments] { return run_pin(*arguments); }};
}

}  // namespace slackwater::cli
