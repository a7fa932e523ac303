// Files to import: an archive of torch.save, its pickle alone, and the metadata of DCP. The first byte chooses: 'z',
// 'p' or 'm'; the rest is the input.
#include <string>
#include <vector>

#include "formats/dcp_metadata.hpp"
#include "formats/pickle_reader.hpp"
#include "formats/torch_archive.hpp"
#include "formats/torch_pickle.hpp"
#include "formats/torch_values.hpp"
#include "formats/tree_node.hpp"
#include "fuzz.hpp"
#include "tensor/shape.hpp"

namespace {

using namespace slackwater;
using namespace slackwater::formats;

// What was accepted goes the way of an import and of an export.
void check_tree(const TreeNode& tree, const std::vector<Tensor>& tensors) {
  const std::string text = tree_text(tree);
  const auto again = parse_tree(text, "tree");
  if (!again) return fuzz::require_refusal(again.error());  // too deep for JSON
  fuzz::require(tree_text(*again) == text, "the tree that was read is the one that was written");
  PickleWriter pickle;
  BeyondWeightsOnly beyond;
  const FindTensor find_tensor = [&](const std::string& name) -> Result<PickledTensor> {
    for (const Tensor& tensor : tensors)
      if (tensor.name == name) return PickledTensor{.storage = 0, .dtype = tensor.dtype, .shape = tensor.shape};
    return fail(ErrorKind::kCorrupt, "no such tensor");
  };
  if (const Status written = write_value(pickle, *again, "state", find_tensor, beyond); !written)
    return fuzz::require_refusal(written.error());
  const std::string exported = pickle.finish();
  fuzz::require(PickleGraph::read(exported, "exported").has_value(), "an exported pickle can be read");
}

void check_archive(std::string_view bytes) {
  const auto archive = TorchArchive::open(std::as_bytes(std::span(bytes)), "file");
  if (!archive) return fuzz::require_refusal(archive.error());
  std::vector<Tensor> tensors;
  const auto tree = archive->read("state", {}, tensors);
  if (!tree) return fuzz::require_refusal(tree.error());
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  for (const Tensor& tensor : tensors) {
    const auto packed = packed_bytes(tensor.dtype, tensor.shape);
    fuzz::require(packed.has_value(), "a tensor has a size");
    if (*packed == 0) continue;
    std::int64_t last = 0;
    for (std::size_t d = 0; d < tensor.strides.size(); ++d) last += (tensor.shape[d] - 1) * tensor.strides[d];
    const std::uint64_t reach =
        tensor.strides.empty() ? *packed : static_cast<std::uint64_t>(last + 1) * item_bytes(tensor.dtype);
    const auto* const data = static_cast<const std::byte*>(tensor.data);
    fuzz::require(data >= begin && reach <= bytes.size() && data + reach <= begin + bytes.size(),
                  "a tensor lies in the file");
  }
  if (*tree) check_tree(**tree, tensors);
}

void check_pickle(std::string_view bytes) {
  const auto graph = PickleGraph::read(bytes, "file");
  if (!graph) return fuzz::require_refusal(graph.error());
  std::vector<Tensor> tensors;
  const std::vector<std::byte> storage(64);
  const auto find_storage = [&](std::string_view) { return std::optional(std::span<const std::byte>(storage)); };
  const Selection all;
  const std::string path = "file";
  const auto tree = TorchValues(*graph, find_storage, all, path, tensors).read("state");
  if (!tree) return fuzz::require_refusal(tree.error());
  if (*tree) check_tree(**tree, tensors);
}

void check_metadata(std::string_view bytes) {
  const auto items = parse_dcp_metadata(bytes, "file");
  if (!items) return fuzz::require_refusal(items.error());
  for (const DcpItem& item : *items) {
    fuzz::require(!item.path.empty(), "an item has a path");
    for (const DcpChunk& chunk : item.chunks)
      fuzz::require(
          chunk.place.file.find("..") == std::string::npos || chunk.place.file.find("../") == std::string::npos,
          "files stay in the directory");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  if (input.empty()) return 0;
  const std::string_view rest = input.substr(1);
  if (input[0] == 'z') check_archive(rest);
  if (input[0] == 'p') check_pickle(rest);
  if (input[0] == 'm') check_metadata(rest);
  return 0;
}
