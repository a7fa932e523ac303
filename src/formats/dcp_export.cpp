#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/archive_file.hpp"
#include "formats/export.hpp"
#include "formats/export_stage.hpp"
#include "formats/tensor_names.hpp"

namespace slackwater::formats {
namespace {

constexpr const char* kMetadataFile = ".metadata";
constexpr const char* kMetadataClasses = "torch.distributed.checkpoint.metadata";

using KeyPath = std::vector<TreeNode>;  // texts, and numbers of list elements

// One entry of the flat state dict that DCP makes of a nested one.
struct DcpLeaf {
  KeyPath path;
  const TreeNode* node = nullptr;
  std::string name;

  // Where it is written.
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

// Modules, optimizers and other objects count as what their state_dict() returned.
const TreeNode& unwrapped(const TreeNode& node) {
  const TreeNode* at = &node;
  while ((at->tag() == "object" || at->tag() == "subclass") && at->find("v") != nullptr) at = at->find("v");
  return *at;
}

bool is_mapping(const TreeNode& node) {
  const std::string_view tag = node.tag();
  if (tag.empty()) return node.kind == TreeNode::Kind::kObject;
  return tag == "dict" || tag == "OrderedDict" || tag == "defaultdict" || tag == "Counter";
}

std::string key_string(const TreeNode& key) {
  if (key.kind == TreeNode::Kind::kText) return key.text;
  if (key.kind == TreeNode::Kind::kBool) return key.truth ? "True" : "False";
  if (key.kind == TreeNode::Kind::kNull) return "None";
  return name_segment(key);
}

// As torch.distributed.checkpoint._traverse: dicts are always taken apart, lists only if tensors or dicts are in them.
class Flattener {
 public:
  Status walk(const TreeNode& value, const KeyPath& path) {
    const TreeNode& node = unwrapped(value);
    if (is_mapping(node)) return walk_mapping(node, path);
    if (node.kind == TreeNode::Kind::kList && !is_terminal(node)) {
      for (std::size_t i = 0; i < node.items.size(); ++i)
        SW_TRY(walk(node.items[i], extended(path, TreeNode::integer(static_cast<std::int64_t>(i)))));
      return {};
    }
    DcpLeaf leaf{.path = path, .node = &node};
    for (const TreeNode& key : path) {
      if (!leaf.name.empty()) leaf.name += '.';
      leaf.name += key_string(key);
    }
    if (!names_.insert(leaf.name).second)
      return fail(ErrorKind::kUnsupported, fmt::format("two values would both be called '{}' in DCP", leaf.name));
    leaves_.push_back(std::move(leaf));
    return {};
  }
  [[nodiscard]] std::vector<DcpLeaf> take() { return std::move(leaves_); }

 private:
  static KeyPath extended(const KeyPath& path, TreeNode key) {
    KeyPath longer = path;
    longer.push_back(std::move(key));
    return longer;
  }
  Status walk_mapping(const TreeNode& node, const KeyPath& path) {
    if (node.tag().empty()) {
      for (std::size_t i = 0; i < node.items.size(); ++i)
        SW_TRY(walk(node.items[i], extended(path, {.kind = TreeNode::Kind::kText, .text = node.keys[i]})));
      return {};
    }
    const TreeNode* pairs = node.find("v");
    if (pairs == nullptr) return {};
    for (const TreeNode& pair : pairs->items) {  // in place: leaves point to them
      if (pair.items.size() != 2)
        return fail(ErrorKind::kCorrupt, "the tree of the checkpoint holds a dict without its values");
      const TreeNode key{.kind = TreeNode::Kind::kText, .text = key_string(pair.items[0])};
      SW_TRY(walk(pair.items[1], extended(path, key)));
    }
    return {};
  }
  static bool is_terminal(const TreeNode& list) {
    return std::ranges::none_of(list.items, [](const TreeNode& item) {
      const TreeNode& node = unwrapped(item);
      return node.is_tensor() || is_mapping(node) || (node.kind == TreeNode::Kind::kList && !is_terminal(node));
    });
  }

  std::vector<DcpLeaf> leaves_;
  std::set<std::string> names_;
};

// The pickle of torch.distributed.checkpoint.metadata.Metadata.
class MetadataWriter {
 public:
  explicit MetadataWriter(const ExportContext& context) : context_(context) {}

  Result<std::string> write(const std::vector<DcpLeaf>& leaves) {
    begin_object(kMetadataClasses, "Metadata");
    out_.text("state_dict_metadata");
    begin_dict();
    for (const DcpLeaf& leaf : leaves) {
      out_.text(leaf.name);
      SW_TRY(write_item(leaf));
    }
    out_.set_items();
    out_.text("planner_data");
    begin_dict();
    for (const DcpLeaf& leaf : leaves) {
      out_.text(leaf.name);
      out_.mark();
      for (const TreeNode& key : leaf.path)
        key.kind == TreeNode::Kind::kInt ? out_.integer(key.number) : out_.text(key.text);
      out_.tuple();
    }
    out_.set_items();
    out_.text("storage_data");
    begin_dict();
    for (const DcpLeaf& leaf : leaves) SW_TRY(write_place(leaf));
    out_.set_items();
    out_.text("storage_meta");
    out_.none();
    out_.text("version");
    out_.text("1.0.0");
    end_object();
    return out_.finish();
  }

