#include "layout/safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "layout/header_writer.hpp"
#include "layout/json_reader.hpp"
#include "layout/name_table.hpp"
#include "tensor/box.hpp"
#include "tensor/dtype.hpp"
#include "tensor/shape.hpp"

namespace slackwater {
namespace {

using Texts = std::map<std::string, std::string>;

constexpr std::uint64_t kMaxTiedDimensions = 20'000'000;  // of all aliases together

// One member of the metadata "shards".
struct ShardText {
  std::string entry;
  std::string of;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> offset;
};

// Parses one header. Call the public functions in the order in which they stand here.
class HeaderParser {
 public:
  HeaderParser(std::uint64_t data_bytes, const std::string& path) : data_bytes_(data_bytes), path_(path) {}

  Status read_json(std::string_view json) {
    JsonReader reader(json);
    bool seen_metadata = false;
    std::string key;
    reader.begin_object();
    while (reader.next_key(key)) {
      if (key == "__metadata__") {
        if (std::exchange(seen_metadata, true)) return corrupt("it has the key '__metadata__' twice");
        if (!read_texts(reader, texts_)) return corrupt("{}", reader.trouble());
      } else {
        SW_TRY(read_tensor(reader, std::move(key)));
      }
    }
    if (!reader.finish()) return corrupt("{}", reader.trouble());
    return {};
  }

  // Checks offsets and sizes, once all tensors are known.
  Status check_tensors() {
    SW_TRY(check_offsets());
    for (const TensorInfo& tensor : tensors_) {
      if (packed_bytes(tensor.dtype, tensor.shape) != tensor.size_bytes) {
        return corrupt("it gives tensor '{}' {} bytes, which is not its shape [{}] of {}", tensor.name,
                       tensor.size_bytes, fmt::join(tensor.shape, ", "), dtype_name(tensor.dtype));
      }
    }
    return {};
  }

  // Reads __metadata__: identity, logical dtypes, aliases, boxes.
  Result<ParsedHeader> interpret() {
    ParsedHeader header;
    Texts aliases, dtypes;
    std::vector<ShardText> shards;
    if (const auto format = texts_.find(std::string(kKeyFormat)); format != texts_.end()) {
      if (format->second != kHeaderFormat) {
        return fail(
            ErrorKind::kUnsupported,
            fmt::format(
                "the file has Slackwater header format '{}', but this build knows only '{}'; use a newer Slackwater",
                format->second, kHeaderFormat),
            path_);
      }
      header.has_identity = true;
      SW_ASSIGN(header.identity, read_identity());
      header.tree = std::move(texts_[std::string(kKeyTree)]);
      SW_ASSIGN(header.metadata, nested_texts(kKeyMetadata));
      SW_ASSIGN(dtypes, nested_texts(kKeyDtypes));
      SW_ASSIGN(shards, nested_shards());
      SW_ASSIGN(aliases, nested_texts(kKeyAliases));
    } else {
      header.metadata = std::move(texts_);
    }
    SW_TRY(resolve_names(dtypes, aliases, shards));
    if (!shards.empty()) SW_TRY(check_global_names());
    header.tensors = std::move(tensors_);
    return header;
  }

 private:
  template <class... Args>
  std::unexpected<Error> corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    return fail(ErrorKind::kCorrupt, fmt::format("the safetensors header is damaged: {}", what), path_);
  }

  std::unexpected<Error> unknown_dtype(std::string_view tensor, std::string_view dtype) const {
    return fail(ErrorKind::kUnsupported,
                fmt::format("tensor '{}' has the dtype '{}', which this build does not know", tensor, dtype), path_);
  }

  // Reads an object of strings. Refuses duplicate keys.
  static bool read_texts(JsonReader& reader, Texts& texts) {
    std::string key;
    reader.begin_object();
    while (reader.next_key(key)) {
      std::string value;
      if (!reader.read_string(value)) return false;
      const auto [member, inserted] = texts.try_emplace(std::move(key), std::move(value));
      if (!inserted) return reader.refuse(fmt::format("it has the metadata key '{}' twice", member->first));
    }
    return !reader.failed();
  }

