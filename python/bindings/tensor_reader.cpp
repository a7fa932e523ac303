#include "tensor_reader.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

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

// The lowest 64 bits of an int: enough to tell whether it is the same.
std::uint64_t number(const nb::object& value) {
  const std::uint64_t bits = PyLong_AsUnsignedLongLongMask(value.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw NotReadable{};
  }
  return bits;
}

std::uintptr_t address_of(const nb::dlpack::dltensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
}

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

std::uint64_t TensorReader::size_of(nb::handle storage) const { return number(call(nbytes_, storage)); }

// Nothing is read here: an address where no object is any more does no harm.
void TensorReader::prefetch(const nb::list& tensors, std::size_t index) const {
  if (index >= tensors.size()) return;
  __builtin_prefetch(tensors[index].ptr());
  if (index >= last_seen_.size()) return;
  const auto* const object = reinterpret_cast<const char*>(last_seen_[index]);
  for (std::size_t line = 0; line < kLines; ++line) __builtin_prefetch(object + line * kLineBytes);
}

std::optional<Reading> TensorReader::read(const Structure& structure, const nb::list& tensors) {
  const std::size_t count = structure.watched;
  if (tensors.size() != count) return std::nullopt;
  Reading reading;
  reading.addresses.reserve(count);
  reading.versions.reserve(count);
  reading.identities.reserve(count);
  reading.storage_bytes.reserve(count);
  reading.storages = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (tensors.size() != count) return std::nullopt;  // torch ran code that changed the list
      prefetch(tensors, i + kPrefetchAhead);
      const nb::object tensor = tensors[i];
      if (!is_plain(tensor)) return std::nullopt;
      // The storage comes first. It keeps the bytes, so that they are there for whoever reads the address.
      nb::object storage = call(untyped_storage_, tensor);
      nb::dlpack::dltensor lent;
      if (from_py_object_(tensor.ptr(), &lent) != 0) {
        PyErr_Clear();
        return std::nullopt;
      }
      const Tensor& known = structure.tensors[i];
      if (dtype_of(lent.dtype) != known.dtype || device_of(lent) != known.device || !has_layout(lent, known) ||
          (lent.data == nullptr && !is_empty(known)) || is_turned(tensor, known.dtype)) {
        return std::nullopt;
      }
      if (!nbytes_.is_valid()) nbytes_ = nb::getattr(nb::handle(storage.type()), "nbytes");
      reading.addresses.push_back(address_of(lent));
      reading.identities.push_back(number(attribute(tensor, identity_)));
      reading.versions.push_back(static_cast<std::int64_t>(number(attribute(tensor, version_))));
      reading.storage_bytes.push_back(size_of(storage));
      PyList_SetItem(reading.storages.ptr(), static_cast<Py_ssize_t>(i), storage.release().ptr());
    }
  } catch (const NotReadable&) {
    return std::nullopt;
  }
  last_seen_.assign(reading.identities.begin(), reading.identities.end());
  return reading;
}

bool TensorReader::same(const nb::list& tensors, const Reading& before) {
  const std::size_t count = before.addresses.size();
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (tensors.size() != count || before.storages.size() < count) return false;
      prefetch(tensors, i + kPrefetchAhead);
      const nb::object tensor = tensors[i];
      nb::dlpack::dltensor lent;
      if (!is_plain(tensor) || from_py_object_(tensor.ptr(), &lent) != 0) {
        PyErr_Clear();
        return false;
      }
      if (address_of(lent) != before.addresses[i] ||
          static_cast<std::int64_t>(number(attribute(tensor, version_))) != before.versions[i] ||
          number(attribute(tensor, identity_)) != before.identities[i] ||
          size_of(before.storages[i]) != before.storage_bytes[i]) {
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
           "None if a tensor differs from the structure, or is not plain.")
      .def("same", &TensorReader::same, nb::arg("tensors"), nb::arg("before"),
           "Whether read() would find the same now. False also if it cannot tell.");

  nb::class_<Reading>(module, "Reading", "What was read of many tensors, one item for each.")
      .def_ro("addresses", &Reading::addresses)
      .def_ro("versions", &Reading::versions)
      .def_ro("identities", &Reading::identities, "Numbers of the objects behind the tensors.")
      .def_ro("sizes", &Reading::storage_bytes, "Bytes of the storages.")
      .def_ro("storages", &Reading::storages, "They hold the bytes.");
}

}  // namespace slackwater::python
