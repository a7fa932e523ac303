// Uploads in parts: the requests, one function each, and the size of a part. Free functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slackwater/error.hpp"
#include "store/s3/checksums.hpp"
#include "store/s3/object_client.hpp"

namespace slackwater::s3 {

inline constexpr std::uint64_t kSlabMultiple = 8u << 20;
inline constexpr std::uint64_t kMinPartBytes = 64u << 20;
inline constexpr std::uint64_t kMaxParts = 9'000;  // S3 takes 10,000

// Of every part but the last: 64 MiB, or as many whole slabs as make at most kMaxParts parts.
[[nodiscard]] std::uint64_t part_size(std::uint64_t file_bytes, std::uint64_t least_bytes = kMinPartBytes);

struct UploadedPart {
  std::uint32_t number = 0;  // from 1 on
  std::uint64_t size_bytes = 0;
  std::string tag;       // ETag, as the server wrote it, quotes included
  std::string checksum;  // CRC32C in base64; empty if the server keeps none
};

// Whether the part on the server has these bytes.
[[nodiscard]] bool same_content(const UploadedPart& part, const Checksums& checksums);

struct UploadInfo {
  std::string key;
  std::string id;
};

[[nodiscard]] Result<std::string> create_upload(ObjectClient& client, const std::string& key);
// Also learns whether the server echoes CRC32C. kNotFound: the server does not know the upload any more.
[[nodiscard]] Result<UploadedPart> upload_part(ObjectClient& client, const UploadInfo& upload, std::uint32_t number,
                                               ByteSource& source, const Checksums& checksums);
[[nodiscard]] Status complete_upload(ObjectClient& client, const UploadInfo& upload,
                                     const std::vector<UploadedPart>& parts);
[[nodiscard]] Status abort_upload(ObjectClient& client, const UploadInfo& upload);  // one that is gone is fine
[[nodiscard]] Result<std::vector<UploadedPart>> list_parts(ObjectClient& client, const UploadInfo& upload);
// Those under way whose key begins like this, in the order of their keys, and of their start for one key.
[[nodiscard]] Result<std::vector<UploadInfo>> list_uploads(ObjectClient& client, const std::string& prefix);

}  // namespace slackwater::s3
