#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/doctor/all_gpus.hpp"
#include "cli/doctor/child.hpp"
#include "cli/doctor/copies.hpp"
#include "cli/doctor/devices.hpp"
#include "cli/doctor/machine.hpp"
#include "cli/doctor/order.hpp"
#include "cli/doctor/report.hpp"
#include "cli/doctor/storage.hpp"
#include "cli/doctor/thresholds.hpp"
#include "cli/doctor/torch.hpp"
#include "cli/location.hpp"
#include "cli/text.hpp"
#include "cli/verbs.hpp"
#include "device/scratch.hpp"

namespace slackwater::cli {
namespace doctor {
namespace {

constexpr const char* kDoctorFooter =
    R"(One line per check: PASS, WARN, FAIL, or SKIP for what cannot be checked here. Each has what was found, what is
wanted, and what to do. docs/doctor.md explains every line.
Everything is written to a new subdirectory of DIR, which is removed again.
Exit codes: 0 no FAIL, 1 at least one FAIL, 2 wrong usage.

Under torchrun, only rank 0 prints. Other nodes print their WARN and FAIL lines to stderr.

Keys of --json: version, directory, file_system, quick, host [name, kernel, machine, processors, memory_bytes], ranks,
seconds, failed, warned, checks [section, check, status, figure, threshold, remedy, rank, and values for some].

Examples:
  slackwater doctor /nvme/run
  slackwater doctor /nvme/run --state-bytes 40GiB --keep 3
  slackwater doctor /nvme/run --json > doctor.json
  torchrun --nproc-per-node 8 --no-python slackwater doctor /nvme/run)";

// A worker process per part, in this order. The GPUs come after "driver".
struct Part {
  const char* worker;
  const char* section;
  int seconds;  // it may take
};
constexpr Part kParts[] = {
    {"machine", "machine", 15}, {"storage", "storage", 120}, {"host", "copies", 90}, {"driver", "device", 30}};
constexpr Part kGpuPart{"gpu", "device", 120};
constexpr Part kAllGpusPart{"all-gpus", "device", 60};  // where there are several

// Runs one part in this process. Its lines go to stdout.
int run_worker(const Settings& settings, const std::string& worker) {
  const Emit emit = [](const Check& check) {
    fmt::print("{}\n", dump(check_json(check)));
    std::fflush(stdout);
  };
  const MachineFiles files;
  const std::uint64_t usable_bytes = read_memory(files).usable_bytes();
  if (worker == "machine") {
    machine_checks(files, settings.state_bytes, emit);
  } else if (worker == "storage") {
    storage_checks(settings, files, emit);
  } else if (worker == "host") {
    emit(touch_check(settings, usable_bytes));
    const std::unique_ptr<Scratch> scratch = make_host_scratch();
    emit(rounds_check(settings, *scratch));
    scratch->free_all();
    emit(missing_fence_check(settings, *scratch));
    scratch->free_all();
    copy_checks(settings, *scratch, usable_bytes / 8, emit);
  } else if (worker == "driver") {
    fmt::print("{{\"gpus\":{}}}\n", driver_checks(settings, files, emit));
  } else if (worker == kAllGpusPart.worker) {
    const auto driver = cuda::inspect_driver(settings.cuda_driver);
    all_gpus_checks(settings, driver ? driver->device_count : 0, usable_bytes, emit);
  } else if (worker.starts_with("gpu")) {
    gpu_checks(settings, std::atoi(worker.c_str() + 3), usable_bytes, emit);
  } else {
    return kFailed;
  }
  std::fflush(stdout);
  ::_exit(kFine);  // what a device or a disk holds up is left behind
}

class Doctor {
 public:
  Doctor(Settings settings, const Ranks& ranks)
      : settings_(std::move(settings)), ranks_(ranks), report_(settings_, ranks) {}
  Doctor(const Doctor&) = delete;
  Doctor& operator=(const Doctor&) = delete;
  ~Doctor() {
    std::error_code ignored;
    if (!settings_.scratch.empty()) std::filesystem::remove_all(settings_.scratch, ignored);
    if (ranks_.rank == 0 && !shared_.empty()) std::filesystem::remove_all(shared_, ignored);
  }

