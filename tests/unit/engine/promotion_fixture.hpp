// What tests of lower tiers share: engines with a directory as their lower tier, behind a FaultFileSystem of its own.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.hpp"
#include "restore/checkpoint_reader.hpp"
#include "support/fault_file_system.hpp"
#include "support/file_bytes.hpp"
#include "unit/engine/engine_fixture.hpp"
#include "version/catalog.hpp"

namespace slackwater::test {

class PromotionTest : public EngineTest {
 protected:
  [[nodiscard]] std::string lower() const { return directory_.path() + "/lower"; }
  [[nodiscard]] std::string upper() const { return directory_.path() + "/run"; }

  // An engine, and the faults of its lower tier.
  struct Run {
    FaultFileSystem* tier = nullptr;  // owned by the engine
    std::unique_ptr<Engine> engine;
    Engine* operator->() const { return engine.get(); }
    Engine& operator*() const { return *engine; }
  };
  Run start(TierOptions tier = {}, std::uint32_t rank = 0, std::uint32_t world = 1, std::uint64_t keep = 2,
            const std::function<void(FaultFileSystem&)>& before = {}) {
    tier.location = lower();
    Options with = options();
    with.keep = keep;
    with.rank = rank;
    with.world = world;
    with.copy_timeout = std::chrono::seconds(60);
    with.tiers = {tier};
    auto faulty = std::make_unique<FaultFileSystem>(*real_);
    if (before) before(*faulty);
    Run run{.tier = faulty.get(), .engine = {}};
    EngineDependencies parts;
    parts.tiers.emplace_back(tier, lower(), std::move(faulty));
    auto opened = open_engine(std::move(with), std::move(parts));
    if (!opened) throw std::runtime_error(opened.error().to_string());
    run.engine = std::make_unique<Engine>(std::move(*opened));
    return run;
  }
  // The versions on a tier that can be restored, each read to its last byte.
  [[nodiscard]] std::string live(const std::string& root) const {
    const auto catalog = scan_catalog(*real_, root);
    if (!catalog) return catalog.error().to_string();
    std::string text;
    for (const VersionInfo& version : catalog->live_versions()) {
      const auto report = verify_version({.fs = real_.get()}, root, name_of(version), {});
      const bool good = report && report->damages.empty();
      text += (text.empty() ? "" : " ") + std::to_string(version.step) + (good ? "" : "(damaged)");
    }
    return text;
  }
  // Directories of versions that are not live.
  [[nodiscard]] std::string debris(const std::string& root) const {
    const auto catalog = scan_catalog(*real_, root);
    if (!catalog) return catalog.error().to_string();
    std::string text;
    for (const CatalogEntry& entry : catalog->entries)
      if (entry.state != VersionState::kLive) text += version_directory(entry.name) + " ";
    return text;
  }
  [[nodiscard]] std::uint32_t newest_attempt(const std::string& root) const {
    return newest_attempt_number(*real_, root).value_or(0);
  }
  static void copied(const Run& run) {
    const Status status = run->wait_copied();
    ASSERT_TRUE(status) << status.error().to_string();
  }
  static void until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "it hangs";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const std::unique_ptr<FileSystem> real_ = make_posix_file_system();
};

}  // namespace slackwater::test
