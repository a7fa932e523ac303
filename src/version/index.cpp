#include "version/index.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/json.hpp"
#include "base/result.hpp"
#include "layout/json_reader.hpp"
#include "layout/json_text.hpp"
#include "layout/name_table.hpp"
#include "tensor/box.hpp"
#include "tensor/shape.hpp"
#include "version/fields.hpp"
#include "version/names.hpp"

namespace slackwater {
namespace {

constexpr std::uint32_t kIndexFormat = 1;
constexpr std::size_t kUsualEntryBytes = 96;  // without the name and all shards but the first
constexpr std::size_t kUsualShardBytes = 48;
// Each shard gets a copy of its tensor's shape and of its file name: a few bytes of text must not become megabytes.
constexpr std::size_t kMaxShardDimensions = 20'000'000;  // of all shards together

// Fields of a tensor in the order they are written: shape and dtype are known before the shards are read.
constexpr std::array<std::string_view, 5> kFields{"name", "dtype", "shape", "alias_of", "shards"};

bool is_whole(const IndexEntry& entry, const IndexShard& shard) {
  return shard.box_shape == entry.shape &&
         std::ranges::all_of(shard.box_offset, [](std::int64_t at) { return at == 0; });
}

// [file, offset, size], and for a part of the tensor its box as well: [file, offset, size, [box offset], [box shape]].
void append_shard(std::string& text, const IndexEntry& entry, const IndexShard& shard, std::size_t file) {
  text += '[';
  append_decimal(text, file);
  text += ',';
  append_decimal(text, shard.offset);
  text += ',';
  append_decimal(text, shard.size_bytes);
  if (!is_whole(entry, shard)) {
    text += ',';
    append_dimensions(text, shard.box_offset);
    text += ',';
    append_dimensions(text, shard.box_shape);
  }
  text += ']';
}

class IndexParser {
 public:
  IndexParser(std::string_view text, const std::string& path) : reader_(text), path_(path) {}

  Result<std::vector<IndexEntry>> parse() {
    std::string key, digest;
    std::uint64_t format = 0;
    reader_.begin_object();
    // `format` comes first, so that a field that a newer format added is not taken for damage.
    if (!reader_.next_key(key) || key != "format" || !reader_.read_u64(format))
      return wrong("it does not begin with its format");
    if (format != kIndexFormat) return fail(unknown_format(format, kIndexFormat, "index", path_));
    while (reader_.next_key(key)) {
      if (key == "files") {
        SW_TRY(read_files());
      } else if (key == "tensors") {
        SW_TRY(read_tensors());
      } else if (key == "digest") {
        reader_.read_string(digest);  // open_sealed_text() has checked it
      } else {
        return wrong(fmt::format("it has an unknown field '{}'", key));
      }
    }
    if (!reader_.finish()) return wrong(reader_.trouble());
    SW_TRY(check_names());
    return std::move(entries_);
  }

 private:
  std::unexpected<Error> wrong(std::string_view what) const {
    return corrupt(fmt::format("the index is damaged: {}", what), path_);
  }

  Status read_files() {
    if (!files_.empty() || !entries_.empty()) return wrong("its files are not listed exactly once and first");
    reader_.begin_array();
    while (reader_.next_item()) {
      if (!reader_.read_string(files_.emplace_back())) break;
      if (!stays_in_version(files_.back()))
        return wrong(fmt::format("the file name '{}' leaves the directory of its version", files_.back()));
    }
    return reader_.failed() ? Status(wrong(reader_.trouble())) : Status();
  }

  Status read_tensors() {
    if (!entries_.empty()) return wrong("it has the field 'tensors' twice");
    reader_.begin_array();
    while (reader_.next_item()) SW_TRY(read_entry());
    return reader_.failed() ? Status(wrong(reader_.trouble())) : Status();
  }

  Status read_entry() {
    IndexEntry& entry = entries_.emplace_back();
    std::string key, text;
    std::size_t last = 0;  // position of the previous field in kFields
    reader_.begin_object();
    while (reader_.next_key(key)) {
      const auto field = std::ranges::find(kFields, key);
      const auto place = static_cast<std::size_t>(field - kFields.begin()) + 1;
      if (field == kFields.end()) return wrong(fmt::format("tensor '{}' has an unknown field '{}'", entry.name, key));
      if (place <= std::exchange(last, place))
        return wrong(fmt::format("tensor '{}' has the field '{}' twice or in the wrong place", entry.name, key));
      if (key == "name") {
        reader_.read_string(entry.name);
      } else if (key == "dtype") {
        if (!reader_.read_string(text)) break;
        const Result<DType> dtype = dtype_from_name(text);
        if (!dtype) return fail(dtype.error().kind, dtype.error().message, path_);
        entry.dtype = *dtype;
      } else if (key == "shape") {
        reader_.read_dimensions(entry.shape);
      } else if (key == "alias_of") {
        reader_.read_string(entry.alias_of);
      } else {
        reader_.begin_array();
        while (reader_.next_item()) SW_TRY(read_shard(entry));
      }
    }
    if (reader_.failed()) return wrong(reader_.trouble());
    const bool nothing_to_store = volume(entry.shape) == 0;
    if (entry.alias_of.empty() ? entry.shards.empty() && !nothing_to_store : !entry.shards.empty()) {
      return wrong(fmt::format("tensor '{}' is neither stored nor tied, or both", entry.name));
    }
    return {};
  }