  Status read_tensor(JsonReader& reader, std::string name) {
    TensorInfo& tensor = tensors_.emplace_back();
    tensor.name = std::move(name);
    bool seen_dtype = false, seen_shape = false, seen_offsets = false;
    const auto seen_before = [](bool& seen) { return std::exchange(seen, true); };
    std::string& key = scratch_;
    reader.begin_object();
    while (reader.next_key(key)) {
      bool again = false;
      if (key == "dtype") {
        again = seen_before(seen_dtype);
        if (!reader.read_string(key)) break;
        const std::optional<DType> dtype = dtype_from_safetensors(key);
        if (!dtype) return unknown_dtype(tensor.name, key);
        tensor.dtype = *dtype;
      } else if (key == "shape") {
        again = seen_before(seen_shape);
        reader.read_dimensions(tensor.shape);
      } else if (key == "data_offsets") {
        again = seen_before(seen_offsets);
        SW_TRY(read_offsets(reader, tensor));
      } else {
        reader.refuse(fmt::format("it has an unknown field '{}' in tensor '{}'", key, tensor.name));
      }
      if (again) reader.refuse(fmt::format("it has a field of tensor '{}' twice", tensor.name));
    }
    if (reader.failed()) return corrupt("{}", reader.trouble());
    if (!seen_dtype || !seen_shape || !seen_offsets) {
      return corrupt("it lacks dtype, shape or data_offsets of tensor '{}'", tensor.name);
    }
    return {};
  }

  Status read_offsets(JsonReader& reader, TensorInfo& tensor) {
    std::uint64_t begin = 0, end = 0;
    reader.begin_array();
    const bool two = reader.next_item() && reader.read_u64(begin) && reader.next_item() && reader.read_u64(end) &&
                     !reader.next_item();
    if (reader.failed() || !two) return corrupt("it has no pair of offsets for tensor '{}'", tensor.name);
    if (begin > end || end > data_bytes_) {
      return corrupt("it places tensor '{}' at bytes {} to {} of {} bytes of data", tensor.name, begin, end,
                     data_bytes_);
    }
    tensor.offset = begin;
    tensor.size_bytes = end - begin;
    return {};
  }

  // Tensors must fill the data from its first byte to its last, without holes or overlaps.
  Status check_offsets() const {
    const auto before = [this](std::uint32_t a, std::uint32_t b) {
      return std::pair(tensors_[a].offset, tensors_[a].size_bytes) <
             std::pair(tensors_[b].offset, tensors_[b].size_bytes);
    };
    std::vector<std::uint32_t> order(tensors_.size());
    std::iota(order.begin(), order.end(), 0u);
    if (!std::ranges::is_sorted(order, before)) std::ranges::sort(order, before);
    std::uint64_t expected = 0;
    for (const std::uint32_t index : order) {
      const TensorInfo& tensor = tensors_[index];
      if (tensor.offset != expected) {
        return corrupt("it {} tensor '{}' at byte {} of the data",
                       tensor.offset < expected ? "has an overlap with" : "leaves a hole before", tensor.name,
                       tensor.offset);
      }
      expected += tensor.size_bytes;
    }
    if (expected != data_bytes_) {
      return corrupt("it describes {} bytes of data, the file has {}", expected, data_bytes_);
    }
    return {};
  }

  template <class Number>
  Status read_number(std::string_view key, Number& number) const {
    const auto text = texts_.find(std::string(key));
    if (text != texts_.end()) {
      const char* end = text->second.data() + text->second.size();
      const auto [stop, error] = std::from_chars(text->second.data(), end, number);
      if (error == std::errc() && stop == end && !text->second.empty()) return {};
    }
    return corrupt("it lacks the metadata '{}', or it is not a whole number", key);
  }

  Result<FileIdentity> read_identity() const {
    FileIdentity identity;
    SW_TRY(read_number(kKeyStep, identity.step));
    SW_TRY(read_number(kKeyAttempt, identity.attempt));
    SW_TRY(read_number(kKeyRank, identity.rank));
    SW_TRY(read_number(kKeyWorld, identity.world));
    if (identity.rank >= identity.world)
      return corrupt("it has rank {} of a world of {}", identity.rank, identity.world);
    return identity;
  }

  Result<Texts> nested_texts(std::string_view key) const {
    Texts texts;
    const auto text = texts_.find(std::string(key));
    if (text == texts_.end()) return texts;
    JsonReader reader(text->second);
    if (!read_texts(reader, texts) || !reader.finish())
      return corrupt("it has wrong metadata '{}': {}", key, reader.trouble());
    return texts;
  }

