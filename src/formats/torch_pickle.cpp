#include "formats/torch_pickle.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "base/result.hpp"
#include "formats/crc32.hpp"
#include "formats/tensor_names.hpp"

namespace slackwater::formats {
namespace {

struct TypedStorageName {
  DType dtype;
  std::string_view name;
};
// Types that torch pickles with a storage class of their own. The others are untyped, with their dtype beside them.
constexpr std::array kTypedStorages = {
    TypedStorageName{DType::kF64, "DoubleStorage"},
    TypedStorageName{DType::kF32, "FloatStorage"},
    TypedStorageName{DType::kF16, "HalfStorage"},
    TypedStorageName{DType::kBF16, "BFloat16Storage"},
    TypedStorageName{DType::kI64, "LongStorage"},
    TypedStorageName{DType::kI32, "IntStorage"},
    TypedStorageName{DType::kI16, "ShortStorage"},
    TypedStorageName{DType::kI8, "CharStorage"},
    TypedStorageName{DType::kU8, "ByteStorage"},
    TypedStorageName{DType::kBool, "BoolStorage"},
    TypedStorageName{DType::kC128, "ComplexDoubleStorage"},
    TypedStorageName{DType::kC64, "ComplexFloatStorage"},
};

constexpr std::array<std::string_view, 8> kDefaultFactories{"None", "list",  "dict", "set",
                                                            "int",  "float", "str",  "tuple"};
constexpr std::array<std::string_view, 4> kPathClasses{"PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath"};

class ValueWriter {
 public:
  ValueWriter(PickleWriter& out, const FindTensor& find_tensor, BeyondWeightsOnly& beyond)
      : out_(out), find_tensor_(find_tensor), beyond_(beyond) {}

  Status write(const TreeNode& node, const std::string& name) {
    switch (node.kind) {
      case TreeNode::Kind::kNull: out_.none(); return {};
      case TreeNode::Kind::kBool: out_.boolean(node.truth); return {};
      case TreeNode::Kind::kInt: out_.integer(node.number); return {};
      case TreeNode::Kind::kFloat: out_.real(node.real); return {};
      case TreeNode::Kind::kText: return write_text(node.text, name);
      case TreeNode::Kind::kList: return write_list(node, name);
      case TreeNode::Kind::kObject: break;
    }
    const std::string_view tag = node.tag();
    if (tag.empty()) return write_object(node, name);
    if (node.is_tensor()) {
      SW_ASSIGN(const PickledTensor tensor, find_tensor_(node.tensor_name()));
      write_tensor(out_, tensor);
      return {};
    }
    if (tag == "Ellipsis") return write_global(name, "builtins", "Ellipsis");
    if (tag == "enum" || tag == "namedtuple" || tag == "pickle")
      return unsupported(name, fmt::format("a value of the kind '{}'", tag));
    const TreeNode* value = node.find("v");
    if (value == nullptr) return malformed(name, tag);
    if (tag == "object" || tag == "subclass") return write(*value, name);
    if (value->kind == TreeNode::Kind::kText) return write_texted(tag, value->text, node, name);
    if (tag == "Namespace" || tag == "SimpleNamespace") return write_namespace(tag, *value, name);
    if (tag == "path") return write_path(node, *value, name);
    if (value->kind == TreeNode::Kind::kList) return write_listed(tag, *value, node, name);
    return malformed(name, tag);
  }

 private:
  std::unexpected<Error> malformed(const std::string& name, std::string_view tag) const {
    return fail(ErrorKind::kCorrupt,
                fmt::format("the tree of the checkpoint holds a malformed value of the kind '{}' at '{}'", tag, name));
  }
  std::unexpected<Error> unsupported(const std::string& name, std::string_view what) const {
    return fail(ErrorKind::kUnsupported,
                fmt::format("'{}' is {}, which has no safe form in a pickle; leave it out with --exclude '{}'", name,
                            what, name));
  }
  void note(const std::string& name, std::string_view module, std::string_view type) {
    beyond_.emplace(name, fmt::format("{}.{}", module, type));
  }

