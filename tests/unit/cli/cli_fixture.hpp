// What the tests of the command share: a run of the binary, and a directory with two small checkpoints.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/child_process.hpp"
#include "support/temp_dir.hpp"
#include "support/write_checkpoint.hpp"

namespace slackwater::test {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string quoted(const std::string& argument) {
  std::string result = "'";
  for (const char c : argument) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

class CliTest : public testing::Test {
 protected:
  Outcome run(const std::vector<std::string>& arguments) const {
    std::string command = quoted(SLACKWATER_BINARY);
    for (const std::string& argument : arguments) command += " " + quoted(argument);
    const std::string out = directory_ / "stdout";
    const std::string err = directory_ / "stderr";
    command += " >" + quoted(out) + " 2>" + quoted(err);
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file_text(out), read_file_text(err)};
  }
  nlohmann::json run_json(const std::vector<std::string>& arguments, int code = 0) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  // As an ordinary user, whom the modes of files concern.
  Outcome run_as_nobody(std::vector<std::string> arguments) const {
    ::chmod(directory_.path().c_str(), 0755);
    const std::string binary = directory_ / "slackwater";
    std::filesystem::copy_file(SLACKWATER_BINARY, binary, std::filesystem::copy_options::overwrite_existing);
    ::chmod(binary.c_str(), 0755);
    arguments.insert(arguments.begin(), binary);
    const std::string out = directory_ / "stdout";
    const std::string err = directory_ / "stderr";
    const int code = run_in_child([&] {
      const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      const int err_fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      ::dup2(out_fd, STDOUT_FILENO);
      ::dup2(err_fd, STDERR_FILENO);
      constexpr uid_t kNobody = 65534;
      if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) return 126;
      std::vector<char*> words;
      for (std::string& argument : arguments) words.push_back(argument.data());
      words.push_back(nullptr);
      ::execv(words[0], words.data());
      return 127;
    });
    return {code, read_file_text(out), read_file_text(err)};
  }
  // With a terminal for stdin and stderr, where somebody types this.
  Outcome run_on_terminal(std::vector<std::string> arguments, const std::string& typed) const {
    arguments.insert(arguments.begin(), SLACKWATER_BINARY);
    const std::string out = directory_ / "stdout";
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return {};
    const int end = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(end, STDIN_FILENO);
      ::dup2(end, STDERR_FILENO);
      ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
      std::vector<char*> words;
      for (std::string& argument : arguments) words.push_back(argument.data());
      words.push_back(nullptr);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    ::close(end);
    EXPECT_EQ(::write(terminal, typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
    Outcome outcome;
    char piece[512];
    for (ssize_t got = 0; (got = ::read(terminal, piece, sizeof piece)) > 0;)
      outcome.err.append(piece, static_cast<std::size_t>(got));
    ::close(terminal);
    outcome.code = wait_for_child(child);
    outcome.out = read_file_text(out);
    return outcome;
  }
  // Steps 3 and 9, as a small model.
  void write_two() {
    CheckpointWriter writer(root_);
    State state = state_of(tensors_, R"({"lr":0.1,"big":123456789012345678901234567890})");
    state.metadata = {{"note", "hello"}};
    state.tensors.push_back(tensors_[0].view());
    state.tensors.back().name = "model.head";
    paths_ = {writer.write(3, state), writer.write(9, state)};
  }

  TempDir directory_;
  std::string root_ = directory_ / "run";
  std::vector<std::string> paths_;
  const std::vector<OwnedTensor> tensors_{OwnedTensor::random("model.embedding", DType::kF32, {300, 1000}),
                                          OwnedTensor::random("model.bias", DType::kBF16, {7}),
                                          OwnedTensor::random("optim.step", DType::kI64, {})};
};

}  // namespace slackwater::test
