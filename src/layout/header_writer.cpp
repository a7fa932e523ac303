#include "layout/header_writer.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "layout/json_text.hpp"
#include "tensor/dtype.hpp"

namespace slackwater {
namespace {

constexpr std::size_t kFrameBytes = 128;  // upper bound for the braces, keys and quotes that finish() adds

void append_member(std::string& out, std::string_view key, std::uint64_t number) {
  out.append(",\"").append(key).append("\":\"");
  append_decimal(out, number);
  out += '"';
}

// Appends `,"key":"{...}"` without the comma after the last member of `escaped`.
void append_nested(std::string& out, std::string_view key, std::string_view escaped) {
  if (escaped.empty()) return;
  out.append(",\"").append(key).append("\":\"{").append(escaped.substr(0, escaped.size() - 1)).append("}\"");
}

}  // namespace

std::string entry_name(std::string_view tensor, BoxView box, std::span<const std::int64_t> global_shape) {
  std::string name(tensor);
  if (!std::ranges::equal(box.shape, global_shape)) name += to_string(box);
  return name;
}

HeaderWriter::HeaderWriter(const FileIdentity& identity) {
  fixed_.append("\"format\":\"pt\",\"").append(kKeyFormat).append("\":\"").append(kHeaderFormat).append("\"");
  append_member(fixed_, kKeyStep, identity.step);
  append_member(fixed_, kKeyAttempt, identity.attempt);
  append_member(fixed_, kKeyRank, identity.rank);
  append_member(fixed_, kKeyWorld, identity.world);
}

void HeaderWriter::set_tree(std::string_view tree) {
  if (tree.empty()) return;
  fixed_.append(",\"").append(kKeyTree).append("\":");
  append_json_string(fixed_, tree);
}

void HeaderWriter::set_metadata(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) append_pair(text, key, value);
  append_nested(fixed_, kKeyMetadata, text);
}

void HeaderWriter::add_tensor(std::string_view name, DType dtype, std::span<const std::int64_t> shape,
                              std::uint64_t begin, std::uint64_t end) {
  const StoredDType stored = stored_dtype(dtype);
  tensors_ += ',';
  append_json_string(tensors_, name);
  tensors_.append(":{\"dtype\":\"").append(safetensors_name(stored.dtype)).append("\",\"shape\":");
  append_dimensions(tensors_, shape);
  if (stored.as_pair) {
    tensors_.pop_back();
    tensors_.append(shape.empty() ? "2]" : ",2]");
    append_pair(dtypes_, name, dtype_name(dtype));
  }
  tensors_.append(",\"data_offsets\":[");
  append_decimal(tensors_, begin);
  tensors_ += ',';
  append_decimal(tensors_, end);
  tensors_.append("]}");
}

void HeaderWriter::add_alias(std::string_view alias, std::string_view stored) { append_pair(aliases_, alias, stored); }

void HeaderWriter::add_shard(std::string_view entry, std::string_view tensor, const Shard& shard) {
  scratch_.clear();
  append_json_string(scratch_, entry);
  scratch_.append(":{\"of\":");
  append_json_string(scratch_, tensor);
  scratch_.append(",\"shape\":");
  append_dimensions(scratch_, shard.global_shape);
  scratch_.append(",\"offset\":");
  append_dimensions(scratch_, shard.offset);
  scratch_.append("},");
  append_json_escaped(shards_, scratch_);
}

// Appends a member to JSON text that is itself the value of a JSON string.
void HeaderWriter::append_pair(std::string& text, std::string_view key, std::string_view value) {
  scratch_.clear();
  append_json_string(scratch_, key);
  scratch_ += ':';
  append_json_string(scratch_, value);
  scratch_ += ',';
  append_json_escaped(text, scratch_);
}

std::uint64_t HeaderWriter::json_bytes() const {
  return fixed_.size() + aliases_.size() + dtypes_.size() + shards_.size() + tensors_.size() + kFrameBytes;
}

void HeaderWriter::roll_back(const Mark& mark) {
  tensors_.resize(mark.tensors);
  aliases_.resize(mark.aliases);
  dtypes_.resize(mark.dtypes);
  shards_.resize(mark.shards);
}

std::string HeaderWriter::finish() {
  std::string front(sizeof(std::uint64_t), '\0');
  front.append("{\"__metadata__\":{").append(fixed_);
  append_nested(front, kKeyAliases, aliases_);
  append_nested(front, kKeyDtypes, dtypes_);
  append_nested(front, kKeyShards, shards_);
  front += '}';

  const std::uint64_t total = round_up(front.size() + tensors_.size() + 1, kDataAlignment);
  const std::uint64_t length = total - sizeof(std::uint64_t);
  for (std::size_t i = 0; i < sizeof(std::uint64_t); ++i) front[i] = static_cast<char>((length >> (8 * i)) & 0xff);

  tensors_.reserve(total);
  tensors_.insert(0, front);
  tensors_ += '}';
  tensors_.resize(total, ' ');
  return std::move(tensors_);
}

}  // namespace slackwater