  Status write_text(const std::string& text, const std::string& name) {
    if (text.size() > UINT32_MAX) return unsupported(name, "a text of more than 4 GiB");
    out_.text(text);
    return {};
  }
  Status write_items(const TreeNode& list, const std::string& name) {
    out_.mark();
    for (std::size_t i = 0; i < list.items.size(); ++i)
      SW_TRY(write(list.items[i], join_name(name, fmt::format("{}", i))));
    return {};
  }
  Status write_list(const TreeNode& list, const std::string& name) {
    out_.empty_list();
    SW_TRY(write_items(list, name));
    out_.append_items();
    return {};
  }
  Status write_tuple(const TreeNode& list, const std::string& name) {
    SW_TRY(write_items(list, name));
    out_.tuple();
    return {};
  }
  Status write_object(const TreeNode& node, const std::string& name) {
    out_.empty_dict();
    out_.mark();
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      SW_TRY(write_text(node.keys[i], name));
      SW_TRY(write(node.items[i], join_name(name, node.keys[i])));
    }
    out_.set_items();
    return {};
  }
  // Keys and values into the dict that was written last.
  Status write_pairs(std::string_view tag, const TreeNode& list, const std::string& name) {
    out_.mark();
    for (const TreeNode& pair : list.items) {
      if (pair.kind != TreeNode::Kind::kList || pair.items.size() != 2) return malformed(name, tag);
      SW_TRY(write(pair.items[0], name + " (a key)"));
      SW_TRY(write(pair.items[1], join_name(name, name_segment(pair.items[0]))));
    }
    out_.set_items();
    return {};
  }
  // module.type(), or module.type(items of the list).
  void write_empty(std::string_view module, std::string_view type) {
    out_.global(module, type);
    out_.empty_tuple();
    out_.call();
  }
  Status write_call(std::string_view module, std::string_view type, const TreeNode& list, const std::string& name) {
    note(name, module, type);
    out_.global(module, type);
    SW_TRY(write_tuple(list, name));
    out_.call();
    return {};
  }
  void call_with_text(std::string_view module, std::string_view type, std::string_view text) {
    out_.global(module, type);
    out_.mark();
    out_.text(text);
    out_.tuple();
    out_.call();
  }
  Status write_global(const std::string& name, std::string_view module, std::string_view type) {
    note(name, module, type);
    out_.global(module, type);
    return {};
  }
  // module.type(items as a list).
  Status write_collection(std::string_view module, std::string_view type, const TreeNode& list,
                          const std::string& name) {
    out_.global(module, type);
    out_.mark();
    SW_TRY(write_list(list, name));
    return {};
  }

  // Values that are one text in the tree.
  Status write_texted(std::string_view tag, const std::string& text, const TreeNode& node, const std::string& name) {
    std::string bytes;
    if (tag == "int") return write_big_integer(text, name);
    if (tag == "float") {
      SW_ASSIGN(const double value, float_of(text, name));
      out_.real(value);
      return {};
    }
    if (tag == "str" || tag == "bytes" || tag == "bytearray" || tag == "np") {
      if (!from_base64(text, bytes)) return malformed(name, tag);
      if (tag == "str") return write_text(bytes, name);
      if (tag == "bytes") return out_.bytes(bytes), Status();
      if (tag == "np") return write_numpy_scalar(bytes, node, name);
      out_.global("__builtin__", "bytearray");
      out_.mark();
      out_.text(latin1_text(bytes));
      out_.text("latin-1");
      out_.tuple();
      out_.call();
      return {};
    }
    if (tag == "torch") {
      const auto dtype = dtype_from_name(text);
      if (!dtype) return unsupported(name, fmt::format("torch.{}", text));
      write_dtype(out_, *dtype);
      return {};
    }
    if (tag == "torch.device") return call_with_text("torch", "device", text), Status();
    if (tag == "Decimal" || tag == "UUID") {
      const std::string_view module = tag == "UUID" ? "uuid" : "decimal";
      note(name, module, tag);
      return call_with_text(module, tag, text), Status();
    }
    if (tag == "np.dtype") {
      note(name, "numpy", "dtype");
      return call_with_text("numpy", "dtype", text), Status();
    }
    if (tag == "path") return write_path(node, TreeNode::string(text), name);
    if (tag == "date" || tag == "datetime" || tag == "time") return write_time(tag, text, name);
    return unsupported(name, fmt::format("a value of the kind '{}'", tag));
  }