  Result<std::vector<ShardText>> nested_shards() const {
    std::vector<ShardText> shards;
    const auto text = texts_.find(std::string(kKeyShards));
    if (text == texts_.end()) return shards;
    JsonReader reader(text->second);
    std::string entry, key;
    reader.begin_object();
    while (reader.next_key(entry)) {
      ShardText& shard = shards.emplace_back();
      shard.entry = std::move(entry);
      constexpr std::array<std::string_view, 3> kFields{"of", "shape", "offset"};
      std::size_t field = 0;  // written and read in this order
      reader.begin_object();
      while (reader.next_key(key)) {
        if (field >= kFields.size() || key != kFields[field]) {
          reader.refuse(fmt::format("'{}' has the field '{}' twice or out of place", shard.entry, key));
        } else if (field == 0) {
          reader.read_string(shard.of);
        } else {
          reader.read_dimensions(field == 1 ? shard.shape : shard.offset);
        }
        ++field;
      }
      if (field < kFields.size()) reader.refuse(fmt::format("'{}' lacks of, shape or offset", shard.entry));
    }
    if (!reader.finish()) return corrupt("it has wrong metadata '{}': {}", kKeyShards, reader.trouble());
    return shards;
  }

  // Names must be unique. Dtypes, aliases and boxes must refer to tensors that exist.
  Status resolve_names(const Texts& dtypes, const Texts& aliases, std::vector<ShardText>& shards) {
    const std::size_t stored_count = tensors_.size();
    NameTable names(stored_count + aliases.size(),
                    [this](std::uint32_t index) -> std::string_view { return tensors_[index].name; });
    for (std::uint32_t i = 0; i < stored_count; ++i) {
      if (names.insert(i)) return corrupt("it has the tensor '{}' twice", tensors_[i].name);
    }
    for (const auto& [name, dtype] : dtypes) {
      const auto index = names.find(name);
      if (!index) return corrupt("it gives a dtype to '{}', which it does not hold", name);
      SW_TRY(restore_dtype(tensors_[*index], dtype));
    }
    tensors_.reserve(stored_count + aliases.size());
    std::vector<std::uint32_t> stored_of;  // for each alias, the tensor it is tied to
    std::uint64_t dimensions = 0;
    for (const auto& [alias, stored] : aliases) {
      const auto index = names.find(stored);
      if (!index || *index >= stored_count)
        return corrupt("it ties '{}' to '{}', which it does not hold", alias, stored);
      // Each tied tensor gets a copy of the shape. A few bytes of text must not become megabytes.
      dimensions += tensors_[*index].shape.size();
      if (dimensions > kMaxTiedDimensions) {
        return corrupt("its tied tensors have more than {} dimensions in all", kMaxTiedDimensions);
      }
      TensorInfo& tensor = tensors_.emplace_back(tensors_[*index]);
      tensor.name = alias;
      tensor.alias_of = stored;
      stored_of.push_back(*index);
      if (names.insert(static_cast<std::uint32_t>(tensors_.size() - 1))) {
        return corrupt("it has the tensor '{}' twice", tensor.name);
      }
    }
    std::vector<std::uint32_t> places;
    for (const ShardText& shard : shards) {
      const auto index = names.find(shard.entry);
      if (!index) return corrupt("it has a box '{}' that it does not hold", shard.entry);
      SW_TRY(place_box(tensors_[*index], shard));
      places.push_back(*index);
    }
    for (std::size_t i = 0; i < stored_of.size(); ++i) {
      const TensorInfo& alias = tensors_[stored_count + i];
      const TensorInfo& stored = tensors_[stored_of[i]];
      const bool same =
          alias.boxes.size() == stored.boxes.size() &&
          (alias.boxes.empty() || (alias.shape == stored.shape && alias.boxes[0].offset == stored.boxes[0].offset));
      if (!same) return corrupt("it ties '{}' to '{}', which lies elsewhere", alias.name, alias.alias_of);
    }
    // Change names last, because the table finds tensors by name.
    for (std::size_t i = 0; i < shards.size(); ++i) tensors_[places[i]].name = std::move(shards[i].of);
    for (std::size_t i = 0; i < stored_of.size(); ++i) {
      tensors_[stored_count + i].alias_of = tensors_[stored_of[i]].name;
    }
    return {};
  }

