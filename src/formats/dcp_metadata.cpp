#include "formats/dcp_metadata.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/pickle_reader.hpp"

namespace slackwater::formats {
namespace {

using Kind = PickleNode::Kind;

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata.";

// A name inside the directory: "__0_0.distcp", "sub/file", but not "../file".
bool stays_inside(std::string_view file) {
  if (file.empty() || file.starts_with('/')) return false;
  while (!file.empty()) {
    const std::size_t slash = std::min(file.find('/'), file.size());
    const std::string_view part = file.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    file.remove_prefix(std::min(slash + 1, file.size()));
  }
  return true;
}

class MetadataParser {
 public:
  MetadataParser(const PickleGraph& graph, const std::string& path) : graph_(graph), path_(path) {}

  Result<std::vector<DcpItem>> parse() {
    SW_TRY(check_class(graph_.root(), "Metadata"));
    SW_ASSIGN(const PickleNode* states, field(graph_.root(), "state_dict_metadata", Kind::kDict));
    SW_ASSIGN(const PickleNode* storage, field(graph_.root(), "storage_data", Kind::kDict));
    SW_TRY(read_places(*storage));
    const PickleNode* planned = optional_field(graph_.root(), "planner_data");
    std::vector<DcpItem> items;
    for (std::size_t i = 0; i + 1 < states->items.size(); i += 2) {
      const PickleNode& name = graph_.at(states->items[i]);
      if (name.kind != Kind::kText) return corrupt("a name is not text");
      DcpItem item{.name = std::string(name.text)};
      SW_TRY(read_item(graph_.at(states->items[i + 1]), item));
      items.push_back(std::move(item));
    }
    SW_TRY(read_paths(planned, items));
    return items;
  }

 private:
  using Offset = std::vector<std::int64_t>;

  template <class... Args>
  std::unexpected<Error> corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorKind::kCorrupt,
                fmt::format("the metadata of DCP is damaged: {}", fmt::format(format, std::forward<Args>(args)...)),
                path_);
  }

  Status check_class(const PickleNode& node, std::string_view name) const {
    const std::string_view called = graph_.called(node);
    if (called.starts_with(kMetadataModule) && called.substr(kMetadataModule.size()) == name) return {};
    return fail(ErrorKind::kUnsupported,
                fmt::format("the metadata of DCP holds a '{}' where its own class {} belongs", called, name), path_);
  }

  const PickleNode* optional_field(const PickleNode& object, std::string_view name) const {
    if (object.state == kNoNode) return nullptr;
    const PickleNode& state = graph_.at(object.state);
    if (state.kind != Kind::kDict) return nullptr;
    for (std::size_t i = 0; i + 1 < state.items.size(); i += 2)
      if (graph_.at(state.items[i]).kind == Kind::kText && graph_.at(state.items[i]).text == name)
        return &graph_.at(state.items[i + 1]);
    return nullptr;
  }
  Result<const PickleNode*> field(const PickleNode& object, std::string_view name, Kind kind) const {
    const PickleNode* found = optional_field(object, name);
    if (found == nullptr || found->kind != kind) return corrupt("the field '{}' is missing or of another type", name);
    return found;
  }

  Result<Offset> size_of(const PickleNode& node) const {
    const std::vector<NodeId>& arguments = graph_.arguments(node);
    if (graph_.called(node) != "torch.Size" || arguments.size() != 1) return corrupt("a torch.Size is missing");
    Offset numbers;
    for (const NodeId item : graph_.at(arguments[0]).items) {
      const PickleNode& number = graph_.at(item);
      if (number.kind != Kind::kInt || number.number < 0)
        return corrupt("a torch.Size holds a value that is not a number");
      numbers.push_back(number.number);
    }
    return numbers;
  }
  Result<Offset> size_field(const PickleNode& object, std::string_view name) const {
    SW_ASSIGN(const PickleNode* found, field(object, name, Kind::kCall));
    return size_of(*found);
  }

  // storage_data: MetadataIndex -> _StorageInfo.
  Status read_places(const PickleNode& storage) {
    for (std::size_t i = 0; i + 1 < storage.items.size(); i += 2) {
      const PickleNode& key = graph_.at(storage.items[i]);
      const PickleNode& info = graph_.at(storage.items[i + 1]);
      SW_TRY(check_class(key, "MetadataIndex"));
      if (graph_.called(info) != "torch.distributed.checkpoint.filesystem._StorageInfo") {
        return fail(ErrorKind::kUnsupported,
                    fmt::format("the checkpoint was written by another storage than FileSystemWriter ('{}')",
                                graph_.called(info)),
                    path_);
      }
      SW_ASSIGN(const PickleNode* name, field(key, "fqn", Kind::kText));
      const PickleNode* offset = optional_field(key, "offset");
      Offset at;
      if (offset != nullptr && offset->kind == Kind::kCall) {
        SW_ASSIGN(at, size_of(*offset));
      }
      SW_ASSIGN(const PickleNode* file, field(info, "relative_path", Kind::kText));
      SW_ASSIGN(const PickleNode* begin, field(info, "offset", Kind::kInt));
      SW_ASSIGN(const PickleNode* length, field(info, "length", Kind::kInt));
      if (!stays_inside(file->text) || begin->number < 0 || length->number < 0)
        return corrupt("'{}' lies outside of the directory", name->text);
      const PickleNode* transforms = optional_field(info, "transform_descriptors");
      if (transforms != nullptr && !transforms->items.empty()) {
        return fail(
            ErrorKind::kUnsupported,
            fmt::format("'{}' was written with a transform (such as compression), which is not supported", name->text),
            path_);
      }
      places_[{std::string(name->text), std::move(at)}] = {.file = std::string(file->text),
                                                           .offset = static_cast<std::uint64_t>(begin->number),
                                                           .size_bytes = static_cast<std::uint64_t>(length->number)};
    }
    return {};
  }