  // The exit code. A signal that came meanwhile is left in signals().
  int run() {
    const Stopwatch watch;
    settings_.scratch = settings_.directory + "/.slackwater-doctor-XXXXXX";
    if (::mkdtemp(settings_.scratch.data()) == nullptr) {
      const int why = errno;
      settings_.scratch.clear();
      add({.section = "storage",
           .name = "directory",
           .verdict = Verdict::kFail,
           .figure = fmt::format("cannot make a subdirectory of {}: {}", settings_.directory, std::strerror(why)),
           .remedy = "choose a directory that you may write to"});
    } else {
      if (ranks_.local_rank == 0) run_parts();
      if (signals_.received() == 0) run_torch();
    }
    if (signals_.received() != 0) return kFailed;
    report_.print_end(watch.seconds());
    // torchrun kills all ranks when one fails, and rank 0 has to print its report.
    return ranks_.rank == 0 && report_.count(Verdict::kFail) > 0 ? kDamaged : kFine;
  }
  [[nodiscard]] int signal() const { return signals_.received(); }

 private:
  void add(Check check) { report_.add(std::move(check)); }

  void run_parts() {
    for (const Part& part : kParts) run_part(part, part.worker);
    for (int gpu = 0; gpu < gpus_; ++gpu) run_part(kGpuPart, fmt::format("gpu{}", gpu));
    if (gpus_ > 1) run_part(kAllGpusPart, kAllGpusPart.worker);
  }

  void run_part(const Part& part, const std::string& worker) {
    if (signals_.received() != 0) return;
    std::vector<std::string> command{"/proc/self/exe",
                                     "doctor",
                                     settings_.directory,
                                     "--worker",
                                     worker,
                                     "--scratch",
                                     settings_.scratch,
                                     "--state-bytes",
                                     fmt::format("{}", settings_.state_bytes),
                                     "--keep",
                                     fmt::format("{}", settings_.keep)};
    if (settings_.cuda_driver_given) command.insert(command.end(), {"--cuda-driver", settings_.cuda_driver});
    if (settings_.quick) command.emplace_back("--quick");
    const std::chrono::seconds limit(settings_.quick ? std::min(part.seconds, 30) : part.seconds);
    std::string last_check = "none";
    const ChildEnd end = run_child(command, limit, signals_, [&](std::string_view line) {
      auto check = parse_check(line);
      if (!check) return take_gpus(line);
      last_check = check->name;
      check->rank = ranks_.rank;
      add(std::move(*check));
      return true;
    });
    if (end.fine() || end.interrupted) return;
    add({.section = part.section,
         .name = fmt::format("{} checks", worker),
         .verdict = Verdict::kFail,
         .figure = fmt::format("{}, after the check \"{}\" {}",
                               end.timed_out ? fmt::format("did not end within {} s", limit.count()) : end.text(),
                               last_check, end.error_tail),
         .remedy = end.timed_out ? "something hangs: dmesg, and nvidia-smi for a GPU"
                                 : "report it with slackwater doctor --json",
         .rank = ranks_.rank});
  }

  bool take_gpus(std::string_view line) {
    const OrderedJson object = OrderedJson::parse(line, nullptr, false);
    if (!object.is_object() || !object.contains("gpus")) return false;
    gpus_ = object["gpus"].get<int>();
    return true;
  }

