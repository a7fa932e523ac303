#include "cli/doctor/report.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "cli/doctor/machine.hpp"
#include "cli/text.hpp"

namespace slackwater::cli::doctor {
namespace {

int number_in_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

Ranks ranks_from_environment() {
  return {.rank = number_in_environment("RANK", 0),
          .local_rank = number_in_environment("LOCAL_RANK", 0),
          .world = number_in_environment("WORLD_SIZE", 1)};
}

std::string host_name() {
  utsname name{};
  return ::uname(&name) == 0 ? name.nodename : "?";
}

void Report::add(Check check) {
  ++counts_[static_cast<std::size_t>(check.verdict)];
  if (ranks_.rank != 0) {
    if (check.verdict == Verdict::kWarn || check.verdict == Verdict::kFail)
      fmt::print(stderr, "{}, rank {}: {}\n", host_name(), ranks_.rank, check_text(check, false));
  } else if (!settings_.json) {
    fmt::print("{}\n", check_text(check, ranks_.world > 1));
    std::fflush(stdout);
  }
  checks_.push_back(std::move(check));
}

void Report::print_end(double seconds) const {
  if (ranks_.rank != 0) return;
  if (!settings_.json) {
    fmt::print("{} PASS, {} WARN, {} FAIL, {} SKIP in {:.0f} s\n", count(Verdict::kPass), count(Verdict::kWarn),
               count(Verdict::kFail), count(Verdict::kSkip), seconds);
    return;
  }
  utsname name{};
  (void)::uname(&name);
  const MemoryFacts memory = read_memory({});
  const std::string directory = std::filesystem::absolute(settings_.directory).lexically_normal().string();
  const auto mount = find_mount(read_text("/proc/self/mountinfo"), directory);
  OrderedJson checks = OrderedJson::array();
  for (const Check& check : checks_) checks.push_back(check_json(check));
  const OrderedJson document{{"version", SLACKWATER_VERSION},
                             {"directory", directory},
                             {"file_system", mount ? mount->type : ""},
                             {"quick", settings_.quick},
                             {"host",
                              {{"name", name.nodename},
                               {"kernel", name.release},
                               {"machine", name.machine},
                               {"processors", std::thread::hardware_concurrency()},
                               {"memory_bytes", memory.total_bytes}}},
                             {"ranks", ranks_.world},
                             {"seconds", seconds},
                             {"failed", count(Verdict::kFail)},
                             {"warned", count(Verdict::kWarn)},
                             {"checks", std::move(checks)}};
  fmt::print("{}\n", dump(document));
}

}  // namespace slackwater::cli::doctor