 private:
  void begin_dict() {
    out_.empty_dict();
    out_.mark();
  }
  // An object whose fields follow as keys and values.
  void begin_object(std::string_view module, std::string_view type) {
    out_.global(module, type);
    out_.empty_tuple();
    out_.new_object();
    begin_dict();
  }
  void end_object() {
    out_.set_items();
    out_.set_state();
  }

  Status write_item(const DcpLeaf& leaf) {
    if (!leaf.node->is_tensor()) {
      begin_object(kMetadataClasses, "BytesStorageMetadata");
      end_object();
      return {};
    }
    SW_ASSIGN(const ReadItem item, export_item(context_.checkpoint, leaf.node->tensor_name(), context_.options));
    begin_object(kMetadataClasses, "TensorStorageMetadata");
    out_.text("properties");
    write_properties(item.to);
    out_.text("size");
    write_size(out_, item.shape);
    out_.text("chunks");
    out_.empty_list();
    out_.mark();
    begin_object(kMetadataClasses, "ChunkStorageMetadata");
    out_.text("offsets");
    write_size(out_, std::vector<std::int64_t>(item.shape.size()));
    out_.text("sizes");
    write_size(out_, item.shape);
    end_object();
    out_.append_items();
    end_object();
    return {};
  }

  // Its state is a tuple: dtype, layout, requires_grad, memory format, pin_memory.
  void write_properties(DType dtype) {
    out_.global(kMetadataClasses, "TensorProperties");
    out_.empty_tuple();
    out_.new_object();
    out_.mark();
    write_dtype(out_, dtype);
    out_.global("torch.serialization", "_get_layout");
    out_.mark();
    out_.text("torch.strided");
    out_.tuple();
    out_.call();
    out_.boolean(false);
    out_.global(kMetadataClasses, "_MEM_FORMAT_ENCODING");
    out_.mark();
    out_.integer(0);
    out_.tuple();
    out_.call();
    out_.boolean(false);
    out_.tuple();
    out_.set_state();
  }

  Status write_place(const DcpLeaf& leaf) {
    begin_object(kMetadataClasses, "MetadataIndex");
    out_.text("fqn");
    out_.text(leaf.name);
    out_.text("index");
    if (leaf.node->is_tensor()) {
      SW_ASSIGN(const ReadItem item, export_item(context_.checkpoint, leaf.node->tensor_name(), context_.options));
      out_.integer(0);
      out_.text("offset");
      write_size(out_, std::vector<std::int64_t>(item.shape.size()));
    } else {
      out_.none();
    }
    end_object();
    begin_object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    out_.text("relative_path");
    out_.text(fmt::format("__0_{}.distcp", leaf.file));
    out_.text("offset");
    out_.integer(static_cast<std::int64_t>(leaf.offset));
    out_.text("length");
    out_.integer(static_cast<std::int64_t>(leaf.size_bytes));
    end_object();
    return {};
  }

  const ExportContext& context_;
  PickleWriter out_;
};

bool is_dcp_file(std::string_view name) { return name == kMetadataFile || name.ends_with(".distcp"); }

}  // namespace

Status export_dcp(const ExportContext& context) {
  SW_ASSIGN(const TreeNode state, exported_tree(context));
  Flattener flattener;
  SW_TRY(flattener.walk(state, {}));
  std::vector<DcpLeaf> leaves = flattener.take();

  // Every value is an archive of its own. A new file begins when the next archive does not fit.
  BeyondWeightsOnly beyond;  // dcp.load reads with weights_only=False
  std::vector<std::vector<ArchivePlan>> files;
  std::uint64_t file_bytes = 0;
  for (DcpLeaf& leaf : leaves) {
    SW_ASSIGN(ArchivePlan archive, plan_archive(*leaf.node, leaf.name, context, beyond));
    leaf.size_bytes = archive.layout.size_bytes();
    if (files.empty() || (file_bytes > 0 && file_bytes + leaf.size_bytes > context.options.shard_bytes)) {
      files.emplace_back();
      file_bytes = 0;
    }
    leaf.file = files.size() - 1;
    leaf.offset = file_bytes;
    file_bytes += leaf.size_bytes;
    context.report.tensors += archive.tensors;
    for (const ReadItem& storage : archive.storages) context.report.size_bytes += storage.size_bytes();
    files.back().push_back(std::move(archive));
  }
  SW_ASSIGN(const std::string metadata, MetadataWriter(context).write(leaves));

  SW_ASSIGN(const auto stage, ExportStage::open(context.fs, context.to, ".slackwater-export"));
  SW_ASSIGN(std::vector<std::string> old, stage->existing(is_dcp_file));
  if (!old.empty() && !context.options.force) {
    return fail(ErrorKind::kAlreadyExists,
                fmt::format("there is a checkpoint of DCP already ({}); --force replaces it", old[0]), context.to);
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < files.size(); ++i) {
    names.push_back(fmt::format("__0_{}.distcp", i));
    SW_TRY(write_archives(files[i], names.back(), *stage, context.reader));
    std::uint64_t size_bytes = 0;
    for (const ArchivePlan& archive : files[i]) size_bytes += archive.layout.size_bytes();
    context.report.files.push_back({names.back(), size_bytes});
  }
  SW_TRY(stage->write(kMetadataFile, metadata));
  names.emplace_back(kMetadataFile);
  context.report.files.push_back({kMetadataFile, metadata.size()});
  std::ranges::stable_partition(old, [](const std::string& name) { return name == kMetadataFile; });
  SW_TRY(stage->remove(old));
  return stage->publish(names);
}

}  // namespace slackwater::formats
