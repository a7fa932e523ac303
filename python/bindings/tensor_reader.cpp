#include "tensor_reader.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

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

// Between two saves, the copies of the state push the objects of torch out of the processor's caches. Most of the time
// of reading a thousand tensors would be spent on waiting for them. So they are fetched ahead.
constexpr std::size_t kPrefetchAhead = 8;
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kTensorLines = 5;   // the tensor itself, and its version, which was allocated next to it
constexpr std::size_t kStorageLines = 2;  // the storage itself
constexpr std::size_t kWrapperLines = 2;  // the object of Python with the attributes of a DTensor

// Nothing is read.
void fetch_lines(std::uintptr_t address, std::size_t lines) {
  for (std::size_t line = 0; line < lines; ++line) {
    __builtin_prefetch(reinterpret_cast<const char*>(address) + line * kLineBytes);
  }
}

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

bool has_layout(const nb::dlpack::dltensor& tensor, const Structure& structure, const Structure::Layout& known) {
  if (tensor.ndim < 0 || static_cast<std::size_t>(tensor.ndim) != known.dimensions) return false;
  if (dtype_of(tensor.dtype) != known.dtype || device_of(tensor) != known.device) return false;
  if (known.dimensions == 0) return true;
  if (tensor.shape == nullptr || tensor.strides == nullptr || !known.has_strides) return false;
  const std::int64_t* const shape = structure.extents.data() + known.first;
  const std::int64_t* const strides = shape + known.dimensions;
  for (std::size_t i = 0; i < known.dimensions; ++i) {
    if (shape[i] != tensor.shape[i] || strides[i] != tensor.strides[i]) return false;
  }
  return true;
}

}  // namespace

TensorReader::TensorReader(const nb::object& tensor_class, const nb::list& classes, const nb::list& examples)
    : is_neg_(tensor_class.attr("is_neg")),
      is_conj_(tensor_class.attr("is_conj")),
      untyped_storage_(tensor_class.attr("untyped_storage")),
      version_(interned("_version")),
      identity_(interned("_cdata")),
      local_(interned("_local_tensor")),
      spec_(interned("_spec")),
      facts_of_spec_{interned("mesh"), interned("placements"), interned("tensor_meta")} {
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
  learn_shape_place(examples);
}

// Only if every example has its shape inside the object behind it, at the place where the others of as many dimensions
// have theirs.
void TensorReader::learn_shape_place(const nb::list& examples) {
  constexpr std::uintptr_t kLargestObject = 1024;
  std::vector<std::uintptr_t> places;
  try {
    for (const nb::handle example : examples) {
      nb::dlpack::dltensor lent;
      if (!borrow(example, lent) || lent.ndim < 0) return;
      const auto dimensions = static_cast<std::size_t>(lent.ndim);
      const std::uintptr_t place = reinterpret_cast<std::uintptr_t>(lent.shape) - number(attribute(example, identity_));
      if (place >= kLargestObject) return;
      if (dimensions == places.size()) places.push_back(place);
      if (dimensions >= places.size() || places[dimensions] != place) return;
    }
  } catch (const NotReadable&) {
    return;
  }
  shape_places_ = std::move(places);
}