  // Turns the tensor into the box of a global tensor.
  Status place_box(TensorInfo& tensor, const ShardText& shard) const {
    const bool named = !shard.of.empty() && shard.of != kTreeTensorName && shard.of != "__metadata__";
    if (!named || !tensor.boxes.empty()) return corrupt("it has the box '{}' twice, or of no tensor", shard.entry);
    const BoxView box{shard.offset, tensor.shape};
    if (!fits(box, shard.shape) || !packed_bytes(tensor.dtype, shard.shape) || tensor.size_bytes == 0 ||
        shard.entry != entry_name(shard.of, box, shard.shape)) {
      return corrupt("it has the box '{}' of shape [{}] at [{}] of the tensor '{}' of shape [{}]", shard.entry,
                     fmt::join(tensor.shape, ", "), fmt::join(shard.offset, ", "), shard.of,
                     fmt::join(shard.shape, ", "));
    }
    tensor.boxes.push_back({.offset = shard.offset,
                            .shape = std::exchange(tensor.shape, shard.shape),
                            .file = 0,
                            .file_offset = tensor.offset,
                            .size_bytes = tensor.size_bytes});
    return {};
  }

  // Tensors with the same name must be boxes of the same global tensor.
  Status check_global_names() const {
    NameTable names(tensors_.size(), [this](std::uint32_t index) -> std::string_view { return tensors_[index].name; });
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      const auto first = names.insert(i);
      if (!first) continue;
      const TensorInfo& a = tensors_[*first];
      const TensorInfo& b = tensors_[i];
      if (a.boxes.empty() || b.boxes.empty() || a.dtype != b.dtype || a.shape != b.shape || a.alias_of != b.alias_of)
        return corrupt("it has boxes of the tensor '{}' that disagree about it", a.name);
    }
    return {};
  }

  Status restore_dtype(TensorInfo& tensor, std::string_view name) const {
    const Result<DType> logical = dtype_from_name(name);
    if (!logical) return unknown_dtype(tensor.name, name);
    const StoredDType stored = stored_dtype(*logical);
    if (!stored.as_pair || stored.dtype != tensor.dtype || tensor.shape.empty() || tensor.shape.back() != 2) {
      return corrupt("it says that tensor '{}' is {}, but does not store it as such", tensor.name, name);
    }
    tensor.dtype = *logical;
    tensor.shape.pop_back();
    return {};
  }

  const std::uint64_t data_bytes_;
  const std::string& path_;
  Texts texts_;                      // __metadata__
  std::vector<TensorInfo> tensors_;  // offsets from the start of the data
  std::string scratch_;
};

}  // namespace

Result<std::uint64_t> header_bytes(std::string_view length_word, std::uint64_t file_size, const std::string& path) {
  if (length_word.size() != sizeof(std::uint64_t) || file_size < sizeof(std::uint64_t) + 2) {
    return fail(ErrorKind::kCorrupt, fmt::format("the file has {} bytes, too few for a safetensors file", file_size),
                path);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < sizeof(std::uint64_t); ++i) {
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(length_word[i])) << (8 * i);
  }
  const std::uint64_t most = std::min(kMaxHeaderBytes, file_size - sizeof(std::uint64_t));
  if (length < 2 || length > most) {
    return fail(ErrorKind::kCorrupt,
                fmt::format("the file claims a header of {} bytes, but 2 to {} are possible: it is cut short or not a "
                            "safetensors file",
                            length, most),
                path);
  }
  return length;
}

Result<ParsedHeader> parse_header(std::string_view json, std::uint64_t file_size, const std::string& path) {
  const std::uint64_t data_offset = sizeof(std::uint64_t) + json.size();
  if (file_size < data_offset) {
    return fail(ErrorKind::kCorrupt,
                fmt::format("the file has {} bytes, but its header alone takes {}", file_size, data_offset), path);
  }
  HeaderParser parser(file_size - data_offset, path);
  SW_TRY(parser.read_json(json));
  SW_TRY(parser.check_tensors());
  SW_ASSIGN(ParsedHeader header, parser.interpret());
  header.data_offset = data_offset;
  for (TensorInfo& tensor : header.tensors) {
    tensor.offset += data_offset;
    for (StoredBox& box : tensor.boxes) box.file_offset += data_offset;
  }
  return header;
}

}  // namespace slackwater
