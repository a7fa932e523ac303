// FileUpload: one large file on its way to a tier, in parts. Parts may be sent in any order and by several threads.
// It can be resumed: after a crash, FileSystem::begin_upload() of the same path continues where the last try stopped.
// Nothing can be read under the file's name as complete before finish(), unless its bytes are those of the source.
// Owner: whoever called begin_upload(). Thread rule: send() from several threads; the rest when no send() is running.
// Lifetime: the FileSystem outlives it. The destructor leaves what was sent, for a later try.
#pragma once

#include <cstdint>
#include <string>

#include "os/byte_source.hpp"
#include "slackwater/error.hpp"

namespace slackwater {

// An upload that somebody began.
struct PendingUpload {
  std::string path;  // the file that it would have become
  std::string id;    // tells it from others of the same path
};

class FileUpload {
 public:
  virtual ~FileUpload() = default;

  // Size of every part except the last; a multiple of 8 MiB.
  [[nodiscard]] virtual std::uint64_t part_bytes() const = 0;
  // The bytes of one part. They may be asked for more than once: to compute a checksum that goes ahead of them, and to
  // send them. A part that is there already with the same content is not transferred again. What the source hands out
  // lies at a multiple of 4096 in memory, and its length is a multiple of 4096 unless it is the end of the file. An
  // error of the source is returned as it is.
  [[nodiscard]] virtual Status send(std::uint32_t part, ByteSource& source) = 0;
  // All parts were sent: makes the file durable under its name.
  [[nodiscard]] virtual Status finish() = 0;
  // Removes what was sent.
  [[nodiscard]] virtual Status abandon() = 0;
};

}  // namespace slackwater
