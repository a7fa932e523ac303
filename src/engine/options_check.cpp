#include "engine/options_check.hpp"

#include <string>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

namespace slackwater {

Status check_world(std::uint32_t world) {
  if (world > 0 && world <= kMaxWorld) return {};
  return fail(ErrorKind::kInvalidArgument, fmt::format("world must be from 1 to {}", kMaxWorld));
}

Status check_first_tier(const TierOptions& tier) {
  if (is_object_location(tier.location)) {
    return fail(ErrorKind::kInvalidArgument, "the first tier must be a directory; list s3:// tiers after it",
                tier.location);
  }
  const TierOptions defaults;
  std::string names;
  const auto unless_default = [&](const char* name, const auto& value, const auto& default_value) {
    if (value != default_value) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  };
  unless_default("every", tier.every, defaults.every);
  unless_default("bandwidth", tier.bandwidth_bytes, defaults.bandwidth_bytes);
  unless_default("backlog", tier.backlog, defaults.backlog);
  unless_default("endpoint", tier.s3.endpoint, defaults.s3.endpoint);
  unless_default("region", tier.s3.region, defaults.s3.region);
  unless_default("profile", tier.s3.profile, defaults.s3.profile);
  unless_default("path_style", tier.s3.path_style, defaults.s3.path_style);
  if (names.empty()) return {};
  return fail(ErrorKind::kInvalidArgument,
              fmt::format("the ranks save to the first tier, and nothing is copied there, so it does not have these "
                          "options: {}; remove them",
                          names),
              tier.location);
}

Status settle_options(Options& options) {
  if (options.path.empty() && !options.tiers.empty()) {
    const TierOptions first = options.tiers.front();
    SW_TRY(check_first_tier(first));
    options.tiers.erase(options.tiers.begin());
    options.path = first.location;
    options.keep = first.keep;
    options.keep_every = first.keep_every;
    options.node_local |= first.node_local;
  }
  while (options.path.size() > 1 && options.path.ends_with('/')) options.path.pop_back();
  if (options.world == 1) options.node_local = false;
  return {};
}

Status check_options(const Options& options) {
  if (options.path.empty() && options.world != 1)
    return fail(ErrorKind::kInvalidArgument, "no directory was given: set Options::path");
  if (options.slab_bytes == 0 || options.slab_bytes % kBlockBytes != 0 || options.slab_bytes > (1u << 30))
    return fail(ErrorKind::kInvalidArgument, "slab must be a multiple of 1 MiB, at most 1 GiB");
  if (options.in_flight == 0) return fail(ErrorKind::kInvalidArgument, "in_flight must be 1 or more");
  if (options.pool_bytes != 0 && options.pool_bytes < 2 * options.slab_bytes)
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("pool is {}, and must hold at least two slabs ({})", format_bytes(options.pool_bytes),
                            format_bytes(2 * options.slab_bytes)));
  SW_TRY(check_world(options.world));
  if (options.rank >= options.world)
    return fail(ErrorKind::kInvalidArgument,
                fmt::format("rank is {}, and must be below world ({})", options.rank, options.world));
  if (options.local_ranks == 0) return fail(ErrorKind::kInvalidArgument, "local_ranks must be 1 or more");
  if (options.node_local && !options.store)
    return fail(ErrorKind::kInvalidArgument,
                "node_local needs a store that all ranks reach (Options::store), because they share no directory");
  if (options.fan_in < 2) return fail(ErrorKind::kInvalidArgument, "fan_in must be 2 or more");
  return {};
}

}  // namespace slackwater
