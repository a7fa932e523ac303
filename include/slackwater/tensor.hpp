// Tensors as the engine sees them: named, typed, shaped, strided memory that somebody else owns.
// Thread rule: plain values without locks. Lifetime: the memory behind `data` must outlive the call it is passed to.
// For Engine::save(), it must also stay unchanged until the fence.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/error.hpp"
#include "slackwater/part.hpp"

namespace slackwater {

enum class DType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kC32,
  kU64,
  kI64,
  kF64,
  kC64,
  kC128,
};

// Bytes of one element.
[[nodiscard]] std::uint32_t item_bytes(DType dtype);
// The name in messages, the CLI and Python, which is torch's: "float32", "bfloat16", "float8_e4m3fn", ...
[[nodiscard]] std::string_view dtype_name(DType dtype);
[[nodiscard]] Result<DType> dtype_from_name(std::string_view name);

inline constexpr int kHostDevice = -1;  // Tensor::device: host memory; >= 0 is a CUDA ordinal

// A stream of a CUDA device, as the driver knows it: a CUstream as a number. 0 and 1 are the legacy default stream, 2
// is the per-thread one.
struct StreamRef {
  int device = 0;
  std::uintptr_t handle = 0;
};

// A box of a global tensor, which is distributed over the ranks. The boxes of all ranks tile it exactly.
struct Shard {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> offset;  // where the box begins; its extent is the shape of the tensor that has this Shard
  // Replicas are ranks with the same boxes. Each writes its share of them, so that every byte is written once.
  std::string replica_group;   // the same text on all ranks of the group, which pass the same boxes under it
  std::uint32_t replica = 0;   // number of this rank in the group
  std::uint32_t replicas = 1;  // number of ranks in the group
};

// When a tensor may be written, as far as the caller knows. From this the engine decides what save() must copy itself.
enum class Updates : std::uint8_t {
  kBehindFence,  // only by updates that wait for the fence, as optimizers do
  kAnyTime,      // right after save(), as a forward pass writes the buffers of a module
  kUnknown,      // unknown: small tensors are copied inside save()
};

// One tensor to be saved.
struct Tensor {
  std::string name;  // the global tensor's if `shard` is set; a state may have several boxes of it
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; empty means contiguous (row major)
  const void* data = nullptr;
  int device = kHostDevice;
  // Volatile: the tensor may change right after save(), so save() copies it. From a CUDA device, it is copied to pinned
  // memory, in stream order. At most 64 MiB per state. Beyond that, save() waits until all copies of the snapshot are
  // done.
  bool at_once = false;
  std::optional<Shard> shard;  // nullopt: a tensor of this rank alone
  Updates updates = Updates::kBehindFence;
  // The caller notices writes itself and reports them to Snapshot::seal(). If the 64 MiB for copies inside
  // save() are used up, this tensor may be copied later.
  bool watched = false;
};

inline constexpr std::size_t kMaxMetrics = 1'000;

// What a rank passes to save() for one step.
struct State {
  std::vector<Tensor> tensors;
  // Any object. Pass the same one for states whose tensors differ only in their addresses. Then save() reuses what it
  // has worked out from names, shapes and types. Null: every state is planned anew.
  std::shared_ptr<const void> structure;
  std::string tree;  // structure and plain values, in any form: the engine never reads it
  // The values in `tree`, by name, passed again. Ranks compare each text. Texts that differ belong to single ranks.
  // Empty: all of `tree` is compared as one value.
  std::map<std::string, std::string> values;
  // Named texts that must be the same on all ranks, or the step is aborted. They are parts of `tree`, passed again. If
  // a text is a JSON object, its members are compared, and named in errors, one by one and in any order.
  std::map<std::string, std::string> replicated_values;
  std::map<std::string, std::string> metadata;  // the user's notes about this step
  // Numbers about this step for KeepBest, stored in the manifest. Those of rank 0 are used. A value that is not finite
  // is never among the best. At most kMaxMetrics, with names of at most 64 KiB in all.
  std::map<std::string, double> metrics;
  bool never_skip = false;      // with OnBusy::kSkip: wait instead of skipping. Only for one rank
  bool pin = false;             // pin the version when it is committed; one rank that asks is enough
  std::shared_ptr<void> owner;  // released once no source byte will be read any more
  // True if the caller also checks the sources (Python: tensor._version) and will call Snapshot::seal(). The version is
  // not committed before that.
  bool sealed_by_caller = false;
  // This is one rank's part of a version that a PartCommitter commits. The engine then writes only this rank's files,
  // and needs no directory of its own. kCommitted means that the part is durable and sealed.
  std::optional<PartPlace> part;
  // Streams that produce the tensors of each CUDA device. Copies wait for the work queued on them so far. A device
  // without a stream here uses its legacy default stream.
  std::vector<StreamRef> after;
  // Names of the modules, optimizers and other objects that the tensors belong to, outer ones first. A tensor belongs
  // to the first object whose name is a prefix of its own, up to a dot. If one of its tensors is written before the
  // fence, the whole object is copied inside save() from then on. A tensor without an object stands for itself.
  std::vector<std::string> objects;
  // If set, gets `tensors` back once the engine has done with them, on any thread, unless the engine had to change them
  // (it may have set `at_once`). A caller that saves the same tensors again need not make them anew.
  std::function<void(std::vector<Tensor>)> take_back;
};

// Where to restore one tensor.
struct Target {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; empty means contiguous
  void* data = nullptr;
  int device = kHostDevice;
  std::optional<Shard> shard;  // the wanted box of a global tensor; nullopt: the whole tensor. Replicas are ignored.
};

// A stored box of a global tensor. It is packed and in one piece.
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
  std::vector<StoredBox> boxes;  // if it is stored in boxes; otherwise it is stored whole, as described below
  std::uint32_t file = 0;        // index into Checkpoint::files()
  std::uint64_t offset = 0;      // of its first byte, from the start of the file
  std::uint64_t size_bytes = 0;  // contiguous in the file; with boxes, their sum
  std::string alias_of;          // of a tied tensor: the name that it is stored under; otherwise empty
};

}  // namespace slackwater