std::uintptr_t TensorReader::identity_of(nb::handle tensor, const nb::dlpack::dltensor& lent) const {
  const auto dimensions = static_cast<std::size_t>(lent.ndim);
  if (dimensions >= shape_places_.size()) return number(attribute(tensor, identity_));
  return reinterpret_cast<std::uintptr_t>(lent.shape) - shape_places_[dimensions];
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

// Its length in bytes, which is quicker to ask for than nbytes().
std::uint64_t TensorReader::size_of(nb::handle storage) {
  const Py_ssize_t size = PyObject_Size(storage.ptr());
  if (size < 0) {
    PyErr_Clear();
    throw NotReadable{};
  }
  return static_cast<std::uint64_t>(size);
}

bool TensorReader::borrow(nb::handle tensor, nb::dlpack::dltensor& lent) const {
  if (is_plain(tensor) && from_py_object_(tensor.ptr(), &lent) == 0) return true;
  PyErr_Clear();
  return false;
}

void TensorReader::prefetch(const nb::list& tensors, std::size_t index) const {
  if (index >= tensors.size()) return;
  __builtin_prefetch(tensors[index].ptr());
  if (index < seen_tensors_.size()) fetch_lines(seen_tensors_[index], kTensorLines);
  if (index < seen_storages_.size()) {
    __builtin_prefetch(seen_storages_[index].object);
    fetch_lines(seen_storages_[index].behind, kStorageLines);
  }
}

void TensorReader::prefetch_wrapper(const nb::list& tensors, std::size_t index) const {
  if (index >= tensors.size()) return;
  fetch_lines(reinterpret_cast<std::uintptr_t>(tensors[index].ptr()), kWrapperLines);
  if (index < seen_wrappers_.size()) fetch_lines(seen_wrappers_[index].behind, kTensorLines);
}

// Another object than before: asks what is behind it.
void TensorReader::learn(Seen& seen, nb::handle object) const {
  if (seen.object != object.ptr()) seen = {object.ptr(), number(attribute(object, identity_))};
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
  seen_storages_.resize(count);
  try {
    for (std::size_t i = 0; i < count; ++i) {
      // torch ran code that changed the list, or read another one
      if (tensors.size() != count || seen_storages_.size() != count) return std::nullopt;
      prefetch(tensors, i + kPrefetchAhead);
      const nb::object tensor = tensors[i];
      if (!is_plain(tensor)) return std::nullopt;
      // The storage comes first. It keeps the bytes, so that they are there for whoever reads the address.
      nb::object storage = call(untyped_storage_, tensor);
      nb::dlpack::dltensor lent;
      if (!borrow(tensor, lent)) return std::nullopt;
      const Structure::Layout& known = structure.layouts[i];
      if (!has_layout(lent, structure, known) || (lent.data == nullptr && !known.empty) ||
          is_turned(tensor, known.dtype)) {
        return std::nullopt;
      }
      reading.addresses.push_back(address_of(lent));
      reading.identities.push_back(identity_of(tensor, lent));
      reading.versions.push_back(static_cast<std::int64_t>(number(attribute(tensor, version_))));
      reading.storage_bytes.push_back(size_of(storage));
      if (i >= seen_storages_.size()) return std::nullopt;  // another thread read a shorter list meanwhile
      learn(seen_storages_[i], storage);
      PyList_SetItem(reading.storages.ptr(), static_cast<Py_ssize_t>(i), storage.release().ptr());
    }
  } catch (const NotReadable&) {
    return std::nullopt;
  }
  seen_tensors_.assign(reading.identities.begin(), reading.identities.end());
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
      if (!borrow(tensor, lent)) return false;
      if (address_of(lent) != before.addresses[i] ||
          static_cast<std::int64_t>(number(attribute(tensor, version_))) != before.versions[i] ||
          identity_of(tensor, lent) != before.identities[i] || size_of(before.storages[i]) != before.storage_bytes[i]) {
        return false;
      }
    }
  } catch (const NotReadable&) {
    return false;
  }
  return true;
}

// Of DTensors

// Facts of the same mesh, placements and global tensor are the same objects almost always, and then quick to compare.
bool TensorReader::lies_as(const nb::object& spec, nb::handle fact) const {
  for (Py_ssize_t field = 0; field < 3; ++field) {
    const nb::object value = attribute(spec, facts_of_spec_[field]);
    const int same = PyObject_RichCompareBool(value.ptr(), PyTuple_GetItem(fact.ptr(), field), Py_EQ);
    if (same < 0) PyErr_Clear();
    if (same != 1) return false;
  }
  return true;
}

nb::object TensorReader::local_tensors(const nb::list& tensors, const nb::list& facts, nb::handle dtensor) {
  nb::list parts, wrappers;
  nb::object spec_before, fact_before;  // most tensors have the spec of the one before
  try {
    if (facts.size() != tensors.size()) return nb::none();
    for (std::size_t i = 0; i < facts.size() && i < tensors.size(); ++i) {
      if (i + kPrefetchAhead < tensors.size())
        fetch_lines(reinterpret_cast<std::uintptr_t>(tensors[i + kPrefetchAhead].ptr()), kWrapperLines);
      const nb::object tensor = tensors[i], fact = facts[i];
      const bool distributed = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) == dtensor.ptr();
      if (distributed == fact.is_none()) return nb::none();
      if (!distributed) {
        if (!is_plain(tensor)) return nb::none();
        parts.append(tensor);
        continue;
      }
      if (!PyTuple_CheckExact(fact.ptr()) || PyTuple_Size(fact.ptr()) != 4) return nb::none();
      nb::object local = attribute(tensor, local_);
      nb::object spec = attribute(tensor, spec_);
      if (!is_plain(local)) return nb::none();
      if ((!fact.is(fact_before) || !spec.is(spec_before)) && !lies_as(spec, fact)) return nb::none();
      spec_before = std::move(spec);
      fact_before = fact;
      parts.append(std::move(local));
      wrappers.append(tensor);
    }
  } catch (const NotReadable&) {
    return nb::none();
  }
  return parts.size() == facts.size() ? nb::object(nb::make_tuple(parts, wrappers)) : nb::none();
}

