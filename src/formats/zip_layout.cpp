#include "formats/zip_layout.hpp"

#include <algorithm>
#include <utility>

#include "base/units.hpp"
#include "formats/zip_format.hpp"

namespace slackwater::formats {
namespace {

constexpr std::uint16_t kZipVersion = 45;        // the first with zip64
constexpr std::uint16_t kUtf8Names = 0x0800;     // flag
constexpr std::uint16_t kZipDate = 0x21;         // 1980-01-01: the same state always gives the same bytes
constexpr std::uint16_t kPaddingExtra = 0x4246;  // "FB", as torch names its own padding
constexpr std::uint64_t kExtraHeaderBytes = 4;
constexpr std::uint64_t kZip64SizesBytes = 16;

template <class Number>
void append_number(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

bool is_large(std::uint64_t number) { return number >= kZip32Limit; }

std::uint32_t small_or_limit(std::uint64_t number) { return static_cast<std::uint32_t>(std::min(number, kZip32Limit)); }

}  // namespace

std::size_t ZipLayout::add(std::string name, std::uint64_t size_bytes) {
  Record record{.name = std::move(name), .size_bytes = size_bytes, .header = end_};
  std::uint64_t smallest = kZipHeaderBytes + record.name.size() + kExtraHeaderBytes;  // with an empty padding field
  if (is_large(size_bytes)) smallest += kExtraHeaderBytes + kZip64SizesBytes;
  record.data = round_up(record.header + smallest, kRecordAlignment);
  end_ = record.data + size_bytes;
  records_.push_back(std::move(record));
  return records_.size() - 1;
}

std::string ZipLayout::header(std::size_t index, std::uint32_t crc) const {
  const Record& record = records_[index];
  std::string out;
  append_number(out, kZipHeader);
  append_number(out, kZipVersion);
  append_number(out, kUtf8Names);
  append_number<std::uint16_t>(out, 0);  // stored
  append_number<std::uint16_t>(out, 0);  // time
  append_number(out, kZipDate);
  append_number(out, crc);
  append_number(out, small_or_limit(record.size_bytes));
  append_number(out, small_or_limit(record.size_bytes));
  append_number(out, static_cast<std::uint16_t>(record.name.size()));
  const std::uint64_t extra = record.data - record.header - kZipHeaderBytes - record.name.size();
  append_number(out, static_cast<std::uint16_t>(extra));
  out += record.name;
  if (is_large(record.size_bytes)) {
    append_number(out, kZip64Extra);
    append_number(out, static_cast<std::uint16_t>(kZip64SizesBytes));
    append_number(out, record.size_bytes);
    append_number(out, record.size_bytes);
  }
  const std::uint64_t padding = record.data - record.header - out.size() - kExtraHeaderBytes;
  append_number(out, kPaddingExtra);
  append_number(out, static_cast<std::uint16_t>(padding));
  out.append(padding, 'Z');
  return out;
}

void ZipLayout::finish() { size_bytes_ = end_ + tail(std::vector<std::uint32_t>(records_.size())).size(); }

std::string ZipLayout::tail(std::span<const std::uint32_t> crcs) const {
  std::string out;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    std::string extra;
    if (is_large(record.size_bytes)) {
      append_number(extra, record.size_bytes);
      append_number(extra, record.size_bytes);
    }
    if (is_large(record.header)) append_number(extra, record.header);
    append_number(out, kZipEntry);
    append_number(out, kZipVersion);
    append_number(out, kZipVersion);
    append_number(out, kUtf8Names);
    append_number<std::uint16_t>(out, 0);  // stored
    append_number<std::uint16_t>(out, 0);  // time
    append_number(out, kZipDate);
    append_number(out, crcs[i]);
    append_number(out, small_or_limit(record.size_bytes));
    append_number(out, small_or_limit(record.size_bytes));
    append_number(out, static_cast<std::uint16_t>(record.name.size()));
    append_number(out, static_cast<std::uint16_t>(extra.empty() ? 0 : extra.size() + kExtraHeaderBytes));
    append_number<std::uint16_t>(out, 0);  // comment
    append_number<std::uint16_t>(out, 0);  // disk
    append_number<std::uint16_t>(out, 0);  // internal attributes
    append_number<std::uint32_t>(out, 0);  // external attributes
    append_number(out, small_or_limit(record.header));
    out += record.name;
    if (!extra.empty()) {
      append_number(out, kZip64Extra);
      append_number(out, static_cast<std::uint16_t>(extra.size()));
      out += extra;
    }
  }
  const std::uint64_t list_bytes = out.size();
  const std::uint64_t count = records_.size();
  if (count >= kZip16Limit || is_large(list_bytes) || is_large(end_)) {
    const std::uint64_t end = end_ + list_bytes;
    append_number(out, kZip64End);
    append_number<std::uint64_t>(out, kZip64EndBytes - 12);
    append_number(out, kZipVersion);
    append_number(out, kZipVersion);
    append_number<std::uint32_t>(out, 0);  // disk
    append_number<std::uint32_t>(out, 0);
    append_number(out, count);
    append_number(out, count);
    append_number(out, list_bytes);
    append_number(out, end_);
    append_number(out, kZip64Locator);
    append_number<std::uint32_t>(out, 0);
    append_number(out, end);
    append_number<std::uint32_t>(out, 1);
  }
  append_number(out, kZipEnd);
  append_number<std::uint16_t>(out, 0);
  append_number<std::uint16_t>(out, 0);
  append_number(out, static_cast<std::uint16_t>(std::min(count, kZip16Limit)));
  append_number(out, static_cast<std::uint16_t>(std::min(count, kZip16Limit)));
  append_number(out, small_or_limit(list_bytes));
  append_number(out, small_or_limit(end_));
  append_number<std::uint16_t>(out, 0);
  return out;
}

}  // namespace slackwater::formats
