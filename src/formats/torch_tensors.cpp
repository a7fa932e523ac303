// The part of TorchValues that knows how torch pickles tensors and storages.
#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/torch_values.hpp"
#include "tensor/shape.hpp"

namespace slackwater::formats {
namespace {

using Kind = PickleNode::Kind;

struct StorageName {
  std::string_view name;  // in "torch" or "torch.storage"
  DType dtype;
};
constexpr std::array kStorageNames = {
    StorageName{"DoubleStorage", DType::kF64},
    StorageName{"FloatStorage", DType::kF32},
    StorageName{"HalfStorage", DType::kF16},
    StorageName{"BFloat16Storage", DType::kBF16},
    StorageName{"LongStorage", DType::kI64},
    StorageName{"IntStorage", DType::kI32},
    StorageName{"ShortStorage", DType::kI16},
    StorageName{"CharStorage", DType::kI8},
    StorageName{"ByteStorage", DType::kU8},
    StorageName{"BoolStorage", DType::kBool},
    StorageName{"ComplexDoubleStorage", DType::kC128},
    StorageName{"ComplexFloatStorage", DType::kC64},
};

constexpr std::string_view kRebuildTensor = "torch._utils._rebuild_tensor";
constexpr std::string_view kRebuildTensorV2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildTensorV3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kRebuildParameterWithState = "torch._utils._rebuild_parameter_with_state";
constexpr std::string_view kRebuildFromType = "torch._tensor._rebuild_from_type_v2";
constexpr std::array kTensorFunctions{kRebuildTensor,    kRebuildTensorV2,           kRebuildTensorV3,
                                      kRebuildParameter, kRebuildParameterWithState, kRebuildFromType};
// Classes whose bytes are those of the tensor inside.
constexpr std::array<std::string_view, 4> kPlainClasses{"torch.Tensor", "torch.nn.parameter.Parameter",
                                                        "torch.nn.parameter.Buffer", "torch._tensor.Tensor"};

// Elements from the first to behind the last one that the strides reach; nullopt if that does not fit.
std::optional<std::uint64_t> reach(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  std::uint64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    std::uint64_t distance = 0;
    if (strides[d] < 0 ||
        __builtin_mul_overflow(static_cast<std::uint64_t>(shape[d] - 1), static_cast<std::uint64_t>(strides[d]),
                               &distance) ||
        __builtin_add_overflow(last, distance, &last))
      return std::nullopt;
  }
  return last + 1;
}

}  // namespace

bool TorchValues::is_tensor(const PickleNode& node) const {
  return std::ranges::find(kTensorFunctions, graph_.called(node)) != kTensorFunctions.end();
}

bool TorchValues::holds_tensors_below(NodeId id, std::size_t depth) {
  const PickleNode& node = graph_.at(id);
  if (is_tensor(node) || depth > kMaxStateDepth) return false;  // what lies deeper is refused anyway
  const bool container = node.kind == Kind::kList || node.kind == Kind::kTuple || node.kind == Kind::kDict ||
                         (node.kind == Kind::kCall && graph_.called(node).starts_with("collections."));
  if (!container) return false;
  const auto [known, is_new] = tensors_below_.try_emplace(id, false);  // a cycle finds this answer
  if (!is_new) return known->second;
  const bool pairs = node.kind == Kind::kDict || node.pairs;
  bool found = false;
  for (std::size_t i = pairs ? 1 : 0; i < node.items.size() && !found; i += pairs ? 2 : 1)
    found = is_tensor(graph_.at(node.items[i])) || holds_tensors_below(node.items[i], depth + 1);
  tensors_below_[id] = found;
  return found;
}

Result<std::vector<std::int64_t>> TorchValues::numbers(NodeId id, const std::string& name) const {
  const PickleNode* node = &graph_.at(id);
  if (graph_.called(*node) == "torch.Size" && graph_.arguments(*node).size() == 1)
    node = &graph_.at(graph_.arguments(*node)[0]);
  if (node->kind != Kind::kTuple && node->kind != Kind::kList) return corrupt(name, "has a shape that is not a tuple");
  std::vector<std::int64_t> found;
  for (const NodeId item : node->items) {
    if (graph_.at(item).kind != Kind::kInt) return corrupt(name, "has a dimension that is not a number");
    found.push_back(graph_.at(item).number);
  }
  return found;
}

