#include "cli/command_line.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/location.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"

namespace slackwater::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  slackwater ls runs/gpt                        list the steps
  slackwater show runs/gpt                      show what the newest checkpoint holds
  slackwater show runs/gpt@42 'model.*.weight'  show some tensors of step 42
  slackwater verify runs/gpt                    read every byte of every checkpoint
  slackwater verify runs/gpt@42 --json          the same for one step, for programs
  slackwater copy runs/gpt@42 s3://bucket/gpt   copy step 42 to an object store, or back
  slackwater pin runs/gpt 42                    keep step 42, whatever is deleted around it
  slackwater rm runs/gpt 3 9                    remove two steps
  slackwater gc runs/gpt                        show what killed runs left behind; --delete removes it
  slackwater export runs/gpt hf-model           write weights that transformers loads
  slackwater import model.pt runs/new           make a checkpoint of a file of torch.save
  slackwater doctor /nvme/run                   check whether this machine is ready

Data goes to stdout, messages to stderr. Exit codes: 0 fine, 1 damage found, 2 wrong usage, refused, or nothing there
that can be read.)";

// How many letters must be added, dropped or replaced to make one word of the other.
std::size_t edits_between(const std::string& one, const std::string& other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The verb that was meant, if the first word is none: half of its letters may be wrong. Those that --help does not list
// are not named.
std::optional<std::string> nearest_verb(const std::string& word, const std::vector<Verb>& verbs) {
  std::optional<std::string> nearest;
  std::size_t least = std::max<std::size_t>(1, word.size() / 2) + 1;
  for (const Verb& verb : verbs) {
    const std::size_t edits = edits_between(word, verb.parser->get_name());
    if (verb.parser->get_group().empty() || edits >= least) continue;
    least = edits;
    nearest = verb.parser->get_name();
  }
  return nearest;
}

std::string parse_problem(const CLI::App& parser, const std::vector<Verb>& verbs, const CLI::ParseError& error) {
  if (!parser.get_subcommands().empty()) return error.what();
  const std::vector<std::string> words = parser.remaining();
  const auto word = std::ranges::find_if(words, [](const std::string& each) { return !each.starts_with('-'); });
  if (word == words.end()) return words.empty() ? "no command was given" : error.what();
  const std::optional<std::string> nearest = nearest_verb(*word, verbs);
  return fmt::format("'{}' is not a command{}", *word, nearest ? fmt::format("; did you mean '{}'?", *nearest) : "");
}

int parse_and_run(int argc, char** argv) {
  CLI::App parser(
      "Lists, shows, verifies, copies, imports, exports, pins and removes Slackwater checkpoints, and "
      "checks machines for them.",
      "slackwater");
  parser.set_version_flag("--version", "slackwater " SLACKWATER_VERSION);
  parser.footer(kFooter);
  parser.require_subcommand(1);
  const std::vector<Verb> verbs{add_ls(parser),     add_show(parser),   add_verify(parser), add_copy(parser),
                                add_pin(parser),    add_rm(parser),     add_gc(parser),     add_import(parser),
                                add_export(parser), add_doctor(parser), add_keeper(parser)};
  try {
    parser.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return parser.exit(error);  // --help, --version
    print_error(parse_problem(parser, verbs, error),
                "slackwater --help lists the commands, slackwater COMMAND --help explains one of them");
    return kFailed;
  }
  for (const Verb& verb : verbs)
    if (verb.parser->parsed()) return verb.run();
  return kFailed;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  int code = kFailed;
  try {
    code = parse_and_run(argc, argv);
  } catch (const std::exception& error) {  // from the libraries: out of memory, stdout gone
    print_problem("error", error.what());
    return kFailed;
  }
  if (std::fflush(stdout) != 0) {
    print_problem("error", "cannot write to stdout");
    return kFailed;
  }
  return code;
}

}  // namespace slackwater::cli
