#include "store/s3/multipart.hpp"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "store/s3/hashes.hpp"

namespace slackwater::s3 {
namespace {

constexpr std::size_t kMaxListPages = 10'000;

std::string without_quotes(std::string tag) {
  std::erase(tag, '"');
  return tag;
}

}  // namespace

std::uint64_t part_size(std::uint64_t file_bytes, std::uint64_t least_bytes) {
  return std::max(least_bytes, round_up(file_bytes / kMaxParts + (file_bytes % kMaxParts != 0 ? 1 : 0), kSlabMultiple));
}

bool same_content(const UploadedPart& part, const Checksums& checksums) {
  if (!part.checksum.empty()) return part.checksum == crc_base64(checksums.crc);
  return !checksums.md5_hex.empty() && without_quotes(part.tag) == checksums.md5_hex;
}

Result<std::string> create_upload(ObjectClient& client, const std::string& key) {
  ObjectCall call{.doing = "cannot begin an upload", .method = "POST", .key = key, .query = {{"uploads", ""}}};
  call.headers.emplace_back("x-amz-checksum-algorithm", "CRC32C");
  std::string id;
  call.check = [&](const HttpAnswer& answer) -> Status {
    const auto root = parse_xml(answer.body);
    if (root) id = root->text_of("UploadId");  // servers do not agree on the name of the root
    if (!id.empty()) return {};
    return fail(Error{.kind = ErrorKind::kIo,
                      .message = "cannot begin an upload: the object store names no upload id",
                      .retryable = true});
  };
  SW_TRY(client.send(std::move(call)));
  return id;
}

Result<UploadedPart> upload_part(ObjectClient& client, const UploadInfo& upload, std::uint32_t number,
                                 ByteSource& source, const Checksums& checksums) {
  UploadedPart part{.number = number, .size_bytes = source.size_bytes(), .tag = {}, .checksum = {}};
  ObjectCall call{.doing = fmt::format("cannot send part {}", number),
                  .method = "PUT",
                  .key = upload.key,
                  .query = {{"partNumber", fmt::format("{}", number)}, {"uploadId", upload.id}},
                  .headers = checksum_headers(checksums),
                  .body = &source};
  call.check = [&](const HttpAnswer& answer) -> Status {
    part.tag = answer.header("etag");
    part.checksum = answer.header("x-amz-checksum-crc32c");
    if (!part.tag.empty()) {
      client.capabilities().crc32c = part.checksum.empty() ? Capability::kNo : Capability::kYes;
      return check_echo(answer, checksums, source);
    }
    return fail(Error{.kind = ErrorKind::kIo, .message = "the server returned no ETag for a part", .retryable = true});
  };
  SW_TRY(client.send(std::move(call)));
  return part;
}

Status complete_upload(ObjectClient& client, const UploadInfo& upload, const std::vector<UploadedPart>& parts) {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const UploadedPart& part : parts) {
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>", part.number, escape_xml(part.tag));
    if (!part.checksum.empty()) body += fmt::format("<ChecksumCRC32C>{}</ChecksumCRC32C>", escape_xml(part.checksum));
    body += "</Part>";
  }
  body += "</CompleteMultipartUpload>";
  const std::array pieces{std::as_bytes(std::span(std::as_const(body)))};
  MemorySource source(pieces);
  ObjectCall call{.doing = "cannot finish the upload",
                  .method = "POST",
                  .key = upload.key,
                  .query = {{"uploadId", upload.id}},
                  .headers = {{"content-type", "application/xml"}},
                  .body = &source,
                  .sign_body = true};
  SW_TRY(client.send_for_xml(std::move(call), "CompleteMultipartUploadResult"));
  return {};
}

Status abort_upload(ObjectClient& client, const UploadInfo& upload) {
  auto aborted = client.send(
      {.doing = "cannot abort the upload", .method = "DELETE", .key = upload.key, .query = {{"uploadId", upload.id}}});
  if (!aborted && aborted.error().kind != ErrorKind::kNotFound) return fail(std::move(aborted).error());
  return {};
}

Result<std::vector<UploadedPart>> list_parts(ObjectClient& client, const UploadInfo& upload) {
  std::vector<UploadedPart> parts;
  std::string marker;
  for (std::size_t page = 0; page < kMaxListPages; ++page) {
    Query query{{"uploadId", upload.id}};
    if (!marker.empty()) query.emplace_back("part-number-marker", marker);
    SW_ASSIGN(const XmlElement root, client.send_for_xml({.doing = "cannot list the parts of an upload",
                                                          .method = "GET",
                                                          .key = upload.key,
                                                          .query = std::move(query)},
                                                         "ListPartsResult"));
    for (const XmlElement& child : root.children) {
      const auto number = child.number_of("PartNumber");
      const auto size = child.number_of("Size");
      if (child.name != "Part" || !number || !size || *number == 0 || *number > 10'000) continue;
      parts.push_back({.number = static_cast<std::uint32_t>(*number),
                       .size_bytes = *size,
                       .tag = child.text_of("ETag"),
                       .checksum = child.text_of("ChecksumCRC32C")});
    }
    const std::string next = root.text_of("NextPartNumberMarker");
    if (root.text_of("IsTruncated") != "true" || next.empty() || next == marker) return parts;
    marker = next;
  }
  return fail(ErrorKind::kCorrupt, "the object store's list of parts does not end", client.path_of(upload.key));
}

Result<std::vector<UploadInfo>> list_uploads(ObjectClient& client, const std::string& prefix) {
  std::vector<UploadInfo> uploads;
  std::string key_marker;
  std::string id_marker;
  for (std::size_t page = 0; page < kMaxListPages; ++page) {
    Query query{{"uploads", ""}, {"prefix", prefix}, {"encoding-type", "url"}};
    if (!key_marker.empty()) query.emplace_back("key-marker", key_marker);
    if (!id_marker.empty()) query.emplace_back("upload-id-marker", id_marker);
    auto answered = client.send_for_xml(
        {.doing = "cannot list the uploads under way", .method = "GET", .key = {}, .query = std::move(query)},
        "ListMultipartUploadsResult");
    // rclone's answer as long as no upload was ever begun. (A missing bucket is another error.)
    if (!answered && answered.error().kind == ErrorKind::kNotFound) return uploads;
    if (!answered) return fail(std::move(answered).error());
    const XmlElement& root = *answered;
    const bool encoded = root.text_of("EncodingType") == "url";
    for (const XmlElement& child : root.children) {
      if (child.name != "Upload") continue;
      UploadInfo upload{child.text_of("Key"), child.text_of("UploadId")};
      if (encoded) upload.key = decode_percent(upload.key);
      if (upload.key.starts_with(prefix) && !upload.id.empty()) uploads.push_back(std::move(upload));
    }
    std::string next_key = root.text_of("NextKeyMarker");
    if (encoded) next_key = decode_percent(next_key);
    std::string next_id = root.text_of("NextUploadIdMarker");
    if (root.text_of("IsTruncated") != "true" || next_key.empty() || (next_key == key_marker && next_id == id_marker))
      return uploads;
    key_marker = std::move(next_key);
    id_marker = std::move(next_id);
  }
  return fail(ErrorKind::kCorrupt, "the object store's list of uploads does not end", client.path_of(prefix));
}

}  // namespace slackwater::s3
