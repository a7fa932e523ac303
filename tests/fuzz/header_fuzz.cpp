// The safetensors header. Input: "<bytes of data>\n<JSON>", so that the fuzzer can make offsets and data agree; and the
// same bytes as the start of a file.
#include <charconv>
#include <map>
#include <string>

#include "fuzz.hpp"
#include "layout/header_writer.hpp"
#include "layout/safetensors_header.hpp"
#include "tensor/shape.hpp"

namespace slackwater::fuzz {
namespace {

std::string entry_of(const TensorInfo& tensor) {
  if (tensor.boxes.empty()) return tensor.name;
  return entry_name(tensor.name, {tensor.boxes[0].offset, tensor.boxes[0].shape}, tensor.shape);
}

std::string stored_entry_of(TensorInfo alias) {
  alias.name = alias.alias_of;
  return entry_of(alias);
}

void check_box(const TensorInfo& tensor) {
  if (tensor.boxes.empty()) {
    require(packed_bytes(tensor.dtype, tensor.shape) == tensor.size_bytes, "the size is that of shape and dtype");
    return;
  }
  require(tensor.boxes.size() == 1, "an entry is one box");
  const StoredBox& box = tensor.boxes[0];
  require(fits({box.offset, box.shape}, tensor.shape), "a box lies in its tensor");
  require(packed_bytes(tensor.dtype, box.shape) == tensor.size_bytes && box.size_bytes == tensor.size_bytes,
          "the size is that of the box");
  require(box.file_offset == tensor.offset, "a box lies where its entry does");
  require(packed_bytes(tensor.dtype, tensor.shape).has_value(), "the whole has a size");
}

void check_tensors(const ParsedHeader& header, std::uint64_t file_size) {
  std::uint64_t stored_bytes = 0;
  std::map<std::string, const TensorInfo*> by_name;  // of an entry
  for (const TensorInfo& tensor : header.tensors) {
    require(by_name.emplace(entry_of(tensor), &tensor).second, "entries are unique");
    require(tensor.offset >= header.data_offset && tensor.offset <= file_size, "a tensor begins in the data");
    require(tensor.size_bytes <= file_size - tensor.offset, "a tensor ends in the file");
    check_box(tensor);
    if (tensor.alias_of.empty()) stored_bytes += tensor.size_bytes;
  }
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.alias_of.empty()) continue;
    const auto stored = by_name.find(stored_entry_of(tensor));
    require(stored != by_name.end() && stored->second->alias_of.empty(), "an alias leads to a stored tensor");
    require(stored->second->offset == tensor.offset && stored->second->shape == tensor.shape, "an alias is the same");
  }
  require(stored_bytes == file_size - header.data_offset, "the tensors cover the data");
}

void check_round_trip(const ParsedHeader& header, std::uint64_t data_bytes) {
  HeaderWriter writer(header.identity);
  writer.set_tree(header.tree);
  writer.set_metadata(header.metadata);
  for (const TensorInfo& tensor : header.tensors) {
    const std::uint64_t begin = tensor.offset - header.data_offset;
    const std::string entry = entry_of(tensor);
    if (tensor.alias_of.empty())
      writer.add_tensor(entry, tensor.dtype, tensor.boxes.empty() ? tensor.shape : tensor.boxes[0].shape, begin,
                        begin + tensor.size_bytes);
    else
      writer.add_alias(entry, stored_entry_of(tensor));
    if (!tensor.boxes.empty())
      writer.add_shard(entry, tensor.name, {.global_shape = tensor.shape, .offset = tensor.boxes[0].offset});
  }
  const std::string text = writer.finish();
  const auto again = parse_header(std::string_view(text).substr(8), text.size() + data_bytes, "again");
  require(again.has_value(), "what was written can be read");
  require(again->tree == header.tree && again->metadata == header.metadata, "tree and metadata survive");
  require(again->identity.step == header.identity.step && again->identity.rank == header.identity.rank,
          "the identity survives");
  require(again->tensors.size() == header.tensors.size(), "every tensor survives");
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorInfo& a = header.tensors[i];
    const TensorInfo& b = again->tensors[i];
    require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.alias_of == b.alias_of &&
                a.offset - header.data_offset == b.offset - again->data_offset && a.size_bytes == b.size_bytes &&
                entry_of(a) == entry_of(b),
            "a tensor survives");
  }
}

void parse(std::string_view json, std::uint64_t file_size) {
  const auto header = parse_header(json, file_size, "file");
  if (!header) return require_refusal(header.error());
  require(header->data_offset == 8 + json.size(), "data begins behind the header");
  check_tensors(*header, file_size);
  if (header->has_identity) check_round_trip(*header, file_size - header->data_offset);
}

}  // namespace
}  // namespace slackwater::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater;
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto length = header_bytes(text.substr(0, 8), size, "file")) {
    fuzz::require(*length >= 2 && *length <= size - 8, "the header ends in the file");
    fuzz::parse(text.substr(8, *length), size);
  }
  std::uint64_t data_bytes = 0;
  const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), data_bytes);
  if (trouble != std::errc() || end == text.data() + text.size() || *end != '\n') return 0;
  const std::string_view json = text.substr(static_cast<std::size_t>(end + 1 - text.data()));
  if (data_bytes <= UINT64_MAX - 8 - json.size()) fuzz::parse(json, 8 + json.size() + data_bytes);
  return 0;
}
