// Tensors as the engine sees them: named, typed, shaped, strided memory that somebody else owns.
// Plain values without locks; the memory behind `data` must outlive the call it is given to, and for
// Engine::save() stay unchanged until the fence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"

namespace slackwater {

enum class DType : std::uint8_t {
  kBool, kU8, kI8, kF8E4M3, kF8E5M2, kF8E8M0, kF8E4M3Fnuz, kF8E5M2Fnuz,
  kU16, kI16, kF16, kBF16,
  kU32, kI32, kF32, kC32,
  kU64, kI64, kF64, kC64,
  kC128,
};

// Bytes of one element.
[[nodiscard]] std::uint32_t item_bytes(DType dtype);
// Our own name, as messages, the CLI and Python use it: "float32", "bfloat16", "float8_e4m3fn", ... (torch's names).
[[nodiscard]] std::string_view dtype_name(DType dtype);
[[nodiscard]] Result<DType> dtype_from_name(std::string_view name);

inline constexpr int kHostDevice = -1;  // Tensor::device: host memory; >= 0 is a CUDA ordinal

// A stream of a CUDA device, as the driver knows it (CUstream as a number). 0 and 1 are its legacy default stream, 2 the per-thread one.
struct StreamRef {
  int device = 0;
  std::uintptr_t handle = 0;
};

// A box of a global tensor, which the ranks hold together: the boxes of all ranks tile it exactly.
struct Shard {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;  // where the box begins there; its extent is the shape of the tensor it is given with
  // Ranks that hold the very same box. Each writes its share of all such boxes, so that every byte is written once.
  std::string replica_group;   // the same text on those ranks, which hand over the same boxes under it
  std::uint32_t replica = 0;   // which of them this rank is, of
  std::uint32_t replicas = 1;  // so many
};

// One tensor to be saved.
struct Tensor {
  std::string name;  // of the global tensor where `shard` is set: a state may hold several boxes of it
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; empty means contiguous (row major)
  const void* data = nullptr;
  int device = kHostDevice;
  // Volatile: it may change right after save(), so it is copied inside (on a CUDA device: duplicated there, in stream order). At most
  // 64 MiB of a state; beyond that, save() waits until the copies of the whole snapshot are done.
  bool at_once = false;
  std::optional<Shard> shard;  // none: a tensor of this rank alone
};

inline constexpr std::size_t kMaxMetrics = 1'000;

// What a rank hands over for one step.
struct State {
  std::vector<Tensor> tensors;
  // Any object, the same for states whose tensors differ in nothing but their addresses: what follows from the rest is then
  // not worked out anew at every save(). None: each state stands for itself.
  std::shared_ptr<const void> structure;
  std::string tree;                             // typed JSON of structure and plain values; opaque here
  // Texts, by name, that must be the same on all ranks, or the step is aborted: parts of `tree`, given once more. Members
  // of JSON objects are compared, and named, one by one, in whatever order they stand.
  std::map<std::string, std::string> replicated_values;
  std::map<std::string, std::string> metadata;  // the user's own words about this step
  // Numbers about this step, for KeepBest, kept in the manifest: those of rank 0 count. What is not finite is never
  // among the best. At most kMaxMetrics, names of 64 KiB in all.
  std::map<std::string, double> metrics;
  bool never_skip = false;                      // with OnBusy::kSkip: waits for room. One rank only
  bool pin = false;                             // pinned from the moment it is committed; one rank that asks is enough
  std::shared_ptr<void> owner;                  // released when no source byte will be read any more
  // True if the caller checks the sources himself as well (Python: tensor._version) and will call
  // Snapshot::seal(); the version is not committed before.
  bool sealed_by_caller = false;
  // Streams on which the tensors of each CUDA device are produced: copies wait for the work queued on them so far. A device none is
  // named for: its legacy default stream.
  std::vector<StreamRef> after;
};

// Where one tensor is to be restored.
struct Target {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; empty means contiguous
  void* data = nullptr;
  int device = kHostDevice;
  std::optional<Shard> shard;  // the box of a global tensor that is wanted here; none: the whole tensor. Replicas do not matter.
};

// A box of a global tensor as it is stored: packed, in one piece.
struct StoredBox {
  std::vector<std::int64_t> offset;  // in the global tensor
  std::vector<std::int64_t> shape;
  std::uint32_t file = 0;         // index into Checkpoint::files()
  std::uint64_t file_offset = 0;  // of its first byte, from the start of the file
  std::uint64_t size_bytes = 0;
};

// One tensor of a checkpoint.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::vector<StoredBox> boxes;  // where it lies in parts; none: whole, at
  std::uint32_t file = 0;        // index into Checkpoint::files()
  std::uint64_t offset = 0;      // of its first byte, from the start of the file
  std::uint64_t size_bytes = 0;  // contiguous there; in parts: of all together
  std::string alias_of;          // tied tensor: the name it is stored under; empty if stored itself
};

}  // namespace slackwater
