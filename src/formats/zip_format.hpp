// Numbers of the zip format (PKWARE APPNOTE 6.3), for reader and writer.
#pragma once

#include <cstdint>

namespace slackwater::formats {

inline constexpr std::uint32_t kZipHeader = 0x04034b50;  // in front of each record
inline constexpr std::uint32_t kZipEntry = 0x02014b50;   // of a record, in the list at the end
inline constexpr std::uint32_t kZipEnd = 0x06054b50;
inline constexpr std::uint32_t kZip64End = 0x06064b50;
inline constexpr std::uint32_t kZip64Locator = 0x07064b50;

// Sizes without names and extra fields.
inline constexpr std::uint64_t kZipHeaderBytes = 30;
inline constexpr std::uint64_t kZipEntryBytes = 46;
inline constexpr std::uint64_t kZipEndBytes = 22;
inline constexpr std::uint64_t kZip64EndBytes = 56;
inline constexpr std::uint64_t kZip64LocatorBytes = 20;

inline constexpr std::uint16_t kZip64Extra = 1;           // id of the extra field with 64-bit sizes
inline constexpr std::uint64_t kZip32Limit = 0xffffffff;  // a 32-bit field with this value defers to that field
inline constexpr std::uint64_t kZip16Limit = 0xffff;

}  // namespace slackwater::formats
