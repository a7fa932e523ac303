#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/dcp_metadata.hpp"
#include "formats/import_source.hpp"
#include "formats/tensor_names.hpp"
#include "formats/torch_archive.hpp"

namespace slackwater::formats {
namespace {

constexpr std::int64_t kMaxListLength = 10'000'000;

// A dict or a list that is being put together, or an item of the checkpoint.
struct Branch {
  const DcpItem* item = nullptr;
  bool is_list = false;
  std::vector<TreeNode> keys;  // in order; numbers of a list
  std::vector<Branch> children;
  std::map<std::string, std::size_t, std::less<>> by_key;

  [[nodiscard]] bool holds_tensors() const {
    return item != nullptr ? item->dtype.has_value() : std::ranges::any_of(children, &Branch::holds_tensors);
  }
};

Status insert(Branch& root, const DcpItem& item, const std::string& path) {
  Branch* at = &root;
  for (const TreeNode& key : item.path) {
    const bool number = key.kind == TreeNode::Kind::kInt;
    const bool text = key.kind == TreeNode::Kind::kText && !key.text.starts_with('$');
    if (!number && !text)
      return fail(ErrorKind::kUnsupported, fmt::format("'{}' has a key that begins with '$'", item.name), path);
    if (at->children.empty()) at->is_list = number && at != &root;
    if (at->item != nullptr || at->is_list != number || (number && key.number >= kMaxListLength))
      return fail(ErrorKind::kCorrupt, fmt::format("'{}' conflicts with another item of the same name", item.name),
                  path);
    const std::string slot = number ? fmt::format("{}", key.number) : key.text;
    const auto [known, is_new] = at->by_key.try_emplace(slot, at->children.size());
    if (is_new) {
      at->keys.push_back(key);
      at->children.emplace_back();
    }
    at = &at->children[known->second];
  }
  if (at->item != nullptr || !at->children.empty())
    return fail(ErrorKind::kCorrupt, fmt::format("'{}' conflicts with another item of the same name", item.name), path);
  at->item = &item;
  return {};
}

class DcpReader {
 public:
  DcpReader(std::string directory, const SourceOptions& options, ImportSource& source)
      : directory_(std::move(directory)), options_(options), source_(source) {}

  Result<std::optional<TreeNode>> read(const Branch& branch, const std::string& name) {
    if (branch.item != nullptr) return read_item(*branch.item, name);
    if (branch.is_list) return read_list(branch, name);
    const std::vector<std::string> names = child_names(name, branch.keys, [&] {
      return std::ranges::any_of(branch.children,
                                 [](const Branch& child) { return child.item == nullptr && child.holds_tensors(); });
    });
    TreeNode made = TreeNode::object();
    for (std::size_t i = 0; i < branch.children.size(); ++i) {
      SW_ASSIGN(auto value, read(branch.children[i], names[i]));
      if (value) made.add(branch.keys[i].text, std::move(*value));
    }
    if (made.items.empty()) return std::nullopt;
    return made;
  }

 private:
  Result<std::optional<TreeNode>> read_list(const Branch& branch, const std::string& name) {
    TreeNode made = TreeNode::list();
    for (std::size_t i = 0; i < branch.children.size(); ++i) {
      const auto index = static_cast<std::size_t>(branch.keys[i].number);
      SW_ASSIGN(auto value, read(branch.children[i], join_name(name, fmt::format("{}", index))));
      if (!value) continue;
      if (made.items.size() <= index) made.items.resize(index + 1);
      made.items[index] = std::move(*value);
    }
    if (made.items.empty()) return std::nullopt;
    return made;
  }

  Result<std::optional<TreeNode>> read_item(const DcpItem& item, const std::string& name) {
    if (item.value) {
      SW_ASSIGN(const TorchArchive archive, open_archive(*item.value));
      return archive.read(name, options_.selected, source_.tensors);
    }
    if (!options_.selected(name)) return std::nullopt;
    for (const DcpChunk& chunk : item.chunks) SW_TRY(read_chunk(item, chunk, name));
    return TreeNode::tensor(name);
  }

  Status read_chunk(const DcpItem& item, const DcpChunk& chunk, const std::string& name) {
    SW_ASSIGN(const TorchArchive archive, open_archive(chunk.place));
    std::vector<Tensor> found;
    SW_ASSIGN(const auto node, archive.read(name, {}, found));
    if (!node || !node->is_tensor() || found.size() != 1 || found[0].dtype != *item.dtype ||
        found[0].shape != chunk.shape) {
      return fail(ErrorKind::kCorrupt, fmt::format("tensor '{}' is not what the metadata says", item.name),
                  file_path(chunk.place));
    }
    const bool whole = chunk.shape == item.shape && item.chunks.size() == 1;
    if (!whole) found[0].shard = Shard{.global_shape = item.shape, .offset = chunk.offset};
    source_.tensors.push_back(std::move(found[0]));
    return {};
  }

  [[nodiscard]] std::string file_path(const DcpPlace& place) const {
    return fmt::format("{}/{}", directory_, place.file);
  }

  Result<TorchArchive> open_archive(const DcpPlace& place) {
    const std::string path = file_path(place);
    auto known = files_.find(place.file);
    if (known == files_.end()) {
      SW_ASSIGN(const MappedFile* file, map_file(path, source_));
      known = files_.emplace(place.file, file).first;
    }
    const std::span<const std::byte> bytes = known->second->bytes();
    if (place.offset > bytes.size() || place.size_bytes > bytes.size() - place.offset) {
      return fail(ErrorKind::kCorrupt,
                  fmt::format("the metadata places an item at bytes {} to {}, but the file has only {}", place.offset,
                              place.offset + place.size_bytes, bytes.size()),
                  path);
    }
    SW_ASSIGN(TorchArchive archive, TorchArchive::open(bytes.subspan(place.offset, place.size_bytes), path));
    for (const ZipRecord& record : archive.data_records())
      source_.checks.push_back({std::string(record.name), path, record.bytes, record.crc});
    return archive;
  }

  const std::string directory_;
  const SourceOptions& options_;
  ImportSource& source_;
  std::map<std::string, const MappedFile*, std::less<>> files_;
};

}  // namespace

Status read_dcp_source(const std::string& directory, const SourceOptions& options, ImportSource& source) {
  const std::string path = directory + "/.metadata";
  SW_ASSIGN(const MappedFile* metadata, map_file(path, source));
  const std::string_view bytes(reinterpret_cast<const char*>(metadata->bytes().data()), metadata->bytes().size());
  SW_ASSIGN(const std::vector<DcpItem> items, parse_dcp_metadata(bytes, path));
  Branch root;
  for (const DcpItem& item : items) SW_TRY(insert(root, item, path));
  const std::string name = options.as.empty() ? "" : join_name("", name_segment(TreeNode::string(options.as)));
  DcpReader reader(directory, options, source);
  SW_ASSIGN(auto state, reader.read(root, name));
  if (!state) return {};
  if (options.as.empty()) {
    source.tree = std::move(*state);
  } else {
    source.tree = TreeNode::object();
    source.tree.add(options.as, std::move(*state));
  }
  return {};
}

}  // namespace slackwater::formats
