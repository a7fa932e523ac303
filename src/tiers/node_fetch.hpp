// NodeFetch: brings files of a version from the tiers below to tier 0 before ranks read them, so that bytes which
// several ranks of a node need cross the network once. What one rank of the earlier run saved (its data files and its
// record) is fetched as one part. Whoever gets the lock of a part first copies it; the others find it on tier 0. A lock
// ends with its process, so a rank that dies is replaced by the next one that needs the part.
// Owned by one restore. Thread rule: one thread per object; objects of several processes work together.
// Lifetime: the FileSystems outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/log.hpp"
#include "tiers/version_repair.hpp"

namespace slackwater {

class NodeFetch {
 public:
  struct Options {
    std::uint32_t rank = 0;  // ranks begin with different parts
    bool direct_io = true;
    std::function<void()> on_progress = [] {};  // on the calling thread
  };
  NodeFetch(TierPlace target, std::vector<TierPlace> sources, Options options, Log log);

  // Returns when tier 0 has what these ranks saved of the version. An error means that something could not be brought;
  // it can still be read from below.
  [[nodiscard]] Status fetch(const VersionName& version, std::vector<std::uint32_t> saved_by);

 private:
  [[nodiscard]] Result<bool> fetch_one(const VersionFiles& files, std::uint32_t saved_by);  // false: another rank does
  [[nodiscard]] Result<bool> has_part(const VersionFiles& files, std::uint32_t saved_by) const;

  const TierPlace target_;
  const std::vector<TierPlace> sources_;
  const Options options_;
  const Log log_;
};

}  // namespace slackwater
