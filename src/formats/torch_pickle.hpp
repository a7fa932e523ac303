// Writes values of a checkpoint's tree as the pickle that torch.save would write, and the archive around it.
// Only names from a fixed list get into a pickle. A class name from a checkpoint never does: whoever loads the file
// would import that class. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/pickle_writer.hpp"
#include "formats/tree_node.hpp"
#include "formats/zip_layout.hpp"
#include "slackwater/error.hpp"
#include "slackwater/tensor.hpp"

namespace slackwater::formats {

// A tensor as the pickle refers to it. Its bytes are contiguous, in the record data/<storage> of the archive.
struct PickledTensor {
  std::size_t storage = 0;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
};
using FindTensor = std::function<Result<PickledTensor>(const std::string& name)>;

// Values that torch.load(weights_only=True) does not take, by their names: "args" -> "argparse.Namespace".
using BeyondWeightsOnly = std::map<std::string, std::string>;

// kUnsupported names a value that has no safe form in a pickle.
[[nodiscard]] Status write_value(PickleWriter& out, const TreeNode& node, const std::string& name,
                                 const FindTensor& find_tensor, BeyondWeightsOnly& beyond);
void write_tensor(PickleWriter& out, const PickledTensor& tensor);
void write_dtype(PickleWriter& out, DType dtype);                              // torch.float32
void write_size(PickleWriter& out, std::span<const std::int64_t> dimensions);  // torch.Size((2, 3))

// One archive of torch.save: the pickle, and one record for each storage.
class TorchArchiveLayout {
 public:
  TorchArchiveLayout(std::string pickle, std::span<const std::uint64_t> storage_bytes);

  [[nodiscard]] std::uint64_t size_bytes() const { return zip_.size_bytes(); }
  [[nodiscard]] std::uint64_t storage_offset(std::size_t storage) const { return zip_.data_offset(first_ + storage); }

  // All but the storages, whose checksums must be known. `write` gets an offset in the archive and bytes.
  using Write = std::function<Status(std::uint64_t offset, std::string_view bytes)>;
  [[nodiscard]] Status write_rest(std::span<const std::uint32_t> storage_crcs, const Write& write) const;

 private:
  std::vector<std::string> small_;  // records in front of the storages, and one behind them
  ZipLayout zip_;
  std::size_t first_ = 0;  // number of the first storage's record
};

}  // namespace slackwater::formats
