#include "engine/engine_shared.hpp"

#include <utility>

#include "engine/skip_thread.hpp"
#include "ranks/key_value_transport.hpp"

namespace slackwater {
namespace {

std::unique_ptr<RankTransport> make_transport(const Options& options, FileSystem& fs, const Clock& clock) {
  if (options.world == 1) return nullptr;
  if (options.store) return std::make_unique<KeyValueTransport>(*options.store, clock, options.path);
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
                                               // Waiting for a rank that still writes is no stall.
                                               .on_heartbeat = [status = engine_status] { status->note_progress(); }},
                         *transport, *fs, *clock)
                   : nullptr),
      retention{.keep = options.keep, .keep_every = options.keep_every, .best = options.keep_best},
      memory(std::move(dependencies.memory)),
      jobs(options, engine_status),
      versions(std::move(version_store)),
      live(catalog, retention),
      cleaner(options.rank == 0, retention, versions, live, errors, log),
      turns(protocol && options.on_busy == OnBusy::kSkip ? std::make_unique<SkipThread>(*this) : nullptr) {}

EngineShared::~EngineShared() = default;

}  // namespace slackwater
