#include "corruption/corruption_harness.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <span>

#include <fmt/format.h>

#include "restore/checkpoint_reader.hpp"
#include "support/bytes.hpp"
#include "support/effort.hpp"
#include "support/file_bytes.hpp"
#include "support/write_checkpoint.hpp"
#include "version/catalog.hpp"
#include "version/record.hpp"

namespace slackwater::test {
namespace {

namespace stdfs = std::filesystem;

constexpr std::uint64_t kSteps = 3;
constexpr int kDraws = 200;  // of a file and a place that can be damaged in the wanted way
constexpr std::chrono::seconds kTimeLimit{60};
const std::vector<PatternState::Part> kParts{{"bias", 5'000}, {"layer.weight", 2'200'000}};
const ReadOptions kReading{.buffer_bytes = 4u << 20, .io_backend = IoBackend::kThreads, .log = {}};

std::string directory_of(std::uint64_t step) { return version_directory({step, step == 1 ? 1u : 2u}); }

std::string file_of(DamagedFile target, std::uint64_t step) {
  switch (target) {
    case DamagedFile::kData: return directory_of(step) + "/" + data_file(0, 0);
    case DamagedFile::kRecord: return directory_of(step) + "/" + record_file(0);
    case DamagedFile::kIndex: return directory_of(step) + "/" + kIndexName;
    case DamagedFile::kManifest: return directory_of(step) + "/" + kManifestName;
    case DamagedFile::kAttempt: return fmt::format("{}/{}", kControlDirectory, attempt_file(step == 1 ? 1 : 2));
  }
  return {};
}

Options options_of(const std::string& root) {
  Options options;
  options.path = root;
  options.slab_bytes = 1u << 20;
  options.pool_bytes = 2u << 20;
  options.copy_threads = 1;
  options.keep = 0;
  options.io_backend = IoBackend::kThreads;
  options.log = [](LogLevel, std::string_view) {};
  return options;
}

// A new file under the old name: the old bytes may be shared by a hard link.
void replace_file(const std::string& path, std::span<const std::byte> bytes) {
  stdfs::remove(path);
  write_file_text(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

void Tally::add(Verdict verdict) {
  ++tried;
  switch (verdict) {
    case Verdict::kDetected: ++detected; break;
    case Verdict::kHarmless: ++harmless; break;
    case Verdict::kLost: ++lost; break;
  }
}

CorruptionHarness::CorruptionHarness(std::uint64_t seed, bool forge_checksums)
    : master_(directory_ / "master"), forge_checksums_(forge_checksums), random_(seed), state_(kParts) {
  for (const auto& [first, last] : {std::pair<std::uint64_t, std::uint64_t>{1, 1}, {2, kSteps}}) {
    Engine engine = must(Engine::open(options_of(master_)));
    static_cast<void>(must(engine.restore({}, state_.plan())));
    for (std::uint64_t step = first; step <= last; ++step) {
      state_.fill(step);
      must(must(engine.save(step, state_.state())).value().wait(Level::kCommitted));
    }
    must(engine.close());
  }
  stdfs::remove(
      fmt::format("{}/{}/{}", master_, kControlDirectory, kLockName));  // never shared: each trial makes its own
}

Trial CorruptionHarness::run() {
  const std::string root = directory_ / fmt::format("trial-{}", ++trials_);
  stdfs::copy(master_, root, stdfs::copy_options::recursive | stdfs::copy_options::create_hard_links);
  Trial trial;
  trial.kind = static_cast<DamageKind>(below(kDamageNames.size()));
  std::vector<Touched> touched;
  const std::uint64_t damages = below(6) == 0 ? 2 + below(2) : 1;
  while (touched.empty()) {
    for (std::uint64_t i = 0; i < damages; ++i) damage_once(root, trial.kind, trial, touched);
    // One damage may undo another, and the indexes of two steps are alike.
    std::erase_if(touched, [&](const Touched& one) {
      const std::string path = root + "/" + one.file;
      return stdfs::exists(path) && same_bytes(read_file(path), read_file(master_ + "/" + one.file));
    });
  }

  const auto began = std::chrono::steady_clock::now();
  trial.finding = judge(root, touched, trial.verdict);
  if (trial.finding.empty() && std::chrono::steady_clock::now() - began > kTimeLimit)
    trial.finding = "verify and restore took too long";
  if (!trial.finding.empty()) trial.verdict = Verdict::kLost;
  stdfs::remove_all(root);
  return trial;
}

void CorruptionHarness::damage_once(const std::string& root, DamageKind kind, Trial& trial,
                                    std::vector<Touched>& touched) {
  // What came before may leave nothing to do: all files replaced by one, say.
  for (int draw = 0; draw < kDraws; ++draw) {
    const auto target = forge_checksums_ ? DamagedFile::kData : static_cast<DamagedFile>(below(kTargetNames.size()));
    const std::uint64_t step = 1 + below(kSteps);
    // Of another step, and where there is a file for each attempt only: of the other attempt.
    const std::uint64_t other_step =
        target == DamagedFile::kAttempt ? (step == 1 ? kSteps : 1) : 1 + (step + below(kSteps - 1)) % kSteps;
    const std::string file = file_of(target, step);
    const std::string other_file = file_of(target, other_step);
    if (!stdfs::exists(root + "/" + file) || !stdfs::exists(root + "/" + other_file)) continue;
    const auto is_attempt = target == DamagedFile::kAttempt;
    const auto touch = [&](const std::string& path, std::uint64_t of) {
      touched.push_back({path, is_attempt ? std::nullopt : std::optional(of)});
    };

    Bytes bytes = read_file(root + "/" + file);
    const Bytes other = read_file(root + "/" + other_file);
    if (kind == DamageKind::kDeleted) {
      stdfs::remove(root + "/" + file);
    } else if (kind == DamageKind::kExchanged) {
      replace_file(root + "/" + file, other);
      replace_file(root + "/" + other_file, bytes);
      touch(other_file, other_step);
    } else {
      if (!change(bytes, other, kind)) continue;  // it would be what it was
      replace_file(root + "/" + file, bytes);
    }
    touch(file, step);
    trial.targets.insert(target);
    trial.what +=
        fmt::format("{}{} of {}", trial.what.empty() ? "" : ", ", kDamageNames[static_cast<std::size_t>(kind)], file);
    if (forge_checksums_ && stdfs::exists(root + "/" + file)) forge(root + "/" + directory_of(step));
    return;
  }
}

// False if the bytes are the ones there were.
bool CorruptionHarness::change(Bytes& bytes, const Bytes& other, DamageKind kind) {
  const Bytes before = bytes;
  if (bytes.empty()) return false;
  const std::uint64_t at = below(bytes.size());
  const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  const std::uint64_t length = 1 + below(std::min<std::uint64_t>(bytes.size() - at, below(2) == 0 ? 64 : 1u << 20));
  switch (kind) {
    case DamageKind::kBitFlip: *here ^= static_cast<std::byte>(1u << below(8)); break;
    case DamageKind::kGarbage:
      std::generate_n(here, std::min<std::uint64_t>(length, 4096), [&] { return static_cast<std::byte>(random_()); });
      break;
    case DamageKind::kTruncated: bytes.resize(below(4) == 0 ? 0 : at); break;
    case DamageKind::kExtended:
      bytes.resize(bytes.size() + 1 + below(5000), below(2) == 0 ? std::byte{0} : std::byte{0x20});
      break;
    case DamageKind::kZeroed: std::fill_n(here, length, std::byte{0}); break;
    case DamageKind::kSwappedBlocks: {
      const std::uint64_t block =
          std::min<std::uint64_t>(std::array{512u, 4096u, 1u << 20}[below(3)], bytes.size() / 4);
      if (block == 0) return false;
      const std::uint64_t blocks = bytes.size() / block;
      const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(below(blocks) * block);
      const auto second = bytes.begin() + static_cast<std::ptrdiff_t>(below(blocks) * block);
      if (first == second) return false;
      std::swap_ranges(first, first + static_cast<std::ptrdiff_t>(block), second);
      break;
    }
    case DamageKind::kStaleBlock: {
      const std::uint64_t block = std::array{512u, 4096u, 1u << 20}[below(3)];
      const std::uint64_t start = at / block * block;
      if (start >= other.size()) return false;
      const std::uint64_t size = std::min<std::uint64_t>({block, bytes.size() - start, other.size() - start});
      std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(start), size,
                  bytes.begin() + static_cast<std::ptrdiff_t>(start));
      break;
    }
    case DamageKind::kReplaced: bytes = other; break;
    case DamageKind::kExchanged:
    case DamageKind::kDeleted: break;  // of whole files: damage_once()
  }
  return bytes != before;
}

// The mutation "checksums are not looked at", from the other side: they are made to fit the damage.
void CorruptionHarness::forge(const std::string& version_directory) const {
  const std::string record_path = version_directory + "/" + record_file(0);
  const std::string manifest_path = version_directory + "/" + kManifestName;
  Record record = must(parse_record(read_file_text(record_path), record_path));
  Manifest manifest = must(parse_manifest(read_file_text(manifest_path), manifest_path));
  for (FileRecord& file : record.files) {
    const Bytes bytes = read_file(version_directory + "/" + file.name);
    file.size_bytes = bytes.size();
    file.block_digests.clear();
    for (std::uint64_t at = 0; at < bytes.size(); at += kBlockBytes)
      file.block_digests.push_back(
          digest64(std::span(bytes).subspan(at, std::min<std::uint64_t>(kBlockBytes, bytes.size() - at))));
  }
  const std::string text = serialize(record);
  for (RecordReference& reference : manifest.records) reference.digest = digest128(text);
  replace_file(record_path, std::as_bytes(std::span(text)));
  const std::string decided = serialize(manifest);
  replace_file(manifest_path, std::as_bytes(std::span(decided)));
}

// What is wrong with the answers about a damaged directory; empty if they are right, and then whether the damage was
// named.
std::string CorruptionHarness::judge(const std::string& root, const std::vector<Touched>& touched, Verdict& verdict) {
  bool all_named = true;
  const auto fs = make_posix_file_system();
  const auto catalog = scan_catalog(*fs, root);
  if (!catalog) return fmt::format("it cannot be listed: {}", catalog.error().to_string());
  std::map<std::uint64_t, std::set<std::string>> touched_files;  // by step
  for (const Touched& one : touched) {
    const std::string name = one.file.substr(one.file.rfind('/') + 1);
    if (one.step) {
      touched_files[*one.step].insert(name);
    } else {
      all_named &= std::ranges::any_of(
          catalog->warnings, [&](const std::string& warning) { return warning.find(name) != std::string::npos; });
    }
  }
  for (const auto& [step, names] : touched_files) {
    bool named = false;
    if (auto wrong = read_version(root, step, names, named); !wrong.empty()) return wrong;
    all_named &= named;
  }
  verdict = all_named ? Verdict::kDetected : Verdict::kHarmless;

  std::uint64_t newest_whole = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step)
    if (!touched_files.contains(step)) newest_whole = step;
  auto engine = Engine::open(options_of(root));
  if (!engine) return fmt::format("it cannot be opened: {}", engine.error().to_string());
  const auto restored = engine->restore({}, state_.plan());
  if (!restored)
    return newest_whole == 0 ? std::string()
                             : fmt::format("step {} is whole, but nothing was restored: {}", newest_whole,
                                           restored.error().to_string());
  if (!*restored) return newest_whole == 0 ? std::string() : "a whole version was not found";
  const std::uint64_t step = (*restored)->version.step;
  if (step < newest_whole) return fmt::format("step {} was restored, though step {} is whole", step, newest_whole);
  if (state_.number() != step) return fmt::format("step {} restored the state of step {}", step, state_.number());
  if (auto difference = state_.difference()) return fmt::format("WRONG BYTES: {}", *difference);
  // Every newer version that was passed over is named, unless it has no decision any more and so promises nothing.
  for (std::uint64_t passed = step + 1; passed <= kSteps; ++passed) {
    const bool said = std::ranges::any_of((*restored)->damaged, [&](const std::string& sentence) {
      return sentence.starts_with(fmt::format("step {}:", passed));
    });
    if (!said && stdfs::exists(root + "/" + directory_of(passed) + "/" + kManifestName))
      return fmt::format("step {} was passed over without a word", passed);
  }
  return {};
}

// One damaged version: verify names a file that was touched. Not always each: without its record a data file cannot be
// judged.
std::string CorruptionHarness::read_version(const std::string& root, std::uint64_t step,
                                            const std::set<std::string>& touched, bool& named) {
  const auto fs = make_posix_file_system();
  const VersionName version{step, step == 1 ? 1u : 2u};
  const auto report = verify_version({.fs = fs.get()}, root, version, kReading);
  if (!report) {
    // Without a decision there is no version, and nothing that could be verified.
    const bool decided = stdfs::exists(root + "/" + directory_of(step) + "/" + kManifestName);
    if (decided) return fmt::format("step {} cannot be verified: {}", step, report.error().to_string());
    return {};
  }
  named = std::ranges::any_of(report->damages, [&](const Damage& damage) { return touched.contains(damage.file); });
  if (named) return {};
  if (!report->damages.empty())
    return fmt::format("verify blames {} of step {}, which is whole", report->damages[0].file, step);
  // Nothing named. Then the bytes decide how bad it is; right it is in no case.
  auto checkpoint = open_version({.fs = fs.get()}, root, {.step = step, .attempt = version.attempt}, kReading);
  const Status read = checkpoint ? state_.read(*checkpoint) : Status(fail(checkpoint.error()));
  if (read && (state_.number() != step || state_.difference()))
    return fmt::format("WRONG BYTES that verify finds fine: {}", state_.difference().value_or("another step"));
  return fmt::format("verify finds step {} fine, though {} was changed", step, *touched.begin());
}

}  // namespace slackwater::test
