// NodeFetch: brings files of a version from the tiers below to tier 0 before ranks read them, so that bytes which
// several ranks of a node need cross the network once. What one rank of the earlier run saved (its data files and its
// record) is fetched as one part. Whoever gets the lock of a part first copies it; the others find it on tier 0. A lock
// ends with its process, so a rank that dies is replaced by the next one that needs the part. A file that turns out to
// be damaged when it is read is mended in the same way.
// Owned by one restore. Thread rule: one thread per object; objects of several processes work together.
// Lifetime: the FileSystems outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
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

  // A data file or record on tier 0 was found damaged; `name` is relative to the version's directory. Returns when tier
  // 0 has it intact, whoever copied it. Of a data file, only blocks that differ are written.
  [[nodiscard]] Status mend(const VersionName& version, const std::string& name);

 private:
  // With the lock of a part. False: another rank has it.
  [[nodiscard]] Result<bool> with_lock(const VersionFiles& files, std::uint32_t saved_by,
                                       const std::function<Status()>& call) const;
  [[nodiscard]] Result<bool> fetch_one(const VersionFiles& files, std::uint32_t saved_by) const;
  [[nodiscard]] Result<bool> has_part(const VersionFiles& files, std::uint32_t saved_by) const;
  [[nodiscard]] Result<bool> is_intact(const VersionFiles& files, const RecordReference& reference,
                                       const std::string& name) const;
  [[nodiscard]] Status copy(RepairOrder order, const std::function<bool(std::uint32_t rank)>& in_share) const;

  const TierPlace target_;
  const std::vector<TierPlace> sources_;
  const Options options_;
  const Log log_;
};

}  // namespace slackwater
