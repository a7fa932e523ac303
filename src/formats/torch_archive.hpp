// TorchArchive: one file of torch.save (zip, weights only), read without running its pickle. The bytes are untrusted.
// Its values become the tree of a checkpoint, and its tensors point into the archive.
// Thread rule: constant after open; any thread. Lifetime: the bytes outlive the archive and the tensors.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/pickle_reader.hpp"
#include "formats/selection.hpp"
#include "formats/tree_node.hpp"
#include "formats/zip_reader.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::formats {

class TorchArchive {
 public:
  // kUnsupported: TorchScript, big-endian bytes, or no file of torch.save at all.
  [[nodiscard]] static Result<TorchArchive> open(std::span<const std::byte> bytes, const std::string& path);

  // The part of its value that is selected, named from `name` on. nullopt: nothing is. kUnsupported names a value that
  // only running code from the file could rebuild, and its place.
  [[nodiscard]] Result<std::optional<TreeNode>> read(const std::string& name, const Selection& selected,
                                                     std::vector<Tensor>& tensors) const;

  // The records of tensors, to compare their checksums.
  [[nodiscard]] std::vector<ZipRecord> data_records() const;

 private:
  TorchArchive(ZipReader zip, std::string prefix, PickleGraph graph, std::string path);

  ZipReader zip_;
  std::string prefix_;  // of the names of records: "archive/"
  PickleGraph graph_;
  std::string path_;
};

}  // namespace slackwater::formats
