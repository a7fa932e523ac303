// What the tests of hostile directories share: a directory with two committed steps, every way of looking at it, and
// tools to plant what an attacker would. A look that hangs is ended by the alarm, which fails the test.
#pragma once

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "support/write_checkpoint.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "version/manifest.hpp"
#include "version/names.hpp"
#include "version/record.hpp"

namespace slackwater::test {

enum class Planted : std::uint8_t { kLinkOut, kDanglingLink, kPipe, kSocket, kDevice, kDirectory };
inline constexpr std::array kAllPlanted{Planted::kLinkOut, Planted::kDanglingLink, Planted::kPipe,
                                        Planted::kSocket,  Planted::kDevice,       Planted::kDirectory};

class HostileTest : public EngineTest {
 protected:
  static constexpr unsigned kHangSeconds = 100;
  static constexpr const char* kData = "rank-00000.safetensors";
  static constexpr const char* kRecord = "rank-00000.record";

  void SetUp() override {
    ::alarm(kHangSeconds);
    Engine engine = open(options());
    model_.add("w", 70'000);
    for (const std::uint64_t step : {1, 2}) save_and_commit(engine, step, model_);
  }
  void TearDown() override { ::alarm(0); }

  [[nodiscard]] std::string root() const { return directory_ / "run"; }
  [[nodiscard]] std::string version(std::uint64_t step) const { return root() + "/" + version_directory({step, 1}); }
  [[nodiscard]] std::string in_version(const std::string& name) const { return version(2) + "/" + name; }
  [[nodiscard]] std::string control(const std::string& name) const { return root() + "/.slackwater/" + name; }

  // Moves what is there aside and puts something else under its name. False where this user may not.
  [[nodiscard]] bool plant(Planted kind, const std::string& path) {
    std::filesystem::rename(path, aside());
    switch (kind) {
      case Planted::kLinkOut: return ::symlink(aside().c_str(), path.c_str()) == 0;  // to the very file
      case Planted::kDanglingLink: return ::symlink("/nonexistent/file", path.c_str()) == 0;
      case Planted::kPipe: return ::mkfifo(path.c_str(), 0600) == 0;
      case Planted::kSocket: return plant_socket(path);
      case Planted::kDevice: return ::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 5)) == 0;  // /dev/zero
      case Planted::kDirectory: return ::mkdir(path.c_str(), 0700) == 0;
    }
    return false;
  }
  void take_away(const std::string& path) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    std::filesystem::rename(aside(), path);
  }
  [[nodiscard]] std::string aside() const { return directory_ / "aside"; }

  // Opens with the engine and restores into fresh memory. The step; 0 when nothing was there.
  [[nodiscard]] Result<std::uint64_t> restore_newest() {
    auto engine = Engine::open(options());
    if (!engine) return fail(engine.error());
    Reader reader;
    auto restored = engine->restore({}, reader.plan());
    if (!restored) return fail(restored.error());
    return *restored ? (*restored)->version.step : 0;
  }
  // As a reader without a lock.
  [[nodiscard]] Status read_step(std::optional<std::uint64_t> step = {}) const {
    auto checkpoint = Checkpoint::open(root(), step, {.buffer_bytes = 0});
    if (!checkpoint) return fail(checkpoint.error());
    std::vector<std::byte> memory(70'000);
    const std::vector<Target> targets{{.name = "w", .dtype = DType::kU8, .shape = {70'000}, .data = memory.data()}};
    return checkpoint->read(targets);
  }

  struct Outcome {
    int code = -1;
    std::string out, err;
  };
  [[nodiscard]] Outcome command(const std::string& arguments) const {
    const std::string out = directory_ / "stdout", err = directory_ / "stderr";
    const std::string line = fmt::format("'{}' {} >'{}' 2>'{}'", SLACKWATER_BINARY, arguments, out, err);
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file_text(out), read_file_text(err)};
  }

  // Publishes changed metadata of step 2 with digests that fit, as whoever can write the directory could.
  void publish(const std::string& record_text, std::uint64_t size_bytes) {
    write_file_text(in_version(kRecord), record_text);
    Manifest manifest = must(parse_manifest(read_file_text(in_version(kManifestName)), "manifest"));
    manifest.records[0].digest = digest128(record_text);
    manifest.size_bytes = size_bytes;
    write_file_text(in_version(kManifestName), serialize(manifest));
  }
  // The same for a data file with this header and so many bytes of data, all zero.
  void publish_data(const std::string& json, std::uint64_t data_bytes) {
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(json.size() >> (8 * i));
    bytes += json;
    bytes.resize(bytes.size() + data_bytes);
    Record record = must(parse_record(read_file_text(in_version(kRecord)), "record"));
    FileRecord& file = record.files[0];
    file.size_bytes = bytes.size();
    file.block_digests.clear();
    const auto all = std::as_bytes(std::span(bytes));
    for (std::uint64_t at = 0; at < all.size(); at += kBlockBytes)
      file.block_digests.push_back(digest64(all.subspan(at, std::min<std::uint64_t>(kBlockBytes, all.size() - at))));
    write_file_text(in_version(kData), bytes);
    publish(serialize(record), bytes.size());
  }

  Model model_;

 private:
  static bool plant_socket(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return false;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const bool bound = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(socket);
    return bound;
  }
};

}  // namespace slackwater::test
