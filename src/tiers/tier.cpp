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

Result<Tier> Tier::open(TierOptions options, FileSystem& local) {
  std::string root = options.location;
  while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  if (root.empty())
    return fail(ErrorKind::kInvalidArgument, "a tier needs a location: a directory, or s3://bucket/prefix");
  if (options.every == 0) return fail(ErrorKind::kInvalidArgument, "every must be 1 or more", root);
  if (options.backlog == 0) return fail(ErrorKind::kInvalidArgument, "backlog must be 1 or more", root);
  if (is_object_location(root)) {
    SW_ASSIGN(auto fs, make_object_file_system(root, options.s3, Access::kWrite));
    return Tier(std::move(options), std::move(root), std::move(fs));
  }
  if (root.find("://") != std::string::npos)
    return fail(ErrorKind::kInvalidArgument, "unknown tier location; use a directory or s3://bucket/prefix", root);
  return Tier(std::move(options), std::move(root), local);
}

}  // namespace slackwater