  void run_torch() {
    const Emit emit = [this](Check check) { add(std::move(check)); };
    if (!settings_.torch)
      return emit({.section = "torch", .name = "python", .verdict = Verdict::kSkip, .figure = "--no-torch"});
    std::chrono::milliseconds limit(static_cast<std::int64_t>(settings_.torch_timeout_s * 1e3));
    std::string directory = settings_.scratch;
    if (ranks_.world > 1) {
      // All ranks need the same directory, without having talked yet. The port of their rendezvous tells runs apart.
      const char* const port = std::getenv("MASTER_PORT");
      shared_ = settings_.directory + "/.slackwater-doctor-torch-" + (port == nullptr ? "0" : port);
      directory = shared_;
      std::error_code ignored;
      std::filesystem::create_directory(directory, ignored);
      // Ranks that had nothing else to do wait for those that had.
      for (const Part& part : kParts) limit += std::chrono::seconds(part.seconds);
    }
    torch_checks(settings_, directory, limit, signals_, emit);
  }

  Settings settings_;
  const Ranks ranks_;
  HeldSignals signals_;
  Report report_;
  std::string shared_;  // the directory of all ranks; removed by rank 0
  int gpus_ = 0;
};

struct DoctorArguments {
  Settings settings;
  std::string state_bytes;
  std::string worker;
  bool no_torch = false;
};

int run_doctor(DoctorArguments arguments) {
  Settings& settings = arguments.settings;
  if (!arguments.state_bytes.empty()) {
    const auto bytes = parse_bytes(arguments.state_bytes);
    if (!bytes) {
      print_error(bytes.error());
      return kFailed;
    }
    settings.state_bytes = *bytes;
  }
  const double load = load_of(read_text("/proc/loadavg"));
  settings.soft = settings.quick || load > kTooMuchLoadPerProcessor * std::thread::hardware_concurrency();
  if (!arguments.worker.empty()) return run_worker(settings, arguments.worker);
  settings.torch = !arguments.no_torch;
  std::error_code ignored;
  if (!std::filesystem::is_directory(settings.directory, ignored)) {
    print_error(fmt::format("{} is not a directory", settings.directory), "make it first, on the disk to be checked");
    return kFailed;
  }
  int code = kFine;
  int signal = 0;
  {
    Doctor doctor(settings, ranks_from_environment());
    code = doctor.run();
    signal = doctor.signal();
  }
  if (signal != 0) {  // everything is removed; now end as the signal would have done
    std::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  return code;
}

}  // namespace
}  // namespace doctor

Verb add_doctor(CLI::App& parser) {
  auto arguments = std::make_shared<doctor::DoctorArguments>();
  doctor::Settings& settings = arguments->settings;
  CLI::App* verb = parser.add_subcommand("doctor", "Check whether this machine is ready for checkpointing");
  verb->add_option("DIR", settings.directory, "Directory that checkpoints will go to; default: the current one");
  verb->add_option("--state-bytes", arguments->state_bytes, "Size of one checkpoint on this node, such as 40GiB");
  verb->add_option("--keep", settings.keep, "Checkpoints that will be kept; 0: all; default 2");
  verb->add_flag("--json", settings.json, "One JSON document on stdout, for bug reports");
  CLI::Option* driver = verb->add_option("--cuda-driver", settings.cuda_driver, "Library of the CUDA driver");
  verb->add_option("--python", settings.python, "Interpreter that has torch; default: beside this program, or in PATH");
  verb->add_flag("--no-torch", arguments->no_torch, "Leave out the checks with torch");
  verb->add_option("--torch-timeout", settings.torch_timeout_s, "Seconds that those may take; default 90")
      ->check(CLI::PositiveNumber);
  verb->add_flag("--quick", settings.quick, "A tenth of the work; speeds are then never a FAIL");
  verb->add_option("--worker", arguments->worker)->group("");  // how it calls itself
  verb->add_option("--scratch", settings.scratch)->group("");
  verb->footer(doctor::kDoctorFooter);
  return {verb, [arguments, driver] {
            arguments->settings.cuda_driver_given = driver->count() > 0;
            return doctor::run_doctor(std::move(*arguments));
          }};
}

}  // namespace slackwater::cli
