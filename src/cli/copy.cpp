#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "cli/json_output.hpp"
#include "cli/location.hpp"
#include "cli/progress_bar.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "os/durable.hpp"
#include "os/posix_lock.hpp"
#include "restore/checkpoint_reader.hpp"
#include "tiers/version_copier.hpp"
#include "version/attempt.hpp"
#include "version/attempt_files.hpp"
#include "version/catalog.hpp"
#include "version/fields.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kCopyFooter =
    R"(Copies committed checkpoints from one place to another: directories, and s3://bucket/prefix. Every MiB is checked
against the checkpoint's own checksums before it is sent, and what an object store received is checked by its answer.
The copy has the same name and the same bytes. It becomes visible when all of it is there. A copy that was interrupted
continues when it is started again.
Without @STEP, it copies the newest checkpoint; with --all, every live one.

It refuses if a run uses DST, or if DST holds live checkpoints that the newest attempt of SRC does not list, such as
those of another run. What is set aside in DST stays set aside.

Keys of --json: source, target, copied [as in ls, already, seconds], failed [as in ls, error].

Examples:
  slackwater copy runs/gpt@42 /backup/gpt
  slackwater copy s3://bucket/gpt /nvme/gpt --verify)";

struct CopyArguments {
  std::string source;
  std::string target;
  bool all = false;
  bool verify = false;
  bool json = false;
  unsigned threads = 3;
  std::string buffer = "192MiB";
  S3Options store;
};

Error refusal(std::string message, const std::string& path) {
  return {.kind = ErrorKind::kBusy, .message = std::move(message), .path = path};
}

// The run that saved a version, as the source knows it. nullopt: nobody knows any more.
class RunsOfSource {
 public:
  RunsOfSource(FileSystem& fs, const std::string& root, const Catalog& catalog)
      : fs_(fs), root_(root), catalog_(catalog) {}

  [[nodiscard]] Result<std::optional<std::string>> run_of(const VersionName& version) {
    const auto here = std::ranges::find(catalog_.entries, version, &CatalogEntry::name);
    if (here != catalog_.entries.end() && !here->run.empty()) return here->run;
    const auto known = by_attempt_.find(version.attempt);
    if (known != by_attempt_.end()) return known->second;
    auto attempt = read_attempt(fs_, root_, version.attempt);
    const ErrorKind kind = attempt ? ErrorKind::kNotFound : attempt.error().kind;
    if (kind != ErrorKind::kNotFound && kind != ErrorKind::kCorrupt && kind != ErrorKind::kUnsupported)
      return fail(std::move(attempt).error());
    return by_attempt_[version.attempt] = attempt ? std::optional(std::move(attempt->run)) : std::nullopt;
  }

 private:
  FileSystem& fs_;
  const std::string& root_;
  const Catalog& catalog_;
  std::map<std::uint32_t, std::optional<std::string>> by_attempt_;
};

// Checks that no version on the target loses its place there when the source's attempt decides what is live. What is
// neither live nor set aside under the newest attempt is deleted by the next run, or by `slackwater gc`. Returns the
// versions that have to be set aside for that.
Result<std::vector<SetAside>> check_target(const Catalog& there, const Attempt& attempt, RunsOfSource runs,
                                           const std::string& target) {
  const auto& now = there.newest_attempt;
  // Then the attempt file that is there stays, and so does everything else.
  if (now && now->number == attempt.number && now->run == attempt.run) return std::vector<SetAside>();
  std::set<VersionName> aside;
  for (const SetAside& known : attempt.set_aside) aside.insert(known.version);
  const std::set<VersionName> adopted(attempt.adopted.begin(), attempt.adopted.end());
  std::vector<SetAside> set_aside;
  for (const CatalogEntry& entry : there.entries) {
    if (entry.state == VersionState::kUndecided || entry.state == VersionState::kAborted) continue;
    if (entry.name.attempt == attempt.number || adopted.contains(entry.name)) {
      if (entry.run.empty()) continue;  // its manifest cannot be read, and VersionCopier does not touch it
      // Two runs use the same names if they have not seen each other.
      SW_ASSIGN(const auto run, runs.run_of(entry.name));
      if (run == entry.run) continue;
      return fail(
          refusal(fmt::format("DST holds a checkpoint {}, {}; choose another DST", version_directory(entry.name),
                              run ? "which another run saved" : "and SRC no longer knows whether its own run saved it"),
                  target));
    }
    if (aside.contains(entry.name)) continue;
    if (entry.adoptable()) {
      return fail(refusal(
          fmt::format("DST holds step {} (attempt {}){}; the newest attempt of SRC does not list it; "
                      "choose another DST",
                      entry.name.step, entry.name.attempt, entry.error ? ", whose manifest cannot be read" : ""),
          target));
    }
    if (entry.state == VersionState::kSetAside) set_aside.push_back({entry.name, entry.why});
  }
  return set_aside;
}

