#include "slackwater/engine.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/guarded.hpp"
#include "base/result.hpp"
#include "engine/engine_impl.hpp"
#include "engine/options_check.hpp"
#include "store/s3/locations.hpp"
#include "version/delete_notes.hpp"

namespace slackwater {
namespace {

constexpr std::chrono::milliseconds kCompareTimeout{2'000};

Result<std::vector<Tier>> open_tiers(const Options& options, FileSystem& fs) {
  std::vector<Tier> tiers;
  for (const TierOptions& tier : options.tiers) {
    SW_ASSIGN(Tier opened, Tier::open(tier, fs));
    const bool twice = std::ranges::find(tiers, opened.root(), &Tier::root) != tiers.end();
    if (twice || opened.root() == options.path)
      return fail(ErrorKind::kInvalidArgument, "two tiers have the same location", opened.root());
    tiers.push_back(std::move(opened));
  }
  return tiers;
}

// A delete() may have been killed before it removed anything. That is over: nothing was deleted.
void settle_delete_notes(FileSystem& fs, const std::string& root, const Log& log) {
  if (const Status withdrawn = withdraw_void_delete_notes(fs, root); !withdrawn)
    log.warn("the notes of an interrupted delete() could not be checked: {}", withdrawn.error().to_string());
  if (const auto found = list_delete_notes(fs, root)) {
    for (const std::string& warning : found->warnings) log.warn("{}", warning);
  }
}

// One directory may have two names, through a symbolic link or a bind mount. Called when tier 0 is there. A lower tier
// that does not respond is not waited for: `parts.late_probes` is what still asks it then.
Status check_tiers_differ(const Options& options, EngineDependencies& parts) {
  using Identities = Guarded<std::map<std::string, std::string>>;  // by root
  std::vector<TierPlace> lower;
  for (const Tier& tier : parts.tiers)
    if (!is_object_location(tier.root())) lower.push_back({&tier.fs(), tier.root()});
  if (lower.empty()) return {};
  const auto own = parts.fs->identity(options.path);
  if (!own) return {};
  auto probes = std::make_unique<TierProbes>();
  const auto found = std::make_shared<Identities>();
  const auto answers = probes->ask(lower, std::min(kCompareTimeout, parts.tier_answer_timeout),
                                   [found](const TierPlace& tier) -> Status {
                                     SW_ASSIGN(std::string identity, tier.fs->identity(tier.root));
                                     found->lock()->emplace(tier.root, std::move(identity));
                                     return {};
                                   });
  if (answers.late) parts.late_probes = std::move(probes);

  std::map<std::string, std::string> roots{{*own, options.path}};  // by identity
  const auto identities = found->lock();
  for (const auto& [root, identity] : *identities) {
    const auto [same, is_new] = roots.emplace(identity, root);
    if (is_new) continue;
    // Nobody may wait for a thread that hangs, so what it uses is leaked.
    if (parts.late_probes) static_cast<void>(new EngineDependencies(std::move(parts)));
    return fail(
        ErrorKind::kInvalidArgument,
        fmt::format("two tiers have the same location: this directory is that of {} under another name", same->second),
        root);
  }
  return {};
}

}  // namespace

Result<Engine> open_engine(Options options, EngineDependencies parts) {
  SW_TRY(settle_options(options));
  SW_TRY(check_options(options));
  if (!parts.fs) parts.fs = make_posix_file_system();
  if (!parts.clock) parts.clock = std::make_unique<SystemClock>();
  if (parts.tiers.empty()) {
    SW_ASSIGN(parts.tiers, open_tiers(options, *parts.fs));
  }
  const Log log(options.log);
  if (options.node_local && options.rank == 0 && parts.tiers.empty()) {
    log.warn(
        "each node has a directory of its own (node_local), and there is no lower tier: if a node or its disk is lost, "
        "so is every checkpoint; add a tier that all nodes share: {}",
        options.path);
  }
  if (options.path.empty()) {  // for parts only
    return Engine(std::make_unique<Engine::Impl>(std::move(options), std::move(parts), nullptr, Catalog{}, log));
  }
  // The keeper of an earlier trainer first. It may be writing to this directory, and hold its lock. From here on it
  // publishes nothing.
  if (options.memory) {
    parts.memory = std::make_unique<MemoryTier>(options, *parts.fs, *parts.clock, log);
    parts.memory->attach();
  } else {
    end_earlier_keeper(options, *parts.fs, log);
  }
  const auto role = options.rank == 0 ? VersionStore::Role::kLeader : VersionStore::Role::kMember;
  SW_ASSIGN(auto versions, VersionStore::open(*parts.fs, *parts.clock, options.path, log, role, parts.files));
  SW_ASSIGN(const Catalog catalog, versions->scan());
  for (const std::string& warning : catalog.warnings) log.warn("{}", warning);
  SW_TRY(check_tiers_differ(options, parts));
  if (role == VersionStore::Role::kLeader) settle_delete_notes(*parts.fs, options.path, log);
  return Engine(
      std::make_unique<Engine::Impl>(std::move(options), std::move(parts), std::move(versions), catalog, log));
}

Result<Engine> Engine::open(Options options) { return open_engine(std::move(options), {}); }

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;

Engine& Engine::operator=(Engine&& other) noexcept {
  if (this != &other) {
    Engine old(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Engine::~Engine() {
  // A forked child has neither the threads nor valid locks. It leaks the copy of the parent's engine.
  if (impl_ && impl_->disowned()) static_cast<void>(impl_.release());
  if (!impl_) return;
  if (auto status = impl_->close({}); !status) impl_->log_error(status.error());
  if (impl_->stuck()) static_cast<void>(impl_.release());
}

Result<std::optional<Snapshot>> Engine::save(std::uint64_t step, State state) {
  return impl_->save(step, std::move(state));
}
Result<std::optional<Restored>> Engine::restore(const RestoreOptions& options, const Plan& plan) {
  return impl_->restore(options, plan);
}
Status Engine::prepare(State state) { return impl_->prepare(std::move(state)); }
Result<bool> Engine::wait_prepared(std::chrono::milliseconds timeout) { return impl_->wait_prepared(timeout); }
Status Engine::wait(Level level, std::optional<std::chrono::milliseconds> timeout) {
  return impl_->wait(level, timeout);
}
Status Engine::wait_copied(std::optional<std::chrono::milliseconds> timeout) { return impl_->wait_copied(timeout); }
std::vector<TierStatus> Engine::tiers() const { return impl_->tiers(); }
Status Engine::fence(std::span<const StreamRef> streams) { return impl_->fence(streams); }
std::vector<VersionInfo> Engine::versions() const { return impl_->versions(); }
Status Engine::pin(std::uint64_t step) { return impl_->pin(step); }
Status Engine::remove(std::uint64_t step) { return impl_->remove(step); }
std::optional<Error> Engine::background_error() const { return impl_->background_error(); }
EngineStats Engine::stats() const { return impl_->stats(); }
void Engine::keep_memory() { impl_->keep_memory(); }
Status Engine::close(std::optional<std::chrono::milliseconds> timeout) { return impl_->close(timeout); }

}  // namespace slackwater
