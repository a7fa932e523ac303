// KeeperThread: the keeper of a directory, on a thread of the test. An engine with Options::memory finds it there.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "keeper/keeper_client.hpp"
#include "keeper/keeper_server.hpp"
#include "slackwater/options.hpp"

namespace slackwater::test {

class KeeperThread {
 public:
  explicit KeeperThread(std::string directory) : directory_(std::move(directory)) {
    std::filesystem::create_directory(directory_);
    server_ = std::make_unique<KeeperServer>(KeeperOptions{.directory = directory_}, *disk_, clock_,
                                             Log([](LogLevel, std::string_view) {}),
                                             listen_at(keeper_address(directory_, 0).value()).value(), UniqueFd());
    thread_ = std::thread([this] { static_cast<void>(server_->run()); });
  }
  ~KeeperThread() {
    release_stale_keeper({.directory = directory_});  // unless a clean close() has done so
    thread_.join();
  }
  KeeperThread(const KeeperThread&) = delete;
  KeeperThread& operator=(const KeeperThread&) = delete;

  [[nodiscard]] Options use(Options options) const {
    options.path = directory_;
    options.memory = true;
    options.keeper = "/nonexistent/slackwater";
    return options;
  }

 private:
  const std::string directory_;
  const std::unique_ptr<FileSystem> disk_ = make_posix_file_system();
  const SystemClock clock_;
  std::unique_ptr<KeeperServer> server_;
  std::thread thread_;
};

}  // namespace slackwater::test
