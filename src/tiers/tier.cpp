#include "tiers/tier.hpp"

#include <utility>

#include <fmt/format.h>

namespace slackwater {

bool is_object_location(std::string_view location) { return location.starts_with("s3://"); }

Tier::Tier(TierOptions options, std::string root, std::unique_ptr<FileSystem> fs)
    : options_(std::move(options)), root_(std::move(root)), own_(std::move(fs)), fs_(own_.get()) {}

Tier::Tier(TierOptions options, std::string root, FileSystem& fs)
    : options_(std::move(options)), root_(std::move(root)), fs_(&fs) {}

Result<Tier> Tier::open(TierOptions options, FileSystem& local) {
  std::string root = options.location;
  while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  if (root.empty())
    return fail(ErrorKind::kInvalidArgument, "a tier needs a location: a directory, or s3://bucket/prefix");
  if (options.every == 0) return fail(ErrorKind::kInvalidArgument, "every must be 1 or more", root);
  if (options.backlog == 0) return fail(ErrorKind::kInvalidArgument, "backlog must be 1 or more", root);
  if (is_object_location(root))
    return fail(ErrorKind::kUnsupported, "this build has no object store; use a directory as the tier", root);
  if (root.find("://") != std::string::npos)
    return fail(ErrorKind::kInvalidArgument, "a tier is a directory, or s3://bucket/prefix", root);
  return Tier(std::move(options), std::move(root), local);
}

}  // namespace slackwater
