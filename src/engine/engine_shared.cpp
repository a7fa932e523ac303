#include "engine/engine_shared.hpp"

#include <utility>

#include "engine/skip_thread.hpp"
#include "ranks/key_value_transport.hpp"
#include "version/manifest_cache.hpp"

namespace slackwater {
namespace {

std::unique_ptr<RankTransport> make_transport(const Options& options, FileSystem& fs, const Clock& clock) {
  if (options.world == 1) return nullptr;
  // All ranks must mean the same run. If each node has a directory of its own, they share only the tier below.
  const std::string below = options.tiers.empty() ? std::string() : options.tiers.front().location;
  // Without one, two checkpointers of a job tell each other apart by their run names.
  const std::string run =
      options.node_local ? "node-local " + (below.empty() ? options.run_name : below) : options.path;
  if (options.store) return std::make_unique<KeyValueTransport>(*options.store, clock, run);
  return std::make_unique<KeyValueTransport>(fs, clock, options.path);
}

}  // namespace

EngineShared::EngineShared(Options options_in, EngineDependencies dependencies,
                           std::unique_ptr<VersionStore> version_store, const Catalog& catalog, Log log_in)
    : options(std::move(options_in)),
      log(std::move(log_in)),
      fs(std::move(dependencies.fs)),
      clock(std::move(dependencies.clock)),
      files(dependencies.files.value_or(RankFiles::of_world(options.world))),
      tiers(std::move(dependencies.tiers)),
      tier_answer_timeout(dependencies.tier_answer_timeout),
      devices(options.cuda_driver, options.batched_copies, options.copy_turn_bytes),
      engine_status(std::make_shared<EngineStatus>()),
      transport(make_transport(options, *fs, *clock)),
      protocol(transport
                   ? std::make_unique<CommitProtocol>(
                         CommitProtocolOptions{.rank = options.rank,
                                               .world = options.world,
                                               .fan_in = options.fan_in,
                                               .timeout = options.commit_timeout,
                                               .files = files,
                                               .node_local = options.node_local,
                                               // Waiting for a rank that still writes is no stall.
                                               .on_heartbeat = [status = engine_status] { status->note_progress(); }},
                         *transport, *fs, *clock)
                   : nullptr),
      retention{.keep = options.keep, .keep_every = options.keep_every, .best = options.keep_best},
      memory(std::move(dependencies.memory)),
      late_probes(std::move(dependencies.late_probes)),
      jobs(options, engine_status),
      versions(std::move(version_store)),
      leads_node(options.rank == 0),
      promotions(tiers, {.local = *fs,
                         .root = options.path,
                         .clock = *clock,
                         .log = log,
                         .rank = options.rank,
                         .world = options.world,
                         .direct_io = options.direct_io,
                         .leads_node = options.node_local ? &leads_node : nullptr,
                         .on_released = [this] { cleaner.request(); }}),
      live(catalog, retention, [this] { return held(); }),
      cleaner(options.rank == 0 && !options.path.empty(), retention, versions, live, errors, log),
      turns(protocol && options.on_busy == OnBusy::kSkip ? std::make_unique<SkipThread>(*this) : nullptr) {
  if (versions.exists()) versions.without_lock().set_held([this] { return held(); });
  if (memory) {
    memory->set_on_flushed([this](const Manifest& manifest) { live.lock()->add_repaired(version_info(manifest)); });
  }
}

EngineShared::~EngineShared() = default;

std::set<VersionName> EngineShared::held() const {
  std::set<VersionName> all = promotions.held();
  all.merge(std::set(*repairing.lock()));
  return all;
}

void EngineShared::note_committed(const Manifest& manifest, bool pinned) {
  promotions.add({manifest.step, manifest.attempt});
  cleaner.note_committed(manifest, pinned);
}

std::vector<TierPlace> EngineShared::lower_tiers() const {
  std::vector<TierPlace> places;
  for (const Tier& tier : tiers) places.push_back({&tier.reader(), tier.root()});
  return places;
}

}  // namespace slackwater