  // Values that are a list in the tree.
  Status write_listed(std::string_view tag, const TreeNode& list, const TreeNode& node, const std::string& name) {
    if (tag == "tuple") return write_tuple(list, name);
    if (tag == "dict") return out_.empty_dict(), write_pairs(tag, list, name);
    if (tag == "OrderedDict") return write_empty("collections", "OrderedDict"), write_pairs(tag, list, name);
    if (tag == "Counter") {
      out_.global("collections", "Counter");
      out_.mark();
      out_.empty_dict();
      SW_TRY(write_pairs(tag, list, name));
      out_.tuple();
      out_.call();
      return {};
    }
    if (tag == "defaultdict") {
      const TreeNode* factory = node.find("factory");
      if (factory == nullptr || std::ranges::find(kDefaultFactories, factory->text) == kDefaultFactories.end())
        return malformed(name, tag);
      note(name, "collections", "defaultdict");
      out_.global("collections", "defaultdict");
      out_.mark();
      factory->text == "None" ? out_.none() : out_.global("__builtin__", factory->text);
      out_.tuple();
      out_.call();
      return write_pairs(tag, list, name);
    }
    if (tag == "set" || tag == "frozenset") {
      if (tag == "frozenset") note(name, "builtins", tag);
      SW_TRY(write_collection("__builtin__", tag, list, name));
      out_.tuple();
      out_.call();
      return {};
    }
    if (tag == "deque") {
      const TreeNode* limit = node.find("maxlen");
      note(name, "collections", "deque");
      SW_TRY(write_collection("collections", "deque", list, name));
      limit != nullptr && limit->kind == TreeNode::Kind::kInt ? out_.integer(limit->number) : out_.none();
      out_.tuple();
      out_.call();
      return {};
    }
    if (tag == "torch.Size") {
      std::vector<std::int64_t> sizes;
      for (const TreeNode& item : list.items) sizes.push_back(item.number);
      write_size(out_, sizes);
      return {};
    }
    if (tag == "complex") {
      if (list.items.size() != 2) return malformed(name, tag);
      SW_ASSIGN(const double real, float_of(list.items[0].text, name));
      SW_ASSIGN(const double imaginary, float_of(list.items[1].text, name));
      out_.global("__builtin__", "complex");
      out_.mark();
      out_.real(real);
      out_.real(imaginary);
      out_.tuple();
      out_.call();
      return {};
    }
    if (tag == "range") return write_call("__builtin__", "xrange", list, name);  // Python 3 reads it as range
    if (tag == "slice") return write_call("__builtin__", "slice", list, name);
    if (tag == "timedelta") return write_call("datetime", "timedelta", list, name);
    if (tag == "Fraction") return write_call("fractions", "Fraction", list, name);
    return unsupported(name, fmt::format("a value of the kind '{}'", tag));
  }

  Status write_namespace(std::string_view tag, const TreeNode& value, const std::string& name) {
    if (!value.tag().empty() || value.kind != TreeNode::Kind::kObject) return malformed(name, tag);
    const std::string_view module = tag == "Namespace" ? "argparse" : "types";
    note(name, module, tag);
    write_empty(module, tag);
    SW_TRY(write_object(value, name));
    out_.set_state();
    return {};
  }

  Status write_path(const TreeNode& node, const TreeNode& value, const std::string& name) {
    const TreeNode* kind = node.find("class");
    if (kind == nullptr || std::ranges::find(kPathClasses, kind->text) == kPathClasses.end())
      return malformed(name, "path");
    note(name, "pathlib", kind->text);
    out_.global("pathlib", kind->text);
    out_.mark();
    SW_TRY(write(value, name));
    out_.tuple();
    out_.call();
    return {};
  }

  // datetime.date.fromisoformat(text), as getattr(date, "fromisoformat")(text).
  Status write_time(std::string_view type, const std::string& text, const std::string& name) {
    note(name, "datetime", type);
    out_.global("__builtin__", "getattr");
    out_.mark();
    out_.global("datetime", type);
    out_.text("fromisoformat");
    out_.tuple();
    out_.call();
    out_.mark();
    out_.text(text);
    out_.tuple();
    out_.call();
    return {};
  }

  // numpy.frombuffer(bytes, dtype)[0].
  Status write_numpy_scalar(const std::string& bytes, const TreeNode& node, const std::string& name) {
    const TreeNode* dtype = node.find("dtype");
    if (dtype == nullptr || dtype->kind != TreeNode::Kind::kText) return malformed(name, "np");
    note(name, "numpy", "generic");
    out_.global("operator", "getitem");
    out_.mark();
    out_.global("numpy", "frombuffer");
    out_.mark();
    out_.bytes(bytes);
    call_with_text("numpy", "dtype", dtype->text);
    out_.tuple();
    out_.call();
    out_.integer(0);
    out_.tuple();
    out_.call();
    return {};
  }