nb::object TensorReader::step_counters(const nb::dict& state, nb::handle dtensor, const nb::object& is_on_all) {
  nb::list found;
  nb::object mesh_before;
  bool on_all = false;  // of mesh_before
  const auto is_distributed = [&](PyObject* object) {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == dtensor.ptr();
  };
  try {
    for (const auto& [parameter, row] : state) {
      if (!is_distributed(parameter.ptr())) {
        if (!is_plain(parameter)) return nb::none();
        continue;
      }
      nb::object mesh = attribute(attribute(parameter, spec_), facts_of_spec_[0]);
      const nb::object held = nb::borrow(row);  // is_on_all() runs Python, and another thread may drop it meanwhile
      if (!mesh.is(mesh_before)) {
        on_all = nb::cast<bool>(is_on_all(mesh));
        mesh_before = std::move(mesh);
      }
      if (!on_all) continue;
      if (!PyDict_CheckExact(row.ptr())) return nb::none();
      Py_ssize_t position = 0;
      PyObject *key = nullptr, *value = nullptr;
      while (PyDict_Next(row.ptr(), &position, &key, &value) != 0) {
        if (is_distributed(value)) continue;
        nb::dlpack::dltensor lent;
        if (!borrow(value, lent)) return nb::none();
        if (lent.ndim == 0) found.append(nb::handle(value));
      }
    }
  } catch (const NotReadable&) {
    return nb::none();
  }
  return found;
}

nb::object TensorReader::versions(const nb::list& tensors) {
  std::vector<std::int64_t> found;
  found.reserve(tensors.size());
  seen_wrappers_.resize(tensors.size());
  try {
    for (std::size_t i = 0; i < tensors.size() && i < seen_wrappers_.size(); ++i) {
      prefetch_wrapper(tensors, i + kPrefetchAhead);
      const nb::object tensor = tensors[i];
      found.push_back(static_cast<std::int64_t>(number(attribute(tensor, version_))));
      learn(seen_wrappers_[i], tensor);
    }
  } catch (const NotReadable&) {
    return nb::none();
  }
  return nb::bytes(found.data(), found.size() * sizeof(std::int64_t));
}

void bind_tensor_reader(nb::module_& module) {
  nb::class_<TensorReader>(module, "TensorReader",
                           "Reads plain tensors through the DLPack exchange table of their library.")
      .def(nb::init<const nb::object&, const nb::list&, const nb::list&>(), nb::arg("tensor_class"), nb::arg("classes"),
           nb::arg("examples"))
      .def("read", &TensorReader::read, nb::arg("structure"), nb::arg("tensors"),
           "None if a tensor differs from the structure, or is not plain.")
      .def("same", &TensorReader::same, nb::arg("tensors"), nb::arg("before"),
           "Whether read() would find the same now. False also if it cannot tell.")
      .def("local_tensors", &TensorReader::local_tensors, nb::arg("tensors"), nb::arg("facts"), nb::arg("dtensor"),
           nb::sig("def local_tensors(self, tensors: list, facts: list, dtensor: type) -> tuple[list, list] | None"),
           "Of a table with DTensors that lie as the facts say: the tensors of this rank, and the DTensors; None if "
           "one lies otherwise.")
      .def("step_counters", &TensorReader::step_counters, nb::arg("state"), nb::arg("dtensor"), nb::arg("is_on_all"),
           nb::sig("def step_counters(self, state: dict, dtensor: type, is_on_all: "
                   "collections.abc.Callable[[object], bool]) -> list | None"),
           "Of the state of an optimizer: tensors of no dimension that belong to DTensors on all ranks; None if there "
           "is more than tensors in it.")
      .def("versions", &TensorReader::versions, nb::arg("tensors"),
           nb::sig("def versions(self, tensors: list) -> bytes | None"),
           "_version of each, as an array of 64-bit numbers; None if one has none.");

  nb::class_<Reading>(module, "Reading", "What was read of many tensors, one item for each.")
      .def_ro("addresses", &Reading::addresses)
      .def_ro("versions", &Reading::versions)
      .def_ro("identities", &Reading::identities, "Numbers of the objects behind the tensors.")
      .def_ro("sizes", &Reading::storage_bytes, "Bytes of the storages.")
      .def_ro("storages", &Reading::storages, "They hold the bytes.");
}

}  // namespace slackwater::python
