// ObjectUpload: a file on its way into an object store. A file of at most one part goes with one PutObject, a larger
// one with a multipart upload. The server keeps the upload's id and parts: a later try lists them and goes on.
// Owner, thread rule, lifetime: os/file_upload.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "os/file_upload.hpp"
#include "store/s3/multipart.hpp"
#include "store/s3/object_client.hpp"

namespace slackwater::s3 {

class ObjectUpload final : public FileUpload {
 public:
  // Goes on with an upload of this key that is under way, if there is one.
  [[nodiscard]] static Result<std::unique_ptr<FileUpload>> begin(ObjectClient& client, std::string key,
                                                                 std::uint64_t size_bytes);

  [[nodiscard]] std::uint64_t part_bytes() const override { return part_bytes_; }
  [[nodiscard]] Status send(std::uint32_t part, ByteSource& source) override;
  [[nodiscard]] Status finish() override;
  [[nodiscard]] Status abandon() override;

 private:
  ObjectUpload(ObjectClient& client, std::string key, std::uint64_t size_bytes);
  [[nodiscard]] Status resume_or_create();
  [[nodiscard]] std::uint64_t size_of_part(std::uint32_t part) const;

  // Constant after begin().
  ObjectClient& client_;
  const std::string key_;
  const std::uint64_t size_bytes_;
  const std::uint64_t part_bytes_;
  const std::uint32_t part_count_;
  std::string id_;                    // empty: one PutObject will do
  std::vector<UploadedPart> before_;  // of an earlier try, by part; number 0: none

  std::mutex mutex_;
  std::vector<UploadedPart> done_;  // by part; number 0: not yet; guarded by mutex_
};

}  // namespace slackwater::s3