  Status write_big_integer(std::string_view text, const std::string& name) {
    constexpr std::size_t kMostDigits = 500;
    std::string_view digits = text;
    if (digits.starts_with('-')) digits.remove_prefix(1);
    const bool prefixed = digits.starts_with("0x");
    if (prefixed) digits.remove_prefix(2);
    if (!prefixed || digits.empty() || digits.find_first_not_of("0123456789abcdef") != std::string_view::npos)
      return malformed(name, "int");
    if (digits.size() > kMostDigits) return unsupported(name, "a number of more than 500 hexadecimal digits");
    out_.hex_integer(text);
    return {};
  }

  Result<double> float_of(const std::string& text, const std::string& name) const {
    if (text.starts_with("nan:")) {
      char* end = nullptr;
      const std::uint64_t bits = std::strtoull(text.c_str() + 4, &end, 16);
      if (text.size() != 20 || *end != '\0') return malformed(name, "float");
      return std::bit_cast<double>(bits);
    }
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') return malformed(name, "float");
    return value;
  }

  PickleWriter& out_;
  const FindTensor& find_tensor_;
  BeyondWeightsOnly& beyond_;
};

void write_numbers(PickleWriter& out, std::span<const std::int64_t> numbers) {
  out.mark();
  for (const std::int64_t number : numbers) out.integer(number);
  out.tuple();
}

}  // namespace

Status write_value(PickleWriter& out, const TreeNode& node, const std::string& name, const FindTensor& find_tensor,
                   BeyondWeightsOnly& beyond) {
  return ValueWriter(out, find_tensor, beyond).write(node, name);
}

void write_dtype(PickleWriter& out, DType dtype) { out.global("torch", dtype_name(dtype)); }

void write_size(PickleWriter& out, std::span<const std::int64_t> dimensions) {
  out.global("torch", "Size");
  out.mark();
  write_numbers(out, dimensions);
  out.tuple();
  out.call();
}

void write_tensor(PickleWriter& out, const PickledTensor& tensor) {
  const auto typed = std::ranges::find(kTypedStorages, tensor.dtype, &TypedStorageName::dtype);
  const bool untyped = typed == kTypedStorages.end();
  std::vector<std::int64_t> strides(tensor.shape.size());
  std::int64_t items = 1;
  for (std::size_t d = tensor.shape.size(); d-- > 0;) {
    strides[d] = items;
    items *= std::max<std::int64_t>(tensor.shape[d], 1);
  }
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) items = 0;
  out.global("torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  out.mark();
  out.mark();
  out.text("storage");
  untyped ? out.global("torch.storage", "UntypedStorage") : out.global("torch", typed->name);
  out.text(fmt::format("{}", tensor.storage));
  out.text("cpu");
  out.integer(untyped ? items * item_bytes(tensor.dtype) : items);
  out.tuple();
  out.persistent();
  out.integer(0);  // offset in the storage
  write_numbers(out, tensor.shape);
  write_numbers(out, strides);
  out.boolean(false);                        // requires_grad
  out.global("collections", "OrderedDict");  // hooks
  out.empty_tuple();
  out.call();
  if (untyped) write_dtype(out, tensor.dtype);
  out.tuple();
  out.call();
}

TorchArchiveLayout::TorchArchiveLayout(std::string pickle, std::span<const std::uint64_t> storage_bytes)
    : small_{std::move(pickle), "little", "3\n"} {
  zip_.add("archive/data.pkl", small_[0].size());
  first_ = 1 + zip_.add("archive/byteorder", small_[1].size());
  for (std::size_t i = 0; i < storage_bytes.size(); ++i) zip_.add(fmt::format("archive/data/{}", i), storage_bytes[i]);
  zip_.add("archive/version", small_[2].size());
  zip_.finish();
}

Status TorchArchiveLayout::write_rest(std::span<const std::uint32_t> storage_crcs, const Write& write) const {
  std::vector<std::uint32_t> crcs;
  const auto crc_of = [](const std::string& text) { return crc32(std::as_bytes(std::span(text))); };
  crcs.push_back(crc_of(small_[0]));
  crcs.push_back(crc_of(small_[1]));
  crcs.insert(crcs.end(), storage_crcs.begin(), storage_crcs.end());
  crcs.push_back(crc_of(small_[2]));
  for (std::size_t i = 0; i < zip_.count(); ++i) SW_TRY(write(zip_.header_offset(i), zip_.header(i, crcs[i])));
  SW_TRY(write(zip_.data_offset(0), small_[0]));
  SW_TRY(write(zip_.data_offset(1), small_[1]));
  SW_TRY(write(zip_.data_offset(zip_.count() - 1), small_[2]));
  return write(zip_.tail_offset(), zip_.tail(crcs));
}

}  // namespace slackwater::formats