// Makes the target a tier of the source's run: the newest attempt of the source is the newest there too. Its file is
// what makes the copies live (docs/format.md). Call it with the target's lock held: whoever saves there would find the
// new attempt, and stop.
Status prepare_target(FileSystem& from, const std::string& source, FileSystem& to, const std::string& target,
                      const Catalog& catalog) {
  Attempt attempt = *catalog.newest_attempt;
  // As late as possible, because an object store has no lock.
  const std::string name = attempt_file(attempt.number);
  SW_ASSIGN(std::string text, read_listed(from, control_path(source), name, kMaxAttemptBytes));
  SW_ASSIGN(const Catalog there, scan_catalog(to, target));
  SW_ASSIGN(const auto set_aside, check_target(there, attempt, RunsOfSource(from, source, catalog), target));
  if (!set_aside.empty()) {
    attempt.set_aside.insert(attempt.set_aside.end(), set_aside.begin(), set_aside.end());
    text = serialize(attempt);
  }
  SW_ASSIGN(const auto other, place_attempt_file(to, target, attempt, text));
  if (!other) return {};
  return fail(refusal(*other == attempt.number
                          ? fmt::format("DST holds attempt {} of another run; choose another DST", attempt.number)
                          : fmt::format("a newer run has used DST (attempt {}; SRC has {}); choose another DST", *other,
                                        attempt.number),
                      target));
}

// The target's directories, and its lock. Null: it has no locks, as an object store. There, what is copied twice is the
// same bytes twice.
Result<std::unique_ptr<FileLock>> lock_target(FileSystem& to, const std::string& target) {
  SW_TRY(ensure_directory(to, target));
  SW_TRY(ensure_directory(to, control_path(target)));
  SW_TRY(to.sync_directory(target));
  auto lock = to.try_lock(lock_path(target));
  if (!lock && locks_unknown(lock.error())) return nullptr;
  return lock;
}

struct Outcome {
  bool already = false;
  double seconds = 0;
};

Result<Outcome> copy_version(FileSystem& from, const std::string& source, FileSystem& to, const std::string& target,
                             const VersionInfo& version, const CopyArguments& arguments, std::uint64_t buffer_bytes) {
  const auto started = std::chrono::steady_clock::now();
  const VersionName name{version.step, version.attempt};
  SW_ASSIGN(const VersionFiles files, VersionFiles::read(from, source, name));
  VersionCopier copier(files, to, target);
  Outcome outcome;
  SW_ASSIGN(outcome.already, copier.is_complete());
  if (!outcome.already) {
    ProgressBar bar(fmt::format("step {}", version.step));
    std::atomic<std::uint64_t> sent = 0;
    CopyOptions options{.threads = arguments.threads, .buffer_bytes = buffer_bytes};
    options.on_sent = [&](std::uint64_t bytes) { bar.update(sent += bytes, version.size_bytes); };
    SW_TRY(copier.copy_all(options));
  }
  if (arguments.verify) {
    ProgressBar bar(fmt::format("verify step {}", version.step));
    SW_ASSIGN(const VerifyReport report,
              verify_version({.fs = &to}, target, name, {},
                             [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); }));
    if (!report.damages.empty())
      return fail(ErrorKind::kCorrupt, fmt::format("the copy is damaged: {}", report.damages.front().what),
                  report.damages.front().file);
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return outcome;
}

std::string without_slash(std::string location) {
  while (location.size() > 1 && location.ends_with('/')) location.pop_back();
  return location;
}

