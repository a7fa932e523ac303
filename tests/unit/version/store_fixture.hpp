// What the tests of VersionStore and Catalog share: a tier in a directory of its own, and versions written in one call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "os/durable.hpp"
#include "support/fault_file_system.hpp"
#include "support/temp_dir.hpp"
#include "version/version_store.hpp"

namespace slackwater::test {

class StoreTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string root() const { return temp_ / "run"; }
  [[nodiscard]] std::string control() const { return root() + "/" + kControlDirectory; }
  [[nodiscard]] std::string path_of(const VersionName& version) const {
    return root() + "/" + version_directory(version);
  }

  std::unique_ptr<VersionStore> open_store(VersionStore::Role role = VersionStore::Role::kLeader,
                                           std::optional<RankFiles> files = {}) {
    auto store = VersionStore::open(fs_, clock_, root(), Log(sink()), role, files);
    EXPECT_TRUE(store.has_value()) << store.error().to_string();
    return store ? std::move(*store) : nullptr;
  }

  static Attempt claim(VersionStore& store, std::vector<VersionName> adopted = {}) {
    auto attempt = store.attempt().claim("test", std::move(adopted));
    EXPECT_TRUE(attempt.has_value()) << attempt.error().to_string();
    return attempt ? *attempt : Attempt{};
  }

  // Everything up to the decision.
  static Result<Manifest> prepare(VersionStore& store, FileSystem& fs, const Attempt& attempt, std::uint64_t step) {
    auto directory = store.make_version(step);
    if (!directory) return fail(directory.error());
    const std::string data = "data of step " + std::to_string(step);
    if (auto written = write_durably(fs, *directory + "/" + data_file(0, 0), data); !written)
      return fail(written.error());
    Record record{
        .run = attempt.run, .identity = {.step = step, .attempt = attempt.number, .rank = 0, .world = 1}, .files = {}};
    record.files.push_back({data_file(0, 0), data.size(), 1, {digest64(std::as_bytes(std::span(data)))}});
    const std::string index = serialize_index({});
    auto vote = store.write_record(record, index);
    if (!vote) return fail(vote.error());
    Manifest manifest;
    manifest.run = attempt.run;
    manifest.step = step;
    manifest.attempt = attempt.number;
    manifest.records = {*vote};
    manifest.index_digest = digest128(index);
    manifest.size_bytes = data.size();
    manifest.tensor_count = 1;
    return manifest;
  }

  Result<Manifest> save(VersionStore& store, const Attempt& attempt, std::uint64_t step) {
    auto manifest = prepare(store, fs_, attempt, step);
    if (!manifest) return manifest;
    return store.decide(std::move(*manifest));
  }

  void commit(VersionStore& store, const Attempt& attempt, std::uint64_t step) {
    const auto manifest = save(store, attempt, step);
    ASSERT_TRUE(manifest.has_value()) << manifest.error().to_string();
    ASSERT_EQ(manifest->decision, Decision::kCommit);
  }

  Catalog scan() {
    auto catalog = scan_catalog(fs_, root());
    EXPECT_TRUE(catalog.has_value()) << catalog.error().to_string();
    return catalog ? *catalog : Catalog{};
  }

  // The live versions: "40.a1 41.a2".
  std::string live() {
    std::string text;
    for (const VersionInfo& version : scan().live_versions()) {
      text += (text.empty() ? "" : " ") + std::to_string(version.step) + ".a" + std::to_string(version.attempt);
    }
    return text;
  }

  std::optional<VersionState> state_of(const VersionName& version) {
    for (const CatalogEntry& entry : scan().entries) {
      if (entry.name == version) return entry.state;
    }
    return std::nullopt;
  }

  std::vector<VersionName> names_up_to(std::uint64_t step) {
    std::vector<VersionName> names;
    for (const VersionInfo& version : scan().live_versions()) {
      if (version.step <= step) names.push_back({version.step, version.attempt});
    }
    return names;
  }

  static void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void flip_byte(const std::string& path, std::size_t at = 5) {
    std::string text = read(path);
    text.at(at) = static_cast<char>(text.at(at) ^ 1);
    write(path, text);
  }
  static bool exists(const std::string& path) { return std::filesystem::exists(std::filesystem::symlink_status(path)); }

  [[nodiscard]] bool logged(std::string_view words) const {
    for (const std::string& line : log_lines_) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  }
  LogSink sink() {
    return [this](LogLevel, std::string_view line) { log_lines_.emplace_back(line); };
  }

  TempDir temp_;
  std::unique_ptr<FileSystem> real_ = make_posix_file_system();
  FaultFileSystem fs_{*real_};
  SystemClock clock_;
  std::vector<std::string> log_lines_;
};

}  // namespace slackwater::test
