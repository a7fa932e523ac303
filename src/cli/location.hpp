// DIR[@STEP] as people type it, and what is found there. These functions print their errors, with a hint, so that a
// verb only returns its exit code.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/file_system.hpp"
#include "store/s3/locations.hpp"
#include "version/catalog.hpp"

namespace CLI {
class App;
}

namespace slackwater::cli {

struct Location {
  std::string directory;
  std::optional<std::uint64_t> step;
};

// "runs/gpt@42" is step 42 of runs/gpt, unless a directory of that very name exists.
[[nodiscard]] Location parse_location(const std::string& text);

// --endpoint, --region, --profile, --path-style: how to reach the object store of s3:// locations.
void add_store_options(CLI::App& verb, S3Options& store);

// The file system of a location: the machine's own, or an object store (s3://). null after an error.
[[nodiscard]] std::unique_ptr<FileSystem> open_file_system(const std::string& location, Access access,
                                                           const S3Options& store);

// Prints the catalog's warnings. nullopt after an error: missing, unreadable, or not a directory of Slackwater.
[[nodiscard]] std::optional<Catalog> open_catalog(FileSystem& fs, const std::string& directory);

// The live version of the step; without a step, the newest one. nullopt after an error that lists the live steps.
[[nodiscard]] std::optional<VersionInfo> choose_version(const Catalog& catalog, const Location& location);

// The steps of DIR@STEP and STEP..., each once, lowest first. nullopt after an error: none is named.
[[nodiscard]] std::optional<std::vector<std::uint64_t>> steps_named(const Location& location,
                                                                    std::vector<std::uint64_t> steps);

// "error: ..." for an Error, and "hint: ..." if its kind has a remedy.
void print_error(const Error& error);
// "error: ..." and "hint: ...".
void print_error(std::string_view message, std::string_view hint);

}  // namespace slackwater::cli