  Result<DcpPlace> place_of(const std::string& name, const Offset& offset) const {
    const auto found = places_.find({name, offset});
    if (found == places_.end()) return corrupt("it does not say where '{}' lies", name);
    return found->second;
  }

  Status read_item(const PickleNode& node, DcpItem& item) const {
    if (graph_.called(node) == fmt::format("{}BytesStorageMetadata", kMetadataModule)) {
      SW_ASSIGN(item.value, place_of(item.name, {}));
      return {};
    }
    SW_TRY(check_class(node, "TensorStorageMetadata"));
    SW_ASSIGN(const PickleNode* properties, field(node, "properties", Kind::kCall));
    SW_ASSIGN(item.dtype, dtype_of(*properties, item.name));
    SW_ASSIGN(item.shape, size_field(node, "size"));
    SW_ASSIGN(const PickleNode* chunks, field(node, "chunks", Kind::kList));
    for (const NodeId id : chunks->items) {
      SW_TRY(check_class(graph_.at(id), "ChunkStorageMetadata"));
      DcpChunk chunk;
      SW_ASSIGN(chunk.offset, size_field(graph_.at(id), "offsets"));
      SW_ASSIGN(chunk.shape, size_field(graph_.at(id), "sizes"));
      if (chunk.offset.size() != item.shape.size() || chunk.shape.size() != item.shape.size())
        return corrupt("a chunk of '{}' has other dimensions than the tensor", item.name);
      SW_ASSIGN(chunk.place, place_of(item.name, chunk.offset));
      item.chunks.push_back(std::move(chunk));
    }
    return {};
  }

  // Its state is a tuple that begins with the dtype.
  Result<DType> dtype_of(const PickleNode& properties, const std::string& name) const {
    if (!graph_.called(properties).ends_with(".TensorProperties") || properties.state == kNoNode ||
        graph_.at(properties.state).items.empty())
      return corrupt("tensor '{}' has no properties", name);
    const PickleNode& dtype = graph_.at(graph_.at(properties.state).items[0]);
    if (dtype.kind != Kind::kGlobal || !dtype.text.starts_with("torch."))
      return corrupt("tensor '{}' has no dtype", name);
    auto known = dtype_from_name(dtype.text.substr(6));
    if (known) return *known;
    return fail(ErrorKind::kUnsupported, fmt::format("{} (tensor '{}')", known.error().message, name), path_);
  }

  // planner_data: flat name -> the keys that lead to it. What is not there has its flat name as its only key.
  Status read_paths(const PickleNode* planned, std::vector<DcpItem>& items) const {
    std::map<std::string_view, const PickleNode*> paths;
    if (planned != nullptr && planned->kind == Kind::kDict)
      for (std::size_t i = 0; i + 1 < planned->items.size(); i += 2)
        paths[graph_.at(planned->items[i]).text] = &graph_.at(planned->items[i + 1]);
    for (DcpItem& item : items) {
      const auto found = paths.find(item.name);
      if (found != paths.end()) {
        if (found->second->items.size() > kMaxStateDepth) return corrupt("'{}' is nested too deeply", item.name);
        for (const NodeId id : found->second->items) {
          const PickleNode& key = graph_.at(id);
          if (key.kind == Kind::kText)
            item.path.push_back(TreeNode::string(std::string(key.text)));
          else if (key.kind == Kind::kInt && key.number >= 0)
            item.path.push_back(TreeNode::integer(key.number));
          else
            return corrupt("the path of '{}' has an invalid key", item.name);
        }
      }
      if (item.path.empty()) item.path.push_back(TreeNode::string(item.name));
      if (item.path[0].kind != TreeNode::Kind::kText) return corrupt("the path of '{}' begins with no key", item.name);
    }
    return {};
  }

  const PickleGraph& graph_;
  const std::string& path_;
  std::map<std::pair<std::string, Offset>, DcpPlace> places_;
};

}  // namespace

Result<std::vector<DcpItem>> parse_dcp_metadata(std::string_view bytes, const std::string& path) {
  SW_ASSIGN(const PickleGraph graph, PickleGraph::read(bytes, path));
  return MetadataParser(graph, path).parse();
}

}  // namespace slackwater::formats
