#include "store/s3/object_upload.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"

namespace slackwater::s3 {

ObjectUpload::ObjectUpload(ObjectClient& client, std::string key, std::uint64_t size_bytes)
    : client_(client),
      key_(std::move(key)),
      size_bytes_(size_bytes),
      part_bytes_(part_size(size_bytes, client.options().least_part_bytes)),
      part_count_(static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (size_bytes + part_bytes_ - 1) / part_bytes_))),
      before_(part_count_),
      done_(part_count_) {}

Result<std::unique_ptr<FileUpload>> ObjectUpload::begin(ObjectClient& client, std::string key,
                                                        std::uint64_t size_bytes) {
  std::unique_ptr<ObjectUpload> upload(new ObjectUpload(client, std::move(key), size_bytes));
  if (upload->part_count_ > 1) SW_TRY(upload->resume_or_create());
  return upload;
}

Status ObjectUpload::resume_or_create() {
  // The key names step, attempt and rank, so an upload under way is one of the same bytes. The newest is taken if a
  // writer was killed more than once; gc aborts the others when their attempt is over.
  // A store, or a policy, that lists no uploads: then this one begins anew.
  auto uploads = list_uploads(client_, key_);
  if (!uploads && uploads.error().kind != ErrorKind::kUnsupported && uploads.error().kind != ErrorKind::kPermission)
    return fail(std::move(uploads).error());
  if (uploads) {
    std::erase_if(*uploads, [&](const UploadInfo& upload) { return upload.key != key_; });
    if (!uploads->empty()) {
      const auto parts = list_parts(client_, uploads->back());
      if (!parts && parts.error().kind != ErrorKind::kNotFound) return fail(parts.error());
      if (parts) {
        id_ = uploads->back().id;
        for (const UploadedPart& part : *parts) {
          // A server that lists checksums of parts confirms CRC32C for the rest as well.
          if (!part.checksum.empty()) client_.capabilities().crc32c = Capability::kYes;
          if (part.number <= part_count_ && part.size_bytes == size_of_part(part.number - 1))
            before_[part.number - 1] = part;
        }
      }
    }
  }
  if (!id_.empty()) return {};
  SW_ASSIGN(id_, create_upload(client_, key_));
  return {};
}

std::uint64_t ObjectUpload::size_of_part(std::uint32_t part) const {
  return std::min(part_bytes_, size_bytes_ - part * part_bytes_);
}

Status ObjectUpload::send(std::uint32_t part, ByteSource& source) {
  const std::uint64_t size = source.size_bytes();
  if (part >= part_count_ || size != size_of_part(part)) {
    return fail(ErrorKind::kInternal, fmt::format("part {} of {} bytes does not belong to this upload", part, size),
                client_.path_of(key_));
  }
  UploadedPart sent{.number = part + 1, .size_bytes = size, .tag = {}, .checksum = {}};
  if (id_.empty()) {
    SW_TRY(client_.put(key_, source, false));
  } else {
    const bool listed = before_[part].number != 0;
    const bool with_md5 = listed ? before_[part].checksum.empty() : client_.capabilities().crc32c != Capability::kYes;
    SW_ASSIGN(const Checksums checksums, checksums_of(source, with_md5));
    if (listed && same_content(before_[part], checksums)) {
      sent = before_[part];
    } else {
      SW_ASSIGN(sent, upload_part(client_, {key_, id_}, part + 1, source, checksums));
    }
  }
  const std::lock_guard lock(mutex_);
  done_[part] = std::move(sent);
  return {};
}

Status ObjectUpload::finish() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t part = 0; part < part_count_; ++part) {
    if (done_[part].number == 0)
      return fail(ErrorKind::kInternal, fmt::format("part {} of the upload was not sent", part), client_.path_of(key_));
  }
  if (!id_.empty()) {
    const Status completed = complete_upload(client_, {key_, id_}, done_);
    // kNotFound: the server does not know the upload. After a reply that got lost, that is because it is finished.
    if (!completed && completed.error().kind != ErrorKind::kNotFound) return completed;
    const auto size = client_.size_of(key_);
    if (!size) return completed ? fail(size.error()) : completed;
    if (*size != size_bytes_) {
      return fail(
          Error{.kind = ErrorKind::kIo,
                .message = fmt::format("the object has {} bytes after the upload instead of {}", *size, size_bytes_),
                .path = client_.path_of(key_),
                .retryable = true});
    }
  }
  return {};
}

Status ObjectUpload::abandon() {
  if (id_.empty()) return client_.remove(key_);
  return abort_upload(client_, {key_, id_});
}

}  // namespace slackwater::s3
