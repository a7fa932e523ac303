#include "cli/location.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/json_output.hpp"
#include "cli/text.hpp"
#include "version/names.hpp"

namespace slackwater::cli {
namespace {

namespace stdfs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code ignored;
  return stdfs::exists(path, ignored);
}

bool is_slackwater_directory(const stdfs::path& path) {
  std::error_code ignored;
  return stdfs::is_directory(path / kControlDirectory, ignored);
}

// What the user may have meant by a directory that holds no checkpoints.
std::string guess(const std::string& directory) {
  const stdfs::path path = stdfs::path(directory).lexically_normal();
  const stdfs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  const stdfs::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
  if (const auto version = parse_version_directory(name.string());
      version && is_slackwater_directory(parent.empty() ? "." : parent))
    return fmt::format("this is one version; name it as {}@{}", parent.empty() ? "." : parent.string(), version->step);

  constexpr std::size_t kNamed = 3;
  std::vector<std::string> children;
  std::error_code error;
  for (stdfs::directory_iterator entry(path, error), end; !error && entry != end && children.size() < kNamed;
       entry.increment(error))
    if (is_slackwater_directory(entry->path())) children.push_back(entry->path().string());
  if (!children.empty()) {
    std::ranges::sort(children);
    return fmt::format("did you mean {}?", fmt::join(children, " or "));
  }
  return "name the directory the trainer saves to; after the first save it has a folder .slackwater";
}

}  // namespace

void print_error(const Error& error) {
  print_problem("error", error.to_string());
  if (error.kind == ErrorKind::kPermission && !is_object_location(error.path) && !error.path.empty())
    print_problem("hint", error.sys_errno == EROFS ? "this file system is mounted read-only"
                                                   : "run this as a user who may, such as the trainer's");
}

void print_error(std::string_view message, std::string_view hint) {
  print_problem("error", message);
  print_problem("hint", hint);
}

Location parse_location(const std::string& text) {
  const std::size_t at = text.rfind('@');
  if (at == std::string::npos || at == 0 || exists(text)) return {text, std::nullopt};
  std::uint64_t step = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + at + 1, end, step);
  if (error != std::errc() || stopped != end) return {text, std::nullopt};
  return {text.substr(0, at), step};
}

void add_store_options(CLI::App& verb, S3Options& store) {
  const auto help = [](std::string_view name) {
    const auto row = std::ranges::find(tier_option_table(), name, &OptionInfo::name);
    return std::string(row->help);
  };
  constexpr const char* kGroup = "Object store";
  verb.add_option("--endpoint", store.endpoint, help("endpoint"))->group(kGroup);
  verb.add_option("--region", store.region, help("region"))->group(kGroup);
  verb.add_option("--profile", store.profile, help("profile"))->group(kGroup);
  verb.add_flag("--path-style", store.path_style, help("path_style"))->group(kGroup);
}

std::unique_ptr<FileSystem> open_file_system(const std::string& location, Access access, const S3Options& store) {
  auto fs = make_file_system_at(location, access, store);
  if (fs) return std::move(*fs);
  print_error(fs.error());
  return nullptr;
}

std::optional<Catalog> open_catalog(FileSystem& fs, const std::string& directory) {
  auto catalog = scan_catalog(fs, directory);
  if (!catalog) {
    print_error(catalog.error());
    if (catalog.error().kind == ErrorKind::kNotFound)
      print_problem("hint", is_object_location(directory)
                                ? "check bucket and prefix; there are no objects with this prefix"
                                : "check the path; there is nothing of that name");
    return std::nullopt;
  }
  const auto control = fs.status(control_path(directory));
  if (catalog->entries.empty() && (!control || control->type != FileType::kDirectory)) {
    print_error(fmt::format("this is not a Slackwater directory: {}", directory),
                is_object_location(directory) ? "name the location that a run saves or copies to" : guess(directory));
    return std::nullopt;
  }
  for (const std::string& warning : catalog->warnings) print_problem("warning", warning);
  return std::move(*catalog);
}

std::optional<std::vector<std::uint64_t>> steps_named(const Location& location, std::vector<std::uint64_t> steps) {
  if (location.step) steps.push_back(*location.step);
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  if (!steps.empty()) return steps;
  print_error("no step is named", fmt::format("slackwater ls {} shows the steps there are", location.directory));
  return std::nullopt;
}

std::optional<VersionInfo> choose_version(const Catalog& catalog, const Location& location) {
  const std::vector<VersionInfo> live = catalog.live_versions();
  if (!location.step && !live.empty()) return live.back();
  for (const VersionInfo& version : live)
    if (version.step == location.step) return version;

  if (!location.step) {
    print_problem("error", fmt::format("there is no committed checkpoint in {}", location.directory));
    if (!catalog.entries.empty())
      print_problem("hint", fmt::format("slackwater ls --all {} shows what is there", location.directory));
    return std::nullopt;
  }
  print_problem("error", fmt::format("there is no checkpoint of step {} in {}", *location.step, location.directory));
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.name.step != *location.step) continue;
    if (entry.error) {
      print_error(*entry.error);
    } else {
      print_problem("note", fmt::format("{} is not live: it is {}{}", entry.info.directory, state_name(entry.state),
                                        entry.why.empty() ? "" : ": " + entry.why));
    }
  }
  constexpr std::size_t kNamed = 10;
  std::vector<std::uint64_t> steps;
  for (auto version = live.rbegin(); version != live.rend() && steps.size() < kNamed; ++version)
    steps.push_back(version->step);
  if (steps.empty()) {
    print_problem("hint", fmt::format("no step is committed here; slackwater ls --all {} shows what is there",
                                      location.directory));
  } else {
    print_problem("hint", fmt::format("there {} {}{}", live.size() == 1 ? "is only step" : "are steps",
                                      fmt::join(steps, ", "), steps.size() < live.size() ? ", ..." : ""));
  }
  return std::nullopt;
}

}  // namespace slackwater::cli
