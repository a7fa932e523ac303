// Checksums of what is sent to an object store. They go ahead of the bytes, as headers, and the server's answer must
// confirm one of them. Free functions; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "os/byte_source.hpp"
#include "slackwater/error.hpp"
#include "store/s3/http_client.hpp"

namespace slackwater::s3 {

struct Checksums {
  std::uint32_t crc = 0;
  std::string md5_hex;  // empty: not computed
  std::string md5_base64;
};

// Reads all of the source once. MD5 takes five times as long as CRC32C. It is needed unless the server echoes CRC32C.
[[nodiscard]] Result<Checksums> checksums_of(ByteSource& source, bool with_md5);

[[nodiscard]] Headers checksum_headers(const Checksums& checksums);

// Compares what the server says it received with what was sent. An answer that names another checksum is a retryable
// error. If it names no CRC32C, its ETag must be the MD5, which is computed now if it was not before: a server that
// confirmed CRC32C until now may be a gateway with another server behind it.
[[nodiscard]] Status check_echo(const HttpAnswer& answer, const Checksums& checksums, ByteSource& source);

}  // namespace slackwater::s3
