// TorchValues: what the graph of a pickle means, for the types that torch.load(weights_only=True) takes and a few more
// plain ones. Each is known here by its name; every other is refused with its name. Nothing is run.
// One use, one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/pickle_reader.hpp"
#include "formats/selection.hpp"
#include "formats/tree_node.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::formats {

class TorchValues {
 public:
  using FindStorage = std::function<std::optional<std::span<const std::byte>>(std::string_view key)>;

  TorchValues(const PickleGraph& graph, FindStorage find_storage, const Selection& selected, const std::string& path,
              std::vector<Tensor>& tensors);

  // The value at the root, named `name`, as far as it is selected.
  [[nodiscard]] Result<std::optional<TreeNode>> read(const std::string& name);

 private:
  using Found = Result<std::optional<TreeNode>>;
  using Pairs = std::vector<std::pair<NodeId, NodeId>>;

  [[nodiscard]] Found convert(NodeId id, const std::string& name, std::size_t depth);
  [[nodiscard]] Found sequence(const std::vector<NodeId>& items, const std::string& name, std::size_t depth);
  [[nodiscard]] Found mapping(const Pairs& pairs, std::string_view tag, const std::string& name, std::size_t depth);
  [[nodiscard]] Found call(NodeId id, const std::string& name, std::size_t depth);
  // Values without tensors below, which are taken whole or not at all.
  [[nodiscard]] Result<TreeNode> leaf(NodeId id, const std::string& name, std::size_t depth);
  [[nodiscard]] Result<TreeNode> called_leaf(const PickleNode& node, const std::string& name, std::size_t depth);
  [[nodiscard]] Result<TreeNode> numpy_scalar(const PickleNode& node, const std::string& name) const;
  [[nodiscard]] Result<std::string> bytes_of(NodeId id, const std::string& name) const;
  [[nodiscard]] Result<std::vector<TreeNode>> leaves(const std::vector<NodeId>& items, const std::string& name,
                                                     std::size_t depth);

  [[nodiscard]] bool is_tensor(const PickleNode& node) const;
  // Whether tensors lie below the node, as holds_more_than_tensors() in codec.py.
  [[nodiscard]] bool holds_tensors_below(NodeId id, std::size_t depth);
  [[nodiscard]] Result<Tensor> tensor(std::string_view function, const std::vector<NodeId>& arguments,
                                      const std::string& name) const;
  struct Storage {
    std::span<const std::byte> bytes;
    std::optional<DType> dtype;  // none: untyped
  };
  [[nodiscard]] Result<Storage> storage(NodeId id, const std::string& name) const;
  [[nodiscard]] Result<std::vector<std::int64_t>> numbers(NodeId id, const std::string& name) const;

  [[nodiscard]] Pairs pairs_of(const std::vector<NodeId>& items) const;
  [[nodiscard]] Status count();
  [[nodiscard]] std::unexpected<Error> corrupt(const std::string& name, const char* what) const;
  [[nodiscard]] std::unexpected<Error> unsupported(const std::string& name, const std::string& what) const;

  const PickleGraph& graph_;
  const FindStorage find_storage_;
  const Selection& selected_;
  const std::string& path_;
  std::vector<Tensor>& tensors_;
  std::unordered_map<NodeId, bool> tensors_below_;  // answers of holds_tensors_below()
  std::size_t count_ = 0;                           // of nodes made: shared ones are made again at each place
};

}  // namespace slackwater::formats
