#include "version/record.hpp"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/digest.hpp"
#include "base/result.hpp"
#include "version/fields.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kRecordFormat = 1;
constexpr std::size_t kHexDigits = 16;  // of one block digest

// One string of all digests, not a list: a file of 1 TiB has a million of them.
std::string hex_of(const std::vector<std::uint64_t>& digests) {
  std::string text;
  text.reserve(digests.size() * kHexDigits);
  for (const std::uint64_t digest : digests) text += to_hex(digest);
  return text;
}

Result<std::vector<std::uint64_t>> parse_digests(std::string_view text, std::uint64_t size_bytes,
                                                 const std::string& path) {
  const std::uint64_t blocks = size_bytes / kBlockBytes + (size_bytes % kBlockBytes != 0 ? 1 : 0);
  if (text.size() % kHexDigits != 0 || text.size() / kHexDigits != blocks) {
    return corrupt(fmt::format("field 'block_digests' has {} characters; {} bytes need {} digests of {}", text.size(),
                               size_bytes, blocks, kHexDigits),
                   path);
  }
  std::vector<std::uint64_t> digests;
  digests.reserve(blocks);
  for (; !text.empty(); text.remove_prefix(kHexDigits)) {
    const auto digest = digest64_from_hex(text.substr(0, kHexDigits));
    if (!digest) return corrupt("field 'block_digests' holds something that is not a hexadecimal digit", path);
    digests.push_back(*digest);
  }
  return digests;
}

Result<FileRecord> parse_file(const Json& json, const std::string& path) {
  FileRecord file;
  SW_ASSIGN(file.name, json_string(json, "name", path));
  if (!stays_in_version(file.name))
    return corrupt(fmt::format("the file name '{}' leaves the directory of its version", file.name), path);
  SW_ASSIGN(file.size_bytes, json_u64(json, "size_bytes", path));
  SW_ASSIGN(file.tensor_count, json_u64(json, "tensor_count", path));
  SW_ASSIGN(const std::string digests, json_string(json, "block_digests", path));
  SW_ASSIGN(file.block_digests, parse_digests(digests, file.size_bytes, path));
  return file;
}

}  // namespace

std::string serialize(const Record& record) {
  Json files = Json::array();
  for (const FileRecord& file : record.files) {
    files.push_back({{"name", file.name},
                     {"size_bytes", file.size_bytes},
                     {"tensor_count", file.tensor_count},
                     {"block_bytes", kBlockBytes},
                     {"block_digests", hex_of(file.block_digests)}});
  }
  return seal_json({{"format", kRecordFormat},
                    {"run", record.run},
                    {"step", record.identity.step},
                    {"attempt", record.identity.attempt},
                    {"rank", record.identity.rank},
                    {"world", record.identity.world},
                    {"files", std::move(files)}});
}

Result<Record> parse_record(std::string_view text, const std::string& path) {
  SW_ASSIGN(const Json json, open_sealed_json(text, path));
  SW_TRY(check_format(json, kRecordFormat, "record", path));
  Record record;
  SW_ASSIGN(record.run, json_string(json, "run", path));
  SW_ASSIGN(record.identity.step, json_u64(json, "step", path));
  SW_ASSIGN(record.identity.attempt, json_u32(json, "attempt", path));
  SW_ASSIGN(record.identity.rank, json_u32(json, "rank", path));
  SW_ASSIGN(record.identity.world, json_u32(json, "world", path));
  if (record.identity.rank >= record.identity.world) {
    return corrupt(
        fmt::format("the record claims rank {} in a world of {}", record.identity.rank, record.identity.world), path);
  }
  SW_ASSIGN(const Json* files, json_array(json, "files", path));
  if (files->empty()) return corrupt("the record names no file", path);
  std::set<std::string> names;
  for (const Json& entry : *files) {
    SW_ASSIGN(const std::uint64_t block_bytes, json_u64(entry, "block_bytes", path));
    if (block_bytes != kBlockBytes) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("the record has checksums of blocks of {} bytes; this build of Slackwater knows only {}",
                              block_bytes, kBlockBytes),
                  path);
    }
    SW_ASSIGN(FileRecord file, parse_file(entry, path));
    if (!names.insert(file.name).second) {
      return corrupt(fmt::format("the record names the file '{}' twice", file.name), path);
    }
    record.files.push_back(std::move(file));
  }
  return record;
}

}  // namespace slackwater