Result<TorchValues::Storage> TorchValues::storage(NodeId id, const std::string& name) const {
  const PickleNode& node = graph_.at(id);
  if (node.kind != Kind::kPersistent) return corrupt(name, "has no storage");
  // ("storage", torch.FloatStorage, "0", "cpu", 12)
  const PickleNode& described = graph_.at(node.items[0]);
  if (described.kind != Kind::kTuple || described.items.size() != 5) return corrupt(name, "has no storage");
  const auto part = [&](std::size_t index) -> const PickleNode& { return graph_.at(described.items[index]); };
  if (part(0).text != "storage" || part(1).kind != Kind::kGlobal || part(2).kind != Kind::kText ||
      part(4).kind != Kind::kInt || part(4).number < 0)
    return corrupt(name, "has no storage");
  std::string_view type = part(1).text;
  type.remove_prefix(type.rfind('.') + 1);
  Storage found;
  std::uint64_t item = 1;
  if (type != "UntypedStorage") {
    const auto known = std::ranges::find(kStorageNames, type, &StorageName::name);
    if (known == kStorageNames.end()) {
      return fail(ErrorKind::kUnsupported,
                  fmt::format("tensor '{}' is in a {}, which Slackwater cannot store", name, part(1).text), path_);
    }
    found.dtype = known->dtype;
    item = item_bytes(known->dtype);
  }
  const auto bytes = find_storage_(part(2).text);
  if (!bytes) return corrupt(name, "refers to a record that the file does not have");
  if (static_cast<std::uint64_t>(part(4).number) > bytes->size() / item)
    return corrupt(name, "has a record that is shorter than it says");
  found.bytes = bytes->first(static_cast<std::uint64_t>(part(4).number) * item);
  return found;
}

Result<Tensor> TorchValues::tensor(std::string_view function, const std::vector<NodeId>& arguments,
                                   const std::string& name) const {
  const auto inner_tensor = [&](NodeId id) -> Result<Tensor> {
    const PickleNode& inner = graph_.at(id);
    const std::string_view made_by = graph_.called(inner);
    // Parameters hold plain tensors. Anything deeper is no file of torch.
    if (made_by != kRebuildTensor && made_by != kRebuildTensorV2 && made_by != kRebuildTensorV3)
      return corrupt(name, "is a parameter whose value is not a tensor");
    return tensor(made_by, graph_.arguments(inner), name);
  };
  if (function == kRebuildParameter || function == kRebuildParameterWithState) {
    if (arguments.size() < 3) return corrupt(name, "is a parameter without its tensor");
    return inner_tensor(arguments[0]);
  }
  if (function == kRebuildFromType) {
    // (function, class, arguments of the function, state)
    if (arguments.size() != 4 || graph_.at(arguments[0]).kind != Kind::kGlobal ||
        graph_.at(arguments[1]).kind != Kind::kGlobal || graph_.at(arguments[2]).kind != Kind::kTuple)
      return corrupt(name, "is a tensor without its parts");
    const std::string_view made_as = graph_.at(arguments[1]).text;
    if (std::ranges::find(kPlainClasses, made_as) == kPlainClasses.end())
      return unsupported(name, fmt::format("a tensor of the class {}", made_as));
    const std::string_view inner = graph_.at(arguments[0]).text;
    if (inner == kRebuildFromType) return corrupt(name, "is a tensor of a tensor");
    return tensor(inner, graph_.at(arguments[2]).items, name);
  }
  const bool untyped = function == kRebuildTensorV3;
  const std::size_t needed = function == kRebuildTensor ? 4 : untyped ? 7 : 6;
  if ((function != kRebuildTensor && function != kRebuildTensorV2 && !untyped) || arguments.size() < needed)
    return corrupt(name, "is a tensor without its parts");
  // Bits that say "read me as the conjugate". Nobody else knows them, so the values would be wrong.
  if (arguments.size() > needed && !graph_.at(arguments[needed]).items.empty()) {
    return fail(
        ErrorKind::kUnsupported,
        fmt::format("tensor '{}' is a lazy conjugate or negation; save tensor.resolve_conj().resolve_neg()", name),
        path_);
  }
  SW_ASSIGN(const Storage found, storage(arguments[0], name));
  Tensor made;
  made.name = name;
  if (untyped) {
    const PickleNode& dtype = graph_.at(arguments[6]);
    if (dtype.kind != Kind::kGlobal || !dtype.text.starts_with("torch.")) return corrupt(name, "has no dtype");
    auto known = dtype_from_name(dtype.text.substr(6));
    if (!known) {
      known.error().path = path_;
      known.error().message += fmt::format(" (tensor '{}')", name);
      return fail(std::move(known).error());
    }
    made.dtype = *known;
  } else if (found.dtype) {
    made.dtype = *found.dtype;
  } else {
    made.dtype = DType::kU8;
  }
  SW_ASSIGN(made.shape, numbers(arguments[2], name));
  SW_ASSIGN(made.strides, numbers(arguments[3], name));
  const PickleNode& offset = graph_.at(arguments[1]);
  const auto packed = packed_bytes(made.dtype, made.shape);
  if (offset.kind != Kind::kInt || offset.number < 0 || made.strides.size() != made.shape.size() || !packed)
    return corrupt(name, "has an impossible shape");
  const auto reached = reach(made.shape, made.strides);
  const std::uint64_t items = found.bytes.size() / item_bytes(made.dtype);
  const auto begin = static_cast<std::uint64_t>(offset.number);
  if (*packed > 0 && (!reached || *reached > items || begin > items - *reached))
    return corrupt(name, "reaches beyond its storage");
  if (*packed > 0) made.data = found.bytes.data() + begin * item_bytes(made.dtype);
  if (is_contiguous(made.shape, made.strides)) made.strides.clear();
  return made;
}

}  // namespace slackwater::formats
