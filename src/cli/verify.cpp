#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/progress_bar.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "restore/checkpoint_reader.hpp"
#include "restore/version_contents.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kVerifyFooter =
    R"(Without @STEP, verifies every live version, and those whose manifest cannot be read. Damage is named by file,
offset and tensors; verify then goes on with the rest. The exit code is 1 if anything is damaged.

Keys of --json: directory, ok, versions [step, attempt, directory, ok, bytes_read, seconds,
damages [file, offset, size_bytes, tensors, what], error (if it could not be verified at all)],
tiers [the same keys for each --tier that can be read].

Examples:
  slackwater verify runs/gpt
  slackwater verify runs/gpt@42 --json | jq '.versions[].damages'
  slackwater verify s3://bucket/gpt)";

constexpr std::size_t kTensorsNamed = 8;

struct VerifyArguments {
  std::string location;
  std::vector<std::string> tiers;  // further ones
  bool json = false;
  S3Options store;
};

void print_damage(const Damage& damage) {
  std::string where = escape_controls(damage.file);
  if (damage.size_bytes > 0) where += fmt::format(", {} at offset {}", format_bytes(damage.size_bytes), damage.offset);
  fmt::print("  {}: {}\n", where, escape_controls(damage.what));
  if (!damage.tensors.empty())
    fmt::print("    holds: {}\n", escape_controls(join_names(damage.tensors, kTensorsNamed)));
}

void print_report(const VersionName& version, const VerifyReport& report) {
  if (report.damages.empty()) {
    fmt::print("step {}: fine, {} in {} ({})\n", version.step, format_bytes(report.bytes_read),
               format_seconds(report.seconds), rate_text(report.bytes_read, report.seconds));
    return;
  }
  fmt::print("step {}: DAMAGED\n", version.step);
  for (const Damage& damage : report.damages) print_damage(damage);
}

std::vector<VersionName> choose(const Catalog& catalog, const Location& location) {
  std::vector<VersionName> chosen;
  for (const CatalogEntry& entry : catalog.entries) {
    const bool wanted = !location.step || entry.name.step == *location.step;
    const bool expected =
        entry.state == VersionState::kLive || (entry.state == VersionState::kUnreadable && entry.current);
    if (wanted && expected) chosen.push_back(entry.name);
  }
  return chosen;
}

struct Findings {
  bool damaged = false;
  bool failed = false;
  OrderedJson document;
};

// nullopt after an error that was printed.
std::optional<Findings> verify_tier(const VerifyArguments& arguments, const Location& location) {
  const std::unique_ptr<FileSystem> fs = open_file_system(location.directory, Access::kRead, arguments.store);
  const std::optional<Catalog> catalog = fs ? open_catalog(*fs, location.directory) : std::nullopt;
  if (!catalog) return std::nullopt;
  const std::vector<VersionName> versions = choose(*catalog, location);
  if (versions.empty() && !choose_version(*catalog, location)) return std::nullopt;

  Findings findings;
  OrderedJson results = OrderedJson::array();
  for (const VersionName& version : versions) {
    const auto report = [&] {
      ProgressBar bar(fmt::format("step {}", version.step));
      return verify_version({.fs = fs.get()}, location.directory, version, {},
                            [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); });
    }();
    // A trainer at work removes old versions. That is no damage, so it does not change the exit code.
    if (!report && report.error().kind == ErrorKind::kNotFound) {
      print_problem("note", report.error().message);
      continue;
    }
    findings.damaged |= report && !report->damages.empty();
    findings.failed |= !report;
    if (arguments.json) {
      OrderedJson result{{"step", version.step},
                         {"attempt", version.attempt},
                         {"directory", version_directory(version)},
                         {"ok", report && report->damages.empty()},
                         {"bytes_read", report ? report->bytes_read : 0},
                         {"seconds", report ? report->seconds : 0.0},
                         {"damages", OrderedJson::array()}};
      if (report)
        for (const Damage& damage : report->damages) result["damages"].push_back(damage_json(damage));
      else
        result["error"] = report.error().to_string();
      results.push_back(std::move(result));
    } else if (report) {
      print_report(version, *report);
      std::fflush(stdout);
    }
    if (!report) print_error(report.error());
  }
  findings.document = {{"directory", location.directory},
                       {"ok", !findings.damaged && !findings.failed},
                       {"versions", std::move(results)}};
  return findings;
}

int run_verify(const VerifyArguments& arguments) {
  const Location first = parse_location(arguments.location);
  std::vector<Location> locations{first};
  for (const std::string& tier : arguments.tiers) locations.push_back({tier, first.step});
  bool damaged = false;
  bool failed = false;
  OrderedJson documents = OrderedJson::array();
  for (const Location& location : locations) {
    if (locations.size() > 1 && !arguments.json) fmt::print("{}\n", escape_controls(location.directory));
    auto findings = verify_tier(arguments, location);
    failed |= !findings || findings->failed;
    damaged |= findings && findings->damaged;
    if (findings) documents.push_back(std::move(findings->document));
  }
  if (arguments.json && !documents.empty()) {
    // The first document is what one location prints alone; the others are in it.
    OrderedJson document = std::move(documents.front());
    documents.erase(documents.begin());
    if (!arguments.tiers.empty()) document["tiers"] = std::move(documents);
    fmt::print("{}\n", dump(document));
  }
  if (damaged) {
    print_problem("hint", "restore() skips a damaged checkpoint and uses the one before it; slackwater rm removes it");
    return kDamaged;
  }
  return failed ? kFailed : kFine;
}

}  // namespace

Verb add_verify(CLI::App& parser) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* verb = parser.add_subcommand("verify", "Read every byte of checkpoints and name what is damaged");
  verb->add_option("DIR[@STEP]", arguments->location,
                   "Directory or s3://bucket/prefix, and which step (default: all live)")
      ->required();
  verb->add_option("--tier", arguments->tiers, "A further tier to verify; may be given several times");
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  add_store_options(*verb, arguments->store);
  verb->footer(kVerifyFooter);
  return {verb, [arguments] { return run_verify(*arguments); }};
}

}  // namespace slackwater::cli
