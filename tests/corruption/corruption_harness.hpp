// CorruptionHarness: a directory with three committed versions of two attempts, damaged at random, over and over; after
// each damage verify and restore must name what was done, or show that it does not matter. Never a wrong byte, never a
// hang.
// Thread rule: one thread. Everything lies in a temporary directory of its own; a trial shares the untouched files by
// hard links.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/engine.hpp"
#include "support/pattern_state.hpp"
#include "support/temp_dir.hpp"

namespace slackwater::test {

enum class DamagedFile : std::uint8_t { kData, kRecord, kIndex, kManifest, kAttempt };
inline constexpr std::array<std::string_view, 5> kTargetNames{"data", "record", "index", "manifest", "attempt"};

enum class DamageKind : std::uint8_t {
  kBitFlip,
  kGarbage,
  kTruncated,
  kExtended,
  kZeroed,
  kSwappedBlocks,
  kStaleBlock,
  kExchanged,
  kReplaced,
  kDeleted,
};
inline constexpr std::array<std::string_view, 10> kDamageNames{"bit flip",
                                                               "garbage bytes",
                                                               "truncated",
                                                               "extended",
                                                               "zeroed range",
                                                               "swapped blocks",
                                                               "block of another step",
                                                               "exchanged",
                                                               "replaced by another's",
                                                               "deleted"};

enum class Verdict : std::uint8_t { kDetected, kHarmless, kLost };

struct Trial {
  std::string what;  // "bit flip in data of step 2, ..."
  std::set<DamagedFile> targets;
  DamageKind kind = DamageKind::kBitFlip;
  Verdict verdict = Verdict::kDetected;
  std::string finding;  // of a lost one
};

struct Tally {
  std::uint64_t tried = 0;
  std::uint64_t detected = 0;
  std::uint64_t harmless = 0;
  std::uint64_t lost = 0;
  void add(Verdict verdict);
};

class CorruptionHarness {
 public:
  CorruptionHarness(std::uint64_t seed, bool forge_checksums);

  [[nodiscard]] Trial run();

 private:
  using Bytes = std::vector<std::byte>;
  struct Touched {
    std::string file;                   // relative to the run's directory
    std::optional<std::uint64_t> step;  // nullopt: an attempt's file
  };

  void damage_once(const std::string& root, DamageKind kind, Trial& trial, std::vector<Touched>& touched);
  [[nodiscard]] bool change(Bytes& bytes, const Bytes& other, DamageKind kind);
  [[nodiscard]] std::string judge(const std::string& root, const std::vector<Touched>& touched, Verdict& verdict);
  [[nodiscard]] std::string read_version(const std::string& root, std::uint64_t step,
                                         const std::set<std::string>& touched, bool& named);
  void forge(const std::string& version_directory) const;
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  TempDir directory_;
  const std::string master_;
  const bool forge_checksums_;
  std::mt19937_64 random_;
  std::uint64_t trials_ = 0;
  PatternState state_;
};

}  // namespace slackwater::test
