#include "tensor_reader.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace slackwater::python {
namespace {

// The table as DLPack 1.3 lays it out. Its header never changes; functions are added at the end within one major
// version.
struct ExchangeHeader {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeHeader* older;  // a table of an earlier major version, or null
};
struct ExchangeTable {
  ExchangeHeader header;
  void (*allocate)();
  void (*export_managed)();
  void (*import_managed)();
  int (*export_borrowed)(void* py_object, nb::dlpack::dltensor* out);
  void (*current_stream)();
};
constexpr std::uint32_t kMajorVersion = 1;
constexpr const char* kCapsuleName = "dlpack_exchange_api";

// Between two saves, the copies of the state push the tensors' own objects out of the processor's caches. Fetching
// them ahead makes reading a thousand tensors a third faster. An object of torch takes about four lines.
constexpr std::size_t kPrefetchAhead = 8;
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kLines = 4;

// An exception of Python that only means "not this way".
struct NotReadable {};

nb::object owned(PyObject* result) {
  if (result == nullptr) {
    PyErr_Clear();
    throw NotReadable{};
  }
  return nb::steal(result);
}

nb::object attribute(nb::handle object, const nb::object& name) {
  return owned(PyObject_GetAttr(object.ptr(), name.ptr()));
}

nb::object call(const nb::object& method, nb::handle object) {
  PyObject* arguments[] = {object.ptr()};
  return owned(PyObject_Vectorcall(method.ptr(), arguments, 1, nullptr));
}

bool is_true(const nb::object& value) { return value.ptr() == Py_True; }

std::optional<int> device_of(const nb::dlpack::dltensor& tensor) {
  if (tensor.device.device_type == nb::device::cpu::value) return kHostDevice;
  if (tensor.device.device_type == nb::device::cuda::value) return tensor.device.device_id;
  return std::nullopt;
}

bool has_layout(const nb::dlpack::dltensor& tensor, const Tensor& known) {
  const std::size_t dimensions = known.shape.size();
  if (tensor.ndim < 0 || static_cast<std::size_t>(tensor.ndim) != dimensions) return false;
  if (dimensions == 0) return true;
  if (tensor.shape == nullptr || tensor.strides == nullptr || known.strides.size() != dimensions) return false;
  return std::equal(known.shape.begin(), known.shape.end(), tensor.shape) &&
         std::equal(known.strides.begin(), known.strides.end(), tensor.strides);
}

bool is_empty(const Tensor& tensor) { return std::ranges::find(tensor.shape, 0) != tensor.shape.end(); }

}  // namespace

TensorReader::TensorReader(const nb::object& tensor_class, const nb::list& classes)
    : is_neg_(tensor_class.attr("is_neg")),
      is_conj_(tensor_class.attr("is_conj")),
      untyped_storage_(tensor_class.attr("untyped_storage")),
      version_(interned("_version")),
      identity_(interned("_cdata")) {
  const nb::object capsule = nb::getattr(tensor_class, "__dlpack_c_exchange_api__", nb::none());
  auto* header = static_cast<ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsuleName));
  if (header == nullptr) {
    PyErr_Clear();
    throw nb::type_error("this is not a DLPack exchange table");
  }
  while (header != nullptr && header->major > kMajorVersion) header = header->older;
  if (header == nullptr || header->major != kMajorVersion) {
    throw nb::type_error("the DLPack exchange table has no version 1");
  }
  from_py_object_ = reinterpret_cast<const ExchangeTable*>(header)->export_borrowed;
  if (from_py_object_ == nullptr) throw nb::type_error("the DLPack exchange table lends no tensors");
  for (const nb::handle one : classes) classes_.push_back(nb::borrow(one));
}

bool TensorReader::is_plain(nb::handle tensor) const {
  const PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
  return std::ranges::any_of(classes_, [&](const nb::object& one) { return one.ptr() == type; });
}

// Whether reading its bytes would not give its values. Only complex tensors can be conjugated.
bool TensorReader::is_turned(nb::handle tensor, DType dtype) const {
  const bool complex = dtype == DType::kC32 || dtype == DType::kC64 || dtype == DType::kC128;
  return is_true(call(is_neg_, tensor)) || (complex && is_true(call(is_conj_, tensor)));
}

nb::object TensorReader::size_of(nb::handle storage) const { return call(nbytes_, storage); }

// Nothing is read here: an address where no object is any more does no harm.
void TensorReader::prefetch(const nb::list& tensors, std::size_t index) const {
  if (index >= tensors.size()) return;
  __builtin_prefetch(tensors[index].ptr());
  if (index >= last_seen_.size()) return;
  for (std::size_t line = 0; line < kLines; ++line) __builtin_prefetch(last_seen_[index] + line * kLineBytes);
}

