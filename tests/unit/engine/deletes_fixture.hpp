// What tests of delete() on lower tiers share: three steps on both tiers, and a tier that the test can take away.
#pragma once

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unit/engine/promotion_fixture.hpp"
#include "version/delete_notes.hpp"

namespace slackwater::test {

class DeletesTest : public PromotionTest {
 protected:
  // Steps 1 to 3 on both tiers, and a second copy of the lower one.
  void SetUp() override {
    model_.add("w", 1000);
    Run run = start(kept_, 0, 1, 0);
    for (std::uint64_t step = 1; step <= 3; ++step) save_and_commit(*run, step, model_);
    copied(run);
    const Status closed = run->close();
    ASSERT_TRUE(closed) << closed.error().to_string();
    run.engine.reset();
    std::filesystem::copy(lower(), spare(), std::filesystem::copy_options::recursive);
  }
  [[nodiscard]] std::string spare() const { return directory_.path() + "/spare"; }
  [[nodiscard]] std::string on(const std::string& root, std::uint64_t step) const {
    return version_path(root, {step, 1});
  }
  // Deletes a step while the lower tier is out of reach, and ends the run.
  void delete_unheard(std::uint64_t step) {
    Run run = start(kept_, 0, 1, 0);
    cut_off(run);
    const Status removed = run->remove(step);
    ASSERT_TRUE(removed) << removed.error().to_string();
    const Status closed = run->close(std::chrono::milliseconds(1));
    ASSERT_FALSE(closed) << "it does not say that the tier still has the step";
    EXPECT_NE(closed.error().message.find("but not on " + lower() + " yet; the next run deletes them there"),
              std::string::npos)
        << closed.error().to_string();
  }
  static void cut_off(const Run& run) {
    for (const FsCall call : {FsCall::kList, FsCall::kOpen, FsCall::kStatus, FsCall::kUnlink, FsCall::kLink,
                              FsCall::kMakeDirectory, FsCall::kTryLock, FsCall::kSyncDirectory})
      run.tier->fail(call, EIO, {.times = kAlways});
  }
  // The notes on tier 0, damaged ones too.
  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(control_path(upper())))
      if (parse_delete_note_file(entry.path().filename().string())) names.push_back(entry.path().string());
    return names;
  }
  // A run that has nothing to do but what an earlier one left.
  void run_once(std::uint64_t step) {
    Run run = start(kept_, 0, 1, 0);
    Reader reader;
    ASSERT_NE(restore(*run, reader), 0u);
    save_and_commit(*run, step, model_);
    copied(run);
    const Status closed = run->close();
    EXPECT_TRUE(closed) << closed.error().to_string();
  }

  // An engine whose tier 0 the test can break too. log() has its infos as well.
  Run start_faulty(FaultFileSystem** tier_0) {
    Options with = options();
    with.keep = 0;
    with.log = [lines = lines_](LogLevel, std::string_view message) {
      const std::lock_guard lock(lines->mutex);
      lines->text += std::string(message) + "\n";
    };
    with.tiers = {kept_};
    with.tiers[0].location = lower();
    auto above = std::make_unique<FaultFileSystem>(*real_);
    *tier_0 = above.get();
    auto below = std::make_unique<FaultFileSystem>(*real_);
    Run run{.tier = below.get(), .engine = {}};
    EngineDependencies parts{.fs = std::move(above), .clock = nullptr};
    parts.tiers.emplace_back(with.tiers[0], lower(), std::move(below));
    auto opened = open_engine(std::move(with), std::move(parts));
    if (!opened) throw std::runtime_error(opened.error().to_string());
    run.engine = std::make_unique<Engine>(std::move(*opened));
    return run;
  }

  const TierOptions kept_{.keep = 0};
  Model model_;
};

}  // namespace slackwater::test