  Status read_shard(IndexEntry& entry) {
    IndexShard& shard = entry.shards.emplace_back();
    std::uint64_t file = 0;
    reader_.begin_array();
    const bool placed = reader_.next_item() && reader_.read_u64(file) && reader_.next_item() &&
                        reader_.read_u64(shard.offset) && reader_.next_item() && reader_.read_u64(shard.size_bytes);
    if (!placed) return wrong(fmt::format("tensor '{}' has a shard without a position", entry.name));
    dimensions_ += entry.shape.size();
    if (++shards_ > kMaxShards || dimensions_ > kMaxShardDimensions)
      return wrong(fmt::format("it has more than {} shards, or more than {} dimensions of them", kMaxShards,
                               kMaxShardDimensions));
    shard.box_offset.assign(entry.shape.size(), 0);
    shard.box_shape = entry.shape;
    if (reader_.next_item()) {
      const bool boxed = reader_.read_dimensions(shard.box_offset) && reader_.next_item() &&
                         reader_.read_dimensions(shard.box_shape) && !reader_.next_item() && !reader_.failed();
      if (!boxed) return wrong(fmt::format("tensor '{}' has a shard with a wrong box", entry.name));
    }
    if (reader_.failed()) return wrong(reader_.trouble());
    if (file >= files_.size()) return wrong(fmt::format("tensor '{}' is in a file that is not listed", entry.name));
    shard.file = files_[file];
    return check_box(entry, shard);
  }

  Status check_box(const IndexEntry& entry, const IndexShard& shard) const {
    std::uint64_t end = 0;
    if (!fits({shard.box_offset, shard.box_shape}, entry.shape) ||
        packed_bytes(entry.dtype, shard.box_shape) != shard.size_bytes ||
        __builtin_add_overflow(shard.offset, shard.size_bytes, &end)) {
      return wrong(fmt::format("tensor '{}' has a shard whose box and size do not fit its shape", entry.name));
    }
    return {};
  }

  Status check_names() const {
    NameTable names(entries_.size(), [this](std::uint32_t index) -> std::string_view { return entries_[index].name; });
    for (std::uint32_t i = 0; i < entries_.size(); ++i) {
      if (names.insert(i)) return wrong(fmt::format("it has the tensor '{}' twice", entries_[i].name));
    }
    for (const IndexEntry& entry : entries_) {
      if (entry.alias_of.empty()) continue;
      const auto stored = names.find(entry.alias_of);
      if (!stored || !entries_[*stored].alias_of.empty()) {
        return wrong(fmt::format("tensor '{}' is tied to '{}', which is not stored", entry.name, entry.alias_of));
      }
    }
    return {};
  }

  JsonReader reader_;
  const std::string& path_;
  std::vector<std::string> files_;
  std::vector<IndexEntry> entries_;
  std::size_t shards_ = 0;
  std::size_t dimensions_ = 0;  // of all shards
};

}  // namespace

std::string serialize_index(const std::vector<IndexEntry>& entries) {
  std::map<std::string_view, std::size_t> files;  // few: a rank has one, rarely more
  std::size_t usual_bytes = 4096;
  for (const IndexEntry& entry : entries) {
    usual_bytes += entry.name.size() + kUsualEntryBytes + entry.shards.size() * kUsualShardBytes;
    for (const IndexShard& shard : entry.shards) files.try_emplace(shard.file);
  }
  std::string text;
  text.reserve(usual_bytes);
  text.append("{\"format\":");
  append_decimal(text, kIndexFormat);
  text.append(",\"files\":[");
  std::size_t file_count = 0;
  for (auto& [name, number] : files) {
    number = file_count++;
    if (number > 0) text += ',';
    append_json_string(text, name);
  }
  text.append("],\"tensors\":[");
  for (const IndexEntry& entry : entries) {
    if (&entry != &entries.front()) text += ',';
    text.append("\n{\"name\":");
    append_json_string(text, entry.name);
    text.append(",\"dtype\":\"").append(dtype_name(entry.dtype)).append("\",\"shape\":");
    append_dimensions(text, entry.shape);
    if (!entry.alias_of.empty()) {
      text.append(",\"alias_of\":");
      append_json_string(text, entry.alias_of);
    } else {
      text.append(",\"shards\":[");
      for (const IndexShard& shard : entry.shards) {
        if (&shard != &entry.shards.front()) text += ',';
        append_shard(text, entry, shard, files.at(shard.file));
      }
      text += ']';
    }
    text += '}';
  }
  text += ']';
  return seal_json_text(std::move(text));
}

Result<std::vector<IndexEntry>> parse_index(std::string_view text, const std::string& path) {
  SW_TRY(open_sealed_text(text, path));
  return IndexParser(text, path).parse();
}

}  // namespace slackwater
