#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/result.hpp"
#include "engine/options_check.hpp"
#include "engine/part.hpp"
#include "os/clock.hpp"
#include "ranks/merged_index.hpp"
#include "slackwater/part.hpp"
#include "version/version_store.hpp"

namespace slackwater {

struct PartCommitter::Impl {
  Impl(std::string root_in, std::string run_name_in, Log log_in)
      : root(std::move(root_in)), run_name(std::move(run_name_in)), log(std::move(log_in)) {}

  [[nodiscard]] Status open();
  [[nodiscard]] Result<PartPlace> begin(std::uint64_t step, std::uint32_t world);
  [[nodiscard]] Status commit(std::span<const std::string> parts);
  [[nodiscard]] Result<std::vector<Part>> parse(std::span<const std::string> parts) const;

  const std::string root;
  const std::string run_name;
  const Log log;
  const std::unique_ptr<FileSystem> fs = make_posix_file_system();
  const SystemClock clock;
  std::unique_ptr<VersionStore> store;
  Catalog catalog;  // when it was opened
  std::optional<PartPlace> begun;
};

Status PartCommitter::Impl::open() {
  SW_ASSIGN(store, VersionStore::open(*fs, clock, root, log));
  SW_ASSIGN(catalog, store->scan());
  for (const std::string& warning : catalog.warnings) log.warn("{}", warning);
  // A version that is committed here replaces what is live. Checkpoints of a training run must never go that way.
  const bool ours = catalog.newest_attempt && catalog.newest_attempt->run_name == run_name;
  const bool used = std::ranges::any_of(catalog.entries, [](const CatalogEntry& entry) { return entry.adoptable(); });
  if (used && !ours) {
    return fail(ErrorKind::kInvalidArgument,
                "the directory holds checkpoints of a Slackwater run, which would be replaced; choose another one",
                root);
  }
  return {};
}

Result<PartPlace> PartCommitter::Impl::begin(std::uint64_t step, std::uint32_t world) {
  std::vector<VersionName> adopted;  // stays live until the commit
  for (const CatalogEntry& entry : catalog.entries) {
    if (!entry.adoptable()) continue;
    adopted.push_back(entry.name);
    step = std::max(step, entry.name.step);
  }
  std::vector<std::string> members(world);
  std::ranges::generate(members, random_id);
  SW_ASSIGN(const Attempt attempt,
            store->attempt().claim(run_name, std::move(adopted), std::move(members), catalog.set_aside(), {.keep = 1}));
  SW_TRY(store->make_version(step));
  begun = {.root = store->root(),
           .run = attempt.run,
           .step = step,
           .attempt = attempt.number,
           .rank = 0,
           .world = attempt.world};
  return *begun;
}

// One part per rank, by rank, and all of this version.
Result<std::vector<Part>> PartCommitter::Impl::parse(std::span<const std::string> texts) const {
  std::vector<Part> parts;
  for (const std::string& text : texts) {
    SW_ASSIGN(Part part, parse_part(text));
    if (part.place.run != begun->run || part.place.attempt != begun->attempt || part.place.step != begun->step) {
      return fail(
          ErrorKind::kAborted,
          fmt::format("rank {} wrote into attempt {} of step {}, not into attempt {} of step {}; another writer "
                      "uses this directory",
                      part.place.rank, part.place.attempt, part.place.step, begun->attempt, begun->step),
          root);
    }
    parts.push_back(std::move(part));
  }
  std::ranges::sort(parts, {}, [](const Part& part) { return part.place.rank; });
  for (std::uint32_t rank = 0; rank < begun->world; ++rank) {
    if (rank < parts.size() && parts[rank].place.rank == rank) continue;
    return fail(ErrorKind::kInvalidArgument, fmt::format("the part of rank {} is missing, or is there twice", rank),
                root);
  }
  if (parts.size() != begun->world)
    return fail(ErrorKind::kInvalidArgument, fmt::format("there are more parts than {} ranks", begun->world), root);
  return parts;
}

Status PartCommitter::Impl::commit(std::span<const std::string> texts) {
  if (!begun) return fail(ErrorKind::kInvalidArgument, "no version was begun", root);
  SW_ASSIGN(std::vector<Part> parts, parse(texts));
  const RankFiles files = RankFiles::of_world(begun->world);
  Manifest manifest{.run = begun->run,
                    .step = begun->step,
                    .attempt = begun->attempt,
                    .world = begun->world,
                    .decision = Decision::kCommit,
                    .created_unix_ms = clock.wall_unix_ms()};
  std::vector<IndexPart> index_parts;
  for (Part& part : parts) {
    const std::uint32_t rank = part.place.rank;
    manifest.records.push_back({rank, files.record(rank), part.record});
    manifest.size_bytes += part.size_bytes;
    const Digest128 digest = digest128(part.index_text);
    index_parts.push_back({.rank = rank, .ranks = 1, .digest = digest, .text = std::move(part.index_text)});
  }
  // Fails unless the boxes of every tensor cover it exactly.
  SW_ASSIGN(const MergedIndex index, merge_index(index_parts, Scope::kEverybody));
  if (index.has_local || !index.has_global) manifest.required_features.emplace_back(kRankLocalFeature);
  if (index.has_global) manifest.required_features.emplace_back(kGlobalTensorsFeature);
  manifest.index_digest = index.digest;
  manifest.tensor_count = index.tensor_count;
  // The index must be durable before the manifest, which states its digest.
  SW_TRY(store->write_index({begun->step, begun->attempt}, index.text));
  SW_ASSIGN(const Manifest decided, store->decide(std::move(manifest)));
  if (decided.decision == Decision::kAbort)
    return fail(ErrorKind::kAborted, fmt::format("step {} was aborted: {}", begun->step, decided.reason), root);
  begun.reset();
  // What this version replaces, and what killed writers left behind.
  if (const auto cleaned = store->clean_up({.keep = 1}); !cleaned)
    log.warn("what was there before could not be removed: {}", cleaned.error().to_string());
  return {};
}

Result<PartCommitter> PartCommitter::open(const std::string& root, const std::string& run_name, LogSink log) {
  auto impl = std::make_unique<Impl>(root, run_name, Log(std::move(log)));
  SW_TRY(impl->open());
  return PartCommitter(std::move(impl));
}

bool PartCommitter::has_version() const { return !impl_->catalog.live_versions().empty(); }

Result<PartPlace> PartCommitter::begin(std::uint64_t step, std::uint32_t world) {
  SW_TRY(check_world(world));
  return impl_->begin(step, world);
}

Status PartCommitter::commit(std::span<const std::string> parts) {
  try {
    return impl_->commit(parts);
  } catch (const std::exception& trouble) {
    return fail(ErrorKind::kOutOfMemory, fmt::format("the version could not be committed: {}", trouble.what()),
                impl_->root);
  }
}

Result<PartPlace> find_place(const std::string& root, std::uint32_t rank) {
  const auto fs = make_posix_file_system();
  SW_ASSIGN(const std::uint32_t number, newest_attempt_number(*fs, root));
  if (number == 0) return fail(ErrorKind::kNotFound, "no version was begun in this directory", root);
  SW_ASSIGN(const Attempt attempt, read_attempt(*fs, root, number));
  SW_ASSIGN(const auto entries, fs->list(root));
  for (const DirectoryEntry& entry : entries) {
    const auto name = parse_version_directory(entry.name);
    if (!name || name->attempt != number) continue;
    if (rank >= attempt.world) {
      return fail(ErrorKind::kInvalidArgument,
                  fmt::format("the version that was begun has {} ranks, so there is no rank {}", attempt.world, rank),
                  root);
    }
    return PartPlace{
        .root = root, .run = attempt.run, .step = name->step, .attempt = number, .rank = rank, .world = attempt.world};
  }
  return fail(ErrorKind::kNotFound, fmt::format("the directory of attempt {} is not there", number), root);
}

PartCommitter::PartCommitter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PartCommitter::PartCommitter(PartCommitter&&) noexcept = default;
PartCommitter& PartCommitter::operator=(PartCommitter&&) noexcept = default;
PartCommitter::~PartCommitter() = default;

}  // namespace slackwater
