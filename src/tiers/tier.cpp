#include "tiers/tier.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "store/s3/locations.hpp"

namespace slackwater {

Tier::Tier(TierOptions options, std::string root, std::unique_ptr<FileSystem> fs)
    : options_(std::move(options)), root_(std::move(root)), own_(std::move(fs)), fs_(own_.get()) {}

Tier::Tier(TierOptions options, std::string root, FileSystem& fs)
    : options_(std::move(options)), root_(std::move(root)), fs_(&fs) {}

Status check_tier_location(std::string_view location) {
  constexpr std::string_view kBucket = "s3://";
  // One that is misspelt must not become a directory of that name.
  const bool store =
      is_object_location(location) && location.size() > kBucket.size() && location[kBucket.size()] != '/';
  const bool directory = !location.starts_with("s3:/") && location.find("://") == std::string_view::npos;
  if (!location.empty() && (store || directory)) return {};
  return fail(ErrorKind::kInvalidArgument, "takes a directory, or s3://bucket/prefix");
}

Status check_tier_count(std::uint64_t value) {
  if (value > 0) return {};
  return fail(ErrorKind::kInvalidArgument, "takes a whole number, 1 or more");
}

Result<Tier> Tier::open(TierOptions options, FileSystem& local) {
  std::string root = options.location;
  while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  const auto checked = [&](const char* name, Status status) -> Status {
    if (status) return {};
    return fail(ErrorKind::kInvalidArgument, fmt::format("'{}' of a tier {}", name, status.error().message),
                options.location);
  };
  SW_TRY(checked("location", check_tier_location(options.location)));
  SW_TRY(checked("every", check_tier_count(options.every)));
  SW_TRY(checked("backlog", check_tier_count(options.backlog)));
  if (options.node_local) {
    return fail(ErrorKind::kInvalidArgument,
                "node_local is for the first tier, to which the ranks save; all nodes must share the lower tiers",
                root);
  }
  if (is_object_location(root)) {
    SW_ASSIGN(auto fs, make_object_file_system(root, options.s3, Access::kWrite));
    SW_ASSIGN(auto reader, make_object_file_system(root, options.s3, Access::kRead));
    Tier tier(std::move(options), std::move(root), std::move(fs));
    tier.own_reader_ = std::move(reader);
    return tier;
  }
  return Tier(std::move(options), std::move(root), local);
}

}  // namespace slackwater
