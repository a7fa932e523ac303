// `slackwater doctor` as people run it, and the children it runs.
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "cli/doctor/child.hpp"
#include "cli/doctor/torch.hpp"
#include "unit/cli/cli_fixture.hpp"

namespace slackwater::test {
namespace {

using cli::doctor::Check;
using cli::doctor::ChildEnd;
using cli::doctor::HeldSignals;
using cli::doctor::parse_check;
using cli::doctor::run_child;
using cli::doctor::Settings;
using cli::doctor::Verdict;
using cli::doctor::verdict_name;

using Statuses = std::map<std::string, std::string>;  // check -> status

class DoctorTest : public CliTest {
 protected:
  DoctorTest() { std::filesystem::create_directory(root_); }
  ~DoctorTest() override {
    ::unsetenv("SWSIM_CONFIG");
    for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE"}) ::unsetenv(name);
  }

  // What the worker for the first GPU says about a broken one.
  Statuses gpu_with(const char* fault) {
    ::setenv("SWSIM_CONFIG", fault, 1);
    const Outcome outcome =
        run({"doctor", root_, "--quick", "--worker", "gpu0", "--scratch", root_, "--cuda-driver", SW_SIM_CUDA_LIBRARY});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    Statuses statuses;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      const auto check = parse_check(line);
      EXPECT_TRUE(check.has_value()) << line;
      if (check) statuses[check->name] = verdict_name(check->verdict);
    }
    return statuses;
  }

