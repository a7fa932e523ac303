// Copies one data file of a version to another tier. It reads the source in windows, checks every MiB against the
// digests of the file's record, and hands the parts to a FileUpload, several at a time. Damaged bytes are never sent. A
// copy that was interrupted continues where it stopped.
// Memory: at most `buffer_bytes`, however large a part is. Each thread has its share of it as a window on its part. A
// part that is larger than the window may be read twice: an object store wants its checksum first.
// Functions without state. Thread rule: any thread; the call returns when its own threads (sw-send-N) have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "os/file_system.hpp"
#include "slackwater/error.hpp"
#include "tiers/bandwidth_cap.hpp"
#include "version/record.hpp"

namespace slackwater {

struct CopyOptions {
  unsigned threads = 2;                             // parts on their way at once
  std::uint64_t buffer_bytes = 16u << 20;           // for all of these parts together; at least 1 MiB
  bool direct_io = true;                            // read with O_DIRECT if the file system supports it
  BandwidthCap* cap = nullptr;                      // shared by all copies of a tier
  std::stop_token stop = {};                        // the copy then ends soon, with kClosed
  std::function<void(std::uint64_t)> on_sent = {};  // bytes that have reached the target; from any thread
};

struct FileAt {
  FileSystem& fs;
  std::string path;
};

// `record` describes the source. kCorrupt with the path of the source: its bytes are not those that were saved, and
// none of the damaged bytes were sent. The target's directory must exist. On success the target is durable.
[[nodiscard]] Status copy_file(const FileAt& source, const FileAt& target, const FileRecord& record,
                               const CopyOptions& options);

// Makes a small file durable on a tier: `text` under this name. A file that is there already with the same bytes is
// synced; anything else under that name (a crash cut it short) is replaced. Sync the directory afterwards.
[[nodiscard]] Status place_file(FileSystem& fs, const std::string& directory, const std::string& name,
                                const std::string& text);

}  // namespace slackwater