nb::object TensorReader::read(const Structure& structure, const nb::list& tensors) {
  if (tensors.size() != structure.watched) return nb::none();
  enum Column : std::size_t { kAddress, kStorage, kVersion, kIdentity, kSize, kColumns };
  std::array<nb::object, kColumns> columns;
  for (nb::object& column : columns) column = nb::steal(PyList_New(static_cast<Py_ssize_t>(structure.watched)));
  const auto put = [&columns](Column column, std::size_t index, nb::object value) {
    PyList_SetItem(columns[column].ptr(), static_cast<Py_ssize_t>(index), value.release().ptr());
  };
  std::vector<const char*> seen;
  seen.reserve(structure.watched);
  try {
    for (std::size_t i = 0; i < structure.watched; ++i) {
      if (tensors.size() != structure.watched) return nb::none();  // torch ran code that changed the list
      prefetch(tensors, i + kPrefetchAhead);
      const nb::object tensor = tensors[i];
      if (!is_plain(tensor)) return nb::none();
      // The storage comes first. It keeps the bytes, so that they are there for whoever reads the address.
      nb::object storage = call(untyped_storage_, tensor);
      nb::dlpack::dltensor lent;
      if (from_py_object_(tensor.ptr(), &lent) != 0) {
        PyErr_Clear();
        return nb::none();
      }
      const Tensor& known = structure.tensors[i];
      const auto address = reinterpret_cast<std::uintptr_t>(lent.data) + lent.byte_offset;
      if (dtype_of(lent.dtype) != known.dtype || device_of(lent) != known.device || !has_layout(lent, known) ||
          (lent.data == nullptr && !is_empty(known)) || is_turned(tensor, known.dtype)) {
        return nb::none();
      }
      nb::object identity = attribute(tensor, identity_);
      seen.push_back(reinterpret_cast<const char*>(PyLong_AsSize_t(identity.ptr())));
      put(kAddress, i, nb::int_(address));
      put(kVersion, i, attribute(tensor, version_));
      put(kIdentity, i, std::move(identity));
      if (!nbytes_.is_valid()) nbytes_ = nb::getattr(nb::handle(storage.type()), "nbytes");
      put(kSize, i, size_of(storage));
      put(kStorage, i, std::move(storage));
    }
  } catch (const NotReadable&) {
    return nb::none();
  }
  last_seen_ = std::move(seen);
  return nb::make_tuple(columns[kAddress], columns[kStorage], columns[kVersion], columns[kIdentity], columns[kSize]);
}

bool TensorReader::same(const nb::list& tensors, const nb::list& addresses, const nb::list& storages,
                        const nb::list& versions, const nb::list& identities, const nb::list& sizes) {
  const auto equal = [](const nb::object& now, nb::handle before) {
    const int result = PyObject_RichCompareBool(now.ptr(), before.ptr(), Py_EQ);
    if (result < 0) PyErr_Clear();
    return result == 1;
  };
  const std::size_t count = tensors.size();
  if (!nbytes_.is_valid()) return false;  // read() has not been here
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (tensors.size() != count || addresses.size() < count || storages.size() < count || versions.size() != count ||
          identities.size() != count || sizes.size() != count) {
        return false;
      }
      prefetch(tensors, i + kPrefetchAhead);
      const nb::object tensor = tensors[i];
      nb::dlpack::dltensor lent;
      if (!is_plain(tensor) || from_py_object_(tensor.ptr(), &lent) != 0) {
        PyErr_Clear();
        return false;
      }
      const nb::int_ address(reinterpret_cast<std::uintptr_t>(lent.data) + lent.byte_offset);
      if (!equal(address, addresses[i]) || !equal(attribute(tensor, version_), versions[i]) ||
          !equal(attribute(tensor, identity_), identities[i]) || !equal(size_of(storages[i]), sizes[i])) {
        return false;
      }
    }
  } catch (const NotReadable&) {
    return false;
  }
  return true;
}

void bind_tensor_reader(nb::module_& module) {
  nb::class_<TensorReader>(module, "TensorReader",
                           "Reads plain tensors through the DLPack exchange table of their library.")
      .def(nb::init<const nb::object&, const nb::list&>(), nb::arg("tensor_class"), nb::arg("classes"))
      .def("read", &TensorReader::read, nb::arg("structure"), nb::arg("tensors"),
           nb::sig("def read(self, structure: Structure, tensors: list) -> "
                   "tuple[list[int], list, list[int], list[int], list[int]] | None"),
           "None if a tensor differs from the structure, or is not plain. Otherwise, of each tensor: address, storage, "
           "_version, number of the object behind it, and bytes of its storage.")
      .def("same", &TensorReader::same, nb::arg("tensors"), nb::arg("addresses"), nb::arg("storages"),
           nb::arg("versions"), nb::arg("identities"), nb::arg("sizes"),
           "Whether read() would find the same now. False also if it cannot tell.");
}

}  // namespace slackwater::python
