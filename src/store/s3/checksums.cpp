#include "store/s3/checksums.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/result.hpp"
#include "store/s3/hashes.hpp"

namespace slackwater::s3 {

Result<Checksums> checksums_of(ByteSource& source, bool with_md5) {
  Checksums checksums;
  Md5Stream md5;
  for (std::uint64_t done = 0; done < source.size_bytes();) {
    SW_ASSIGN(const std::span<const std::byte> bytes, source.at(done));
    if (bytes.empty()) return fail(ErrorKind::kInternal, "the bytes to be sent end too soon");
    checksums.crc = crc32c_next(checksums.crc, bytes);
    if (with_md5) md5.add(bytes);
    done += bytes.size();
  }
  if (with_md5) {
    const Md5 digest = md5.finish();
    checksums.md5_hex = to_hex(digest);
    checksums.md5_base64 = to_base64(digest);
  }
  return checksums;
}

Headers checksum_headers(const Checksums& checksums) {
  Headers headers{{"x-amz-checksum-crc32c", crc_base64(checksums.crc)}};
  if (!checksums.md5_hex.empty()) headers.emplace_back("content-md5", checksums.md5_base64);
  return headers;
}

Status check_echo(const HttpAnswer& answer, const Checksums& checksums, ByteSource& source) {
  const auto differs = [](std::string_view what) {
    return fail(Error{.kind = ErrorKind::kIo,
                      .message = fmt::format("the object store received other bytes than were sent ({} differs)", what),
                      .retryable = true});
  };
  const std::string echoed = answer.header("x-amz-checksum-crc32c");
  if (!echoed.empty()) return echoed == crc_base64(checksums.crc) ? Status() : differs("CRC32C");
  std::string tag = answer.header("etag");
  std::erase(tag, '"');
  // With keys of their own (KMS, or the customer's), servers make other tags.
  const bool is_md5 = tag.size() == 32 && tag.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos &&
                      !answer.header("x-amz-server-side-encryption").starts_with("aws:kms") &&
                      answer.header("x-amz-server-side-encryption-customer-algorithm").empty();
  if (!is_md5) return {};
  std::string md5_hex = checksums.md5_hex;
  if (md5_hex.empty()) {
    SW_ASSIGN(const Checksums with_md5, checksums_of(source, true));
    md5_hex = with_md5.md5_hex;
  }
  std::ranges::transform(tag, tag.begin(), [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
  return tag == md5_hex ? Status() : differs("MD5");
}

}  // namespace slackwater::s3
