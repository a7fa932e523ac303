#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/result.hpp"
#include "base/units.hpp"
#include "formats/export.hpp"
#include "formats/export_stage.hpp"
#include "layout/file_layout.hpp"
#include "layout/json_text.hpp"
#include "tensor/dtype.hpp"

namespace slackwater::formats {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kWeightsIndex = "model.safetensors.index.json";
constexpr std::uint64_t kHeaderAlignment = 8;

struct HfShard {
  std::string file;
  std::vector<ExportItem> items;
  std::uint64_t size_bytes = 0;  // of the tensors
};

// As transformers does: tensors in order of their names, a new file when the next tensor does not fit.
std::vector<HfShard> make_shards(std::vector<ExportItem> items, std::uint64_t most_bytes) {
  std::vector<HfShard> shards;
  for (ExportItem& item : items) {
    const std::uint64_t bytes = item.source.size_bytes();
    if (shards.empty() || (shards.back().size_bytes > 0 && shards.back().size_bytes + bytes > most_bytes))
      shards.emplace_back();
    shards.back().size_bytes += bytes;
    shards.back().items.push_back(std::move(item));
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file =
        shards.size() == 1 ? kWeightsFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    // Larger elements first, so that every tensor is aligned.
    std::ranges::stable_sort(shards[i].items, std::greater(),
                             [](const ExportItem& item) { return item_bytes(item.source.to); });
  }
  return shards;
}

Result<std::string> shard_header(const HfShard& shard) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t offset = 0;
  for (const ExportItem& item : shard.items) {
    const std::string_view dtype = safetensors_name(item.source.to);
    if (dtype.empty()) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("tensor '{}' is {}, which safetensors does not have; leave it out with --exclude, or use "
                              "--torch",
                              item.name, dtype_name(item.source.to)));
    }
    json += ',';
    append_json_string(json, item.name);
    json += fmt::format(R"(:{{"dtype":"{}","shape":)", dtype);
    append_dimensions(json, item.source.shape);
    json += fmt::format(R"(,"data_offsets":[{},{}]}})", offset, offset + item.source.size_bytes());
    offset += item.source.size_bytes();
  }
  json += '}';
  json.append(round_up(json.size(), kHeaderAlignment) - json.size(), ' ');
  if (json.size() > kMaxHeaderBytes)
    return fail(ErrorKind::kUnsupported, "the header of one file would be too large; use a smaller --shard-size");
  std::string header(sizeof(std::uint64_t), '\0');
  const std::uint64_t size = json.size();
  std::memcpy(header.data(), &size, sizeof size);
  return header + json;
}

Status write_shard(const HfShard& shard, ExportStage& stage, PiecewiseReader& reader) {
  SW_ASSIGN(const std::string header, shard_header(shard));
  std::vector<ReadItem> items;
  std::vector<std::uint64_t> begins;
  std::uint64_t offset = header.size();
  for (const ExportItem& item : shard.items) {
    items.push_back(item.source);
    begins.push_back(offset);
    offset += item.source.size_bytes();
  }
  SW_ASSIGN(DurableFile file, stage.create(shard.file, offset));
  SW_TRY(file.file().write_at(std::as_bytes(std::span(header)), 0));
  SW_TRY(reader.run(items, [&](std::size_t item, std::uint64_t at, std::span<const std::byte> bytes) {
    return file.file().write_at(bytes, begins[item] + at);
  }));
  return file.finish();
}

std::string weight_index(const std::vector<HfShard>& shards) {
  std::uint64_t total = 0;
  std::string map;
  for (const HfShard& shard : shards) {
    total += shard.size_bytes;
    for (const ExportItem& item : shard.items) {
      map += map.empty() ? "\n    " : ",\n    ";
      append_json_string(map, item.name);
      map += ": ";
      append_json_string(map, shard.file);
    }
  }
  return fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{{}\n  }}\n}}\n", total,
                     map);
}

bool is_weights_file(std::string_view name) {
  return name == kWeightsFile || name == kWeightsIndex ||
         (name.starts_with("model-") && name.ends_with(".safetensors") && name.find("-of-") != std::string_view::npos);
}

}  // namespace

Status export_hugging_face(const ExportContext& context) {
  SW_ASSIGN(std::vector<ExportItem> items, export_items(context.checkpoint, context.options, context.report));
  context.report.tensors = items.size();
  const std::vector<HfShard> shards = make_shards(std::move(items), context.options.shard_bytes);
  for (const HfShard& shard : shards) SW_TRY(shard_header(shard));  // refuse before anything is made
  SW_ASSIGN(const auto stage, ExportStage::open(context.fs, context.to, ".slackwater-export"));
  SW_ASSIGN(std::vector<std::string> old, stage->existing(is_weights_file));
  if (!old.empty() && !context.options.force) {
    return fail(ErrorKind::kAlreadyExists, fmt::format("there are weights already ({}); --force replaces them", old[0]),
                context.to);
  }
  std::vector<std::string> names;
  for (const HfShard& shard : shards) {
    SW_TRY(write_shard(shard, *stage, context.reader));
    names.push_back(shard.file);
    context.report.files.push_back({shard.file, shard.size_bytes});
    context.report.size_bytes += shard.size_bytes;
  }
  if (shards.size() > 1) {
    const std::string index = weight_index(shards);
    SW_TRY(stage->write(kWeightsIndex, index));
    names.emplace_back(kWeightsIndex);
    context.report.files.push_back({kWeightsIndex, index.size()});
  }
  // What makes the old set complete goes first. One file that is replaced by one file needs no removal.
  if (shards.size() == 1) std::erase(old, kWeightsFile);
  std::ranges::stable_partition(old,
                                [](const std::string& name) { return name == kWeightsFile || name == kWeightsIndex; });
  SW_TRY(stage->remove(old));
  return stage->publish(names);
}

}  // namespace slackwater::formats