  // A script that plays the interpreter: `body` is run for -m, and -c (the search for the package) ends with `found`.
  std::string fake_python(const std::string& body, int found = 0) const {
    const std::string path = directory_ / "python3";
    std::ofstream(path) << "#!/bin/sh\n[ \"$1\" = -c ] && exit " << found << "\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  std::vector<Check> torch(const std::string& python, std::chrono::milliseconds limit = std::chrono::minutes(1)) const {
    Settings settings;
    settings.python = python;
    settings.quick = true;
    HeldSignals signals;
    std::vector<Check> checks;
    cli::doctor::torch_checks(settings, root_, limit, signals,
                              [&](Check check) { checks.push_back(std::move(check)); });
    return checks;
  }
};

TEST_F(DoctorTest, WholeRunOnTheSimulatedDriver) {
  ::setenv("SWSIM_CONFIG", "devices=2", 1);
  const Outcome outcome =
      run({"doctor", root_, "--quick", "--no-torch", "--json", "--cuda-driver", SW_SIM_CUDA_LIBRARY});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto document = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(document["version"], SLACKWATER_VERSION);
  EXPECT_EQ(document["failed"], 0);
  EXPECT_EQ(document["host"]["processors"], std::thread::hardware_concurrency());
  Statuses statuses;
  for (const auto& check : document["checks"]) {
    EXPECT_NE(check["status"], "FAIL") << check;
    statuses[check["check"]] = check["status"];
  }
  // Nothing that depends on the speed of this machine.
  for (const char* name : {"host memory order", "host memory missing fence", "driver", "cuda:0", "cuda:0 copy engines",
                           "cuda:0 free memory", "cuda:0 batched copies", "cuda:0 order", "cuda:0 missing fence",
                           "cuda:0 full GPU", "cuda:1 order"})
    EXPECT_EQ(statuses[name], "PASS") << name;
  EXPECT_EQ(statuses["python"], "SKIP");
  for (const char* name : {"kernel", "io_uring", "memlock", "huge pages", "memory", "NUMA", "O_DIRECT", "write", "read",
                           "fsync", "free space", "pool touch", "cuda:0 speed", "cuda:0 register", "cuda:0 copy turns",
                           "cuda:1 copy turns", "all GPUs at once"})
    EXPECT_TRUE(statuses.contains(name)) << name;
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(DoctorTest, ADirectoryThatCannotBeWrittenToIsOneFailLine) {
  const Outcome outcome = run({"doctor", "/proc", "--no-torch"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(outcome.out.starts_with("FAIL  storage       directory")) << outcome.out;
  EXPECT_NE(outcome.out.find("0 PASS, 0 WARN, 1 FAIL, 0 SKIP"), std::string::npos) << outcome.out;
}

TEST_F(DoctorTest, WithoutAGpuTheLineOfTurnsSaysWhyItIsSkipped) {
  const Outcome outcome = run({"doctor", root_, "--quick", "--worker", "driver", "--scratch", root_, "--cuda-driver",
                               directory_ / "no-such-driver.so"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(R"("check":"copy turns","status":"SKIP","figure":"no GPU that can be used)"),
            std::string::npos)
      << outcome.out;
}

TEST_F(DoctorTest, WrongUsageIsCodeTwo) {
  EXPECT_EQ(run({"doctor", root_ + "/missing"}).code, 2);
  EXPECT_EQ(run({"doctor", root_, "--state-bytes", "much"}).code, 2);
  EXPECT_EQ(run({"doctor", root_, "--torch-timeout", "-1"}).code, 2);
  EXPECT_EQ(run({"doctor", root_, "--unknown"}).code, 2);
}

TEST_F(DoctorTest, AFullDeviceFailsInItsLine) {
  const Statuses statuses = gpu_with("leave_bytes=8388608");
  EXPECT_EQ(statuses.at("cuda:0 free memory"), "FAIL");
  EXPECT_EQ(statuses.at("cuda:0"), "SKIP");
}

TEST_F(DoctorTest, RefusedRegistrationFailsInItsLine) {
  EXPECT_EQ(gpu_with("fail_call=cuMemHostRegister_v2:1:2:1").at("cuda:0 register"), "FAIL");
}

TEST_F(DoctorTest, ALostDeviceFails) { EXPECT_EQ(gpu_with("lose_device=1").at("cuda:0 context"), "FAIL"); }

TEST_F(DoctorTest, CorruptedCopiesFail) { EXPECT_EQ(gpu_with("flip_copies=1").at("cuda:0 copy and back"), "FAIL"); }

TEST_F(DoctorTest, StalledCopiesFailAndEnd) {
  for (const char* fault : {"stall=on", "stall=halfway"})
    EXPECT_EQ(gpu_with(fault).at("cuda:0 copy and back"), "FAIL") << fault;
}

TEST_F(DoctorTest, ACopyThatBreaksOffFailsInItsLine) {
  EXPECT_EQ(gpu_with("fail_copy=1:700").at("cuda:0 copy and back"), "FAIL");
  // A later one fails what is checked then, and the device cannot be used any more.
  const Statuses later = gpu_with("fail_copy=5:700");
  EXPECT_EQ(later.at("cuda:0 batched copies"), "FAIL");
  EXPECT_EQ(later.at("cuda:0 copy and back"), "FAIL");
}

TEST_F(DoctorTest, CopiesThatAreSeldomWrongFailInTheLineOfOrder) {
  const Statuses statuses = gpu_with("flip_copies=97");
  EXPECT_EQ(statuses.at("cuda:0 order"), "FAIL");
  EXPECT_FALSE(statuses.contains("cuda:0 copy and back"));
}

TEST_F(DoctorTest, RegistrationsThatTakeLongAreAWarningInTheirLine) {
  EXPECT_EQ(gpu_with("register_cost=260000000:0").at("cuda:0 register"), "WARN");
}

TEST_F(DoctorTest, ACallThatFailsOnceFailsInTheLineThatMadeIt) {
  EXPECT_EQ(gpu_with("fail_call=cuMemcpyBatchAsync_v2:1:719").at("cuda:0 batched copies"), "FAIL");
  EXPECT_EQ(gpu_with("fail_call=cuEventRecord:40:719").at("cuda:0 batched copies"), "FAIL");
}

TEST_F(DoctorTest, OtherRanksPrintNothing) {
  ::setenv("RANK", "1", 1);
  ::setenv("LOCAL_RANK", "1", 1);
  ::setenv("WORLD_SIZE", "2", 1);
  const Outcome outcome = run({"doctor", root_, "--no-torch"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "");
}

TEST_F(DoctorTest, ASignalEndsItAndNothingIsLeft) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(nothing, STDOUT_FILENO);
    ::execl(SLACKWATER_BINARY, SLACKWATER_BINARY, "doctor", root_.c_str(), "--no-torch", nullptr);
    ::_exit(127);
  }
  while (std::filesystem::is_empty(root_) && ::waitpid(child, nullptr, WNOHANG) == 0) std::this_thread::yield();
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(DoctorTest, PassesOnTheLinesOfTorch) {
  const auto checks = torch(fake_python(
      "echo noise\n"
      "echo \"{\\\"section\\\": \\\"torch\\\", \\\"check\\\": \\\"$*\\\", \\\"status\\\": \\\"PASS\\\", "
      "\\\"figure\\\": "
      "\\\"12 rounds equal\\\", \\\"threshold\\\": \\\"all\\\", \\\"remedy\\\": \\\"\\\", \\\"rank\\\": 1}\""));
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].name, "-m slackwater.doctor --dir " + root_ + " --quick");
  EXPECT_EQ(checks[0].figure, "12 rounds equal");
  EXPECT_EQ(checks[0].rank, 1);
}

TEST_F(DoctorTest, ACrashOfTorchIsOneFailWithItsLastWords) {
  const auto checks = torch(fake_python("echo 'ImportError: no module named torch' >&2; exit 1"));
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, Verdict::kFail);
  EXPECT_NE(checks[0].figure.find("ImportError: no module named torch"), std::string::npos) << checks[0].figure;
}

TEST_F(DoctorTest, ATorchThatHangsIsKilledWithItsChildren) {
  const auto checks = torch(fake_python("sleep 1000 & sleep 1000"), std::chrono::milliseconds(200));
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, Verdict::kFail);
  EXPECT_NE(checks[0].figure.find("did not end within"), std::string::npos) << checks[0].figure;
}

TEST_F(DoctorTest, APythonWithoutThePackageIsNamed) {
  const auto checks = torch(fake_python("exit 9", 3));
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, Verdict::kFail);  // since it was named by the user
  EXPECT_NE(checks[0].figure.find("has no package slackwater"), std::string::npos);
  EXPECT_EQ(torch("/nonexistent/python3").at(0).verdict, Verdict::kFail);
}

TEST_F(DoctorTest, FindsThePythonBesideItself) {
  const std::string own = directory_ / "own";
  std::filesystem::create_symlink(directory_ / "slackwater", own);
  EXPECT_EQ(cli::doctor::find_python({}, own), "python3");
  const std::string python = fake_python("");
  EXPECT_EQ(cli::doctor::find_python({}, own), python);
}

TEST_F(DoctorTest, AChildThatCrashesIsToldByItsSignal) {
  HeldSignals signals;
  std::vector<std::string> lines;
  const ChildEnd end =
      run_child({"sh", "-c", "printf 'a\\nb\\npart'; echo why >&2; kill -SEGV $$"}, std::chrono::minutes(1), signals,
                [&](std::string_view line) { return lines.emplace_back(line) != "b"; });
  EXPECT_FALSE(end.fine());
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "b"}));
  EXPECT_NE(end.error_tail.find("why"), std::string::npos);
  EXPECT_NE(end.error_tail.find('b'), std::string::npos);
}

}  // namespace
}  // namespace slackwater::test
