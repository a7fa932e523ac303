// DIR[@STEP] as people type it, and what is found there. Errors are printed with a hint, so that verbs only return their code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commit/catalog.hpp"
#include "os/file_system.hpp"

namespace slackwater::cli {

struct Location {
  std::string directory;
  std::optional<std::uint64_t> step;
};

// "runs/gpt@42" is step 42 of runs/gpt, unless a directory of that very name exists.
[[nodiscard]] Location parse_location(const std::string& text);

// nullopt after an error was printed: missing, unreadable, or not a directory of Slackwater. Warnings of the catalog are printed.
[[nodiscard]] std::optional<Catalog> open_catalog(FileSystem& fs, const std::string& directory);

// The version that counts for the step, or the newest. nullopt after an error with the steps there are.
[[nodiscard]] std::optional<VersionInfo> choose_version(const Catalog& catalog, const Location& location);

// The steps of DIR@STEP and STEP..., each once, lowest first. nullopt after an error: there are none.
[[nodiscard]] std::optional<std::vector<std::uint64_t>> steps_named(const Location& location,
                                                                    std::vector<std::uint64_t> steps);

// "error: ..." for an Error, and "hint: ..." where its kind has a remedy.
void print_error(const Error& error);

}  // namespace slackwater::cli
