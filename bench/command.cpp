#include "bench/command.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "cli/location.hpp"
#include "cli/text.hpp"

namespace slackwater::bench {
namespace {

bool write_json(const std::string& path, const cli::OrderedJson& json) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const std::string text = cli::dump(json) + "\n";
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace

void show_progress(const std::string& what) {
  if (isatty(STDERR_FILENO) != 1) return;
  fmt::print(stderr, "\r\033[K{}", what);
  std::fflush(stderr);
}

int report_failure(const Error& error) {
  cli::print_error(error);
  return error.kind == ErrorKind::kCorrupt ? cli::kDamaged : cli::kFailed;
}

cli::OrderedJson verdicts_json(const std::vector<Verdict>& verdicts) {
  cli::OrderedJson json = cli::OrderedJson::array();
  for (const Verdict& verdict : verdicts) {
    json.push_back(
        {{"what", verdict.what}, {"measured", verdict.measured}, {"limit", verdict.limit}, {"met", verdict.met()}});
  }
  return json;
}

int finish(const std::vector<Verdict>& verdicts, const cli::OrderedJson& json, const std::string& json_file,
           bool strict) {
  if (!json_file.empty() && !write_json(json_file, json)) {
    cli::print_problem("error", fmt::format("cannot write the figures to {}", json_file));
    return cli::kFailed;
  }
  const bool missed = !std::ranges::all_of(verdicts, &Verdict::met);
  return missed && strict ? cli::kFailed : cli::kFine;
}

}  // namespace slackwater::bench