int run_copy(const CopyArguments& arguments) {
  Location location = parse_location(arguments.source);
  location.directory = without_slash(location.directory);
  const std::string target = without_slash(arguments.target);
  const auto buffer_bytes = parse_bytes(arguments.buffer);
  if (!buffer_bytes) {
    print_error(buffer_bytes.error());
    return kFailed;
  }
  std::error_code unknown;
  if (location.directory == target || std::filesystem::equivalent(location.directory, target, unknown)) {
    print_error("SRC and DST are the same place", "choose another DST");
    return kFailed;
  }
  if (arguments.all && location.step) {
    print_error("use either --all or @STEP, not both", "leave one of them out");
    return kFailed;
  }
  const std::unique_ptr<FileSystem> from = open_file_system(location.directory, Access::kRead, arguments.store);
  const std::unique_ptr<FileSystem> to = from ? open_file_system(target, Access::kWrite, arguments.store) : nullptr;
  const std::optional<Catalog> catalog = to ? open_catalog(*from, location.directory) : std::nullopt;
  if (!catalog) return kFailed;
  std::vector<VersionInfo> versions = arguments.all ? catalog->live_versions() : std::vector<VersionInfo>();
  if (versions.empty()) {
    auto version = choose_version(*catalog, location);
    if (!version) return kFailed;
    versions.push_back(std::move(*version));
  }
  if (!catalog->newest_attempt) {
    print_error(
        Error{.kind = ErrorKind::kCorrupt,
              .message = "the newest attempt file of the source cannot be read, so it is not known what is live",
              .path = location.directory});
    return kFailed;
  }
  const auto lock = lock_target(*to, target);  // until the end
  if (!lock) {
    print_error(lock.error());
    return kFailed;
  }
  if (const Status prepared = prepare_target(*from, location.directory, *to, target, *catalog); !prepared) {
    print_error(prepared.error());
    return kFailed;
  }

  OrderedJson copied = OrderedJson::array();
  OrderedJson failed = OrderedJson::array();
  // The newest first: it is the one that a restart needs.
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    const auto outcome = copy_version(*from, location.directory, *to, target, *version, arguments, *buffer_bytes);
    OrderedJson entry = version_json(*version);
    if (!outcome) {
      print_error(outcome.error());
      entry["error"] = outcome.error().to_string();
      failed.push_back(std::move(entry));
      continue;
    }
    entry["already"] = outcome->already;
    entry["seconds"] = outcome->seconds;
    copied.push_back(std::move(entry));
    if (arguments.json) continue;
    if (outcome->already) {
      fmt::print("step {} was already there\n", version->step);
    } else {
      fmt::print("step {}: {} in {} ({})\n", version->step, format_bytes(version->size_bytes),
                 format_seconds(outcome->seconds), rate_text(version->size_bytes, outcome->seconds));
    }
    std::fflush(stdout);
  }
  const int code = failed.empty() ? kFine : kFailed;
  if (code != kFine) print_problem("hint", "start the same command again to continue");
  if (arguments.json)
    fmt::print("{}\n", dump({{"source", location.directory},
                             {"target", target},
                             {"copied", std::move(copied)},
                             {"failed", std::move(failed)}}));
  return code;
}

}  // namespace

Verb add_copy(CLI::App& parser) {
  auto arguments = std::make_shared<CopyArguments>();
  CLI::App* verb = parser.add_subcommand("copy", "Copy checkpoints to another directory or object store");
  verb->add_option("SRC[@STEP]", arguments->source, "Directory or s3://bucket/prefix, and which step")->required();
  verb->add_option("DST", arguments->target, "Directory or s3://bucket/prefix")->required();
  verb->add_flag("--all", arguments->all, "Every live checkpoint, the newest first");
  verb->add_flag("--verify", arguments->verify, "Read the copy back and check every byte");
  verb->add_option("--threads", arguments->threads, "Parts on their way at once")->check(CLI::Range(1, 64));
  verb->add_option("--buffer", arguments->buffer, "Memory for these parts (default: 192MiB)");
  verb->add_flag("--json", arguments->json, "One JSON document on stdout");
  add_store_options(*verb, arguments->store);
  verb->footer(kCopyFooter);
  return {verb, [arguments] { return run_copy(*arguments); }};
}

}  // namespace slackwater::cli
