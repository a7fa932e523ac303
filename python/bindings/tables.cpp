// Tables of tensors, and modules, that look as they did at the save before: their keys are compared with what is kept
// of them. The rules of what a table is stand in python/slackwater/state/tables.py, those of modules in
// integrations/torch_modules.py. Here is only the quick answer for the common case, that nothing has changed. Any other
// case is None, and Python looks for itself.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings.hpp"

namespace slackwater::python {
namespace {

// An item of a list or a tuple, or null.
PyObject* item(nb::handle sequence, std::size_t index) {
  const auto at = static_cast<Py_ssize_t>(index);
  return PyTuple_Check(sequence.ptr()) ? PyTuple_GetItem(sequence.ptr(), at) : PyList_GetItem(sequence.ptr(), at);
}

// Of keys, which are str and int exactly: comparing them runs no code of others.
bool is_same_key(PyObject* key, PyObject* known) {
  if (key == known) return true;
  if (Py_TYPE(key) != Py_TYPE(known) || !(PyUnicode_CheckExact(key) || PyLong_CheckExact(key))) return false;
  return PyObject_RichCompareBool(key, known, Py_EQ) == 1;
}

bool is_one_of(PyObject* object, const nb::tuple& classes) {
  for (const nb::handle one : classes) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) == one.ptr()) return true;
  }
  return false;
}

// Objects that a dict holds, not touched yet. Between two saves they have left the processor's caches: so they are all
// collected first, and fetched ahead of the first look at each. No code of Python may run meanwhile.
using Borrowed = std::vector<PyObject*>;
constexpr std::size_t kFetchedAhead = 16;

void fetch(const Borrowed& objects, std::size_t index) {
  if (index < objects.size()) __builtin_prefetch(objects[index]);
}

// None if one is not of these classes. The list is made once they are all held: making it may collect garbage, and what
// that runs may take them out of their dicts.
nb::object list_of(const Borrowed& objects, const nb::tuple& classes) {
  std::vector<nb::object> held;
  held.reserve(objects.size());
  for (std::size_t i = 0; i < kFetchedAhead; ++i) fetch(objects, i);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    fetch(objects, i + kFetchedAhead);
    if (!is_one_of(objects[i], classes)) return nb::none();
    held.push_back(nb::borrow(objects[i]));
  }
  nb::list result = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(held.size())));
  if (!result.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < held.size(); ++i)
    PyList_SetItem(result.ptr(), static_cast<Py_ssize_t>(i), held[i].release().ptr());
  return result;
}

// Appends the values of one dict. False if its keys are not these, in this order.
bool append_row(nb::handle row, nb::handle keys, Borrowed& values) {
  if (!PyDict_CheckExact(row.ptr()) || !PyTuple_CheckExact(keys.ptr()) ||
      PyDict_Size(row.ptr()) != PyTuple_Size(keys.ptr())) {
    return false;
  }
  Py_ssize_t position = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (std::size_t i = 0; PyDict_Next(row.ptr(), &position, &key, &value) != 0; ++i) {
    if (!is_same_key(key, item(keys, i))) return false;
    values.push_back(value);
  }
  return true;
}

// The same of many.
nb::object tensors_of(const Borrowed& rows, nb::handle columns, const nb::tuple& classes) {
  Borrowed values;
  values.reserve(rows.size() * 4);
  for (std::size_t i = 0; i < kFetchedAhead; ++i) fetch(rows, i);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    fetch(rows, i + kFetchedAhead);
    if (!append_row(rows[i], item(columns, i), values)) return nb::none();
  }
  return list_of(values, classes);
}

// `keys` are those that tables.rows_of() gives: of a dict of tensors, or a pair for a dict of dicts of tensors.
nb::object table_tensors(const nb::dict& mapping, const nb::tuple& keys, const nb::tuple& classes) {
  Borrowed found;
  if (keys.size() == 0 || !PyDict_CheckExact(mapping.ptr())) return nb::none();
  if (!PyTuple_CheckExact(item(keys, 0))) {
    return append_row(mapping, keys, found) ? list_of(found, classes) : nb::none();
  }
  if (keys.size() != 2) return nb::none();
  const nb::handle names = item(keys, 0), columns = item(keys, 1);
  const auto count = static_cast<std::size_t>(PyDict_Size(mapping.ptr()));
  if (!PyTuple_CheckExact(columns.ptr()) || nb::len(names) != count || nb::len(columns) != count) return nb::none();
  Py_ssize_t position = 0;
  PyObject *key = nullptr, *row = nullptr;
  for (std::size_t i = 0; PyDict_Next(mapping.ptr(), &position, &key, &row) != 0; ++i) {
    if (!is_same_key(key, item(names, i))) return nb::none();
    found.push_back(row);
  }
  return tensors_of(found, columns, classes);
}

// The rows of an optimizer's state, whose keys are parameters: the caller has compared those.
nb::object row_tensors(const nb::dict& mapping, const nb::tuple& columns, const nb::tuple& classes) {
  Borrowed rows;
  if (columns.size() != static_cast<std::size_t>(PyDict_Size(mapping.ptr()))) return nb::none();
  rows.reserve(columns.size());
  Py_ssize_t position = 0;
  PyObject *key = nullptr, *row = nullptr;
  while (PyDict_Next(mapping.ptr(), &position, &key, &row) != 0) rows.push_back(row);
  return tensors_of(rows, columns, classes);
}

// The numbers by which id() knows the items of a list, or the keys of a dict, one after the other.
nb::bytes object_ids(nb::handle objects) {
  const bool is_list = PyList_Check(objects.ptr());
  if (!is_list && !PyDict_Check(objects.ptr())) throw nb::type_error("object_ids() takes a list or a dict");
  std::vector<PyObject*> found;
  found.reserve(nb::len(objects));
  if (is_list) {
    for (Py_ssize_t i = 0; i < PyList_Size(objects.ptr()); ++i) found.push_back(PyList_GetItem(objects.ptr(), i));
  } else {
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(objects.ptr(), &position, &key, &value) != 0) found.push_back(key);
  }
  return nb::bytes(found.data(), found.size() * sizeof(PyObject*));
}

// Where the objects of one list stand in another, as numbers of 32 bits.
nb::bytes positions(const nb::list& objects, const nb::list& wanted) {
  std::vector<PyObject*> sorted(wanted.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) sorted[i] = item(wanted, i);
  std::ranges::sort(sorted);
  std::vector<std::uint32_t> found;
  for (std::size_t i = 0; !sorted.empty() && i < objects.size(); ++i) {
    if (std::ranges::binary_search(sorted, item(objects, i))) found.push_back(static_cast<std::uint32_t>(i));
  }
  return nb::bytes(found.data(), found.size() * sizeof(std::uint32_t));
}

// Walks a module as torch_state.module_layers() did, and compares each layer with what that has found.
class ModuleWalk {
 public:
  ModuleWalk(const nb::tuple& classes, const nb::object& run_hooks) : classes_(classes), run_hooks_(run_hooks) {}

  // `layers`: of each layer its class, and the keys of its parameters, of its persistent buffers, and of its children.
  nb::object tensors(const nb::object& module, const nb::tuple& layers) {
    std::vector<nb::object> open{module};
    std::size_t number = 0;
    for (; !open.empty(); ++number) {
      const nb::object layer = std::move(open.back());
      open.pop_back();
      if (number == layers.size() || !add(layer, item(layers, number), open)) {
        PyErr_Clear();
        return nb::none();
      }
    }
    return number == layers.size() ? nb::object(tensors_) : nb::none();
  }

 private:
  [[nodiscard]] bool add(const nb::object& layer, nb::handle known, std::vector<nb::object>& open) {
    if (!PyTuple_CheckExact(known.ptr()) || PyTuple_Size(known.ptr()) != 4) return false;
    if (reinterpret_cast<PyObject*>(Py_TYPE(layer.ptr())) != item(known, 0) || !is_plain(layer)) return false;
    return add_parameters(layer, item(known, 1)) && add_buffers(layer, item(known, 2)) &&
           open_children(layer, item(known, 3), open);
  }

  // Whether state_dict() would call nothing but hooks that `run_hooks` knows, and has called.
  [[nodiscard]] bool is_plain(const nb::object& layer) const {
    for (const nb::object& name : never_) {
      if (size_of(layer, name) != 0) return false;
    }
    const nb::object own = nb::steal(PyObject_GenericGetDict(layer.ptr(), nullptr));
    if (!own.is_valid()) return false;
    for (const nb::object& name : methods_) {
      if (PyDict_Contains(own.ptr(), name.ptr()) != 0) return false;
    }
    bool hooked = false;
    for (const nb::object& name : hooks_) {
      const Py_ssize_t size = size_of(layer, name);
      if (size < 0) return false;
      hooked = hooked || size > 0;
    }
    if (!hooked) return true;
    const nb::object ran = nb::steal(PyObject_CallFunctionObjArgs(run_hooks_.ptr(), layer.ptr(), nullptr));
    if (!ran.is_valid()) throw nb::python_error();
    return ran.ptr() == Py_True;
  }

  [[nodiscard]] bool add_parameters(const nb::object& layer, nb::handle keys) {
    const nb::object parameters = dict_of(layer, parameters_);
    if (!parameters.is_valid()) return false;
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    Borrowed found;
    while (PyDict_Next(parameters.ptr(), &position, &key, &value) != 0) {
      if (value == Py_None) continue;
      if (!is_key(key, keys, static_cast<Py_ssize_t>(found.size()))) return false;
      found.push_back(value);
    }
    if (static_cast<Py_ssize_t>(found.size()) != PyTuple_Size(keys.ptr())) return false;
    for (std::size_t i = 0; i < kFetchedAhead; ++i) fetch(found, i);
    for (std::size_t i = 0; i < found.size(); ++i) {
      fetch(found, i + kFetchedAhead);
      if (!is_one_of(found[i], classes_)) return false;
      tensors_.append(nb::handle(found[i]));
    }
    return true;
  }

  [[nodiscard]] bool add_buffers(const nb::object& layer, nb::handle keys) {
    const nb::object buffers = dict_of(layer, buffers_);
    const nb::object transient = nb::steal(PyObject_GetAttr(layer.ptr(), transient_.ptr()));
    if (!buffers.is_valid() || !transient.is_valid() || !PySet_Check(transient.ptr())) return false;
    const bool any_transient = PySet_Size(transient.ptr()) > 0;
    Py_ssize_t position = 0, count = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(buffers.ptr(), &position, &key, &value) != 0) {
      if (value == Py_None || (any_transient && PySet_Contains(transient.ptr(), key) != 0)) continue;
      if (!add_tensor(key, value, keys, count++)) return false;
    }
    return PyErr_Occurred() == nullptr && count == PyTuple_Size(keys.ptr());
  }

  [[nodiscard]] bool open_children(const nb::object& layer, nb::handle keys, std::vector<nb::object>& open) const {
    const nb::object children = dict_of(layer, children_);
    if (!children.is_valid()) return false;
    const auto first = static_cast<std::ptrdiff_t>(open.size());
    Py_ssize_t position = 0, count = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(children.ptr(), &position, &key, &value) != 0) {
      if (value == Py_None) continue;
      if (count == PyTuple_Size(keys.ptr()) || !is_same_key(key, item(keys, static_cast<std::size_t>(count++))))
        return false;
      open.push_back(nb::borrow(value));
    }
    std::reverse(open.begin() + first, open.end());  // the first child is walked next
    return count == PyTuple_Size(keys.ptr());
  }

  [[nodiscard]] static bool is_key(PyObject* key, nb::handle keys, Py_ssize_t number) {
    return number < PyTuple_Size(keys.ptr()) && is_same_key(key, item(keys, static_cast<std::size_t>(number)));
  }

  [[nodiscard]] bool add_tensor(PyObject* key, PyObject* value, nb::handle keys, Py_ssize_t number) {
    if (!is_key(key, keys, number) || !is_one_of(value, classes_)) return false;
    tensors_.append(nb::handle(value));
    return true;
  }

  // Null if it is no dict, or one that may iterate in an order of its own.
  [[nodiscard]] static nb::object dict_of(const nb::object& layer, const nb::object& name) {
    nb::object found = nb::steal(PyObject_GetAttr(layer.ptr(), name.ptr()));
    return found.is_valid() && PyDict_CheckExact(found.ptr()) ? found : nb::object();
  }

  // Of a dict, as hooks are kept in; -1 if it is none.
  [[nodiscard]] static Py_ssize_t size_of(const nb::object& layer, const nb::object& name) {
    const nb::object found = nb::steal(PyObject_GetAttr(layer.ptr(), name.ptr()));
    return found.is_valid() && PyDict_Check(found.ptr()) ? PyDict_Size(found.ptr()) : -1;
  }

  const nb::tuple& classes_;
  const nb::object& run_hooks_;
  nb::list tensors_;
  const nb::object parameters_ = interned("_parameters"), buffers_ = interned("_buffers");
  const nb::object children_ = interned("_modules"), transient_ = interned("_non_persistent_buffers_set");
  const nb::object never_[2] = {interned("_state_dict_hooks"), interned("_load_state_dict_post_hooks")};
  const nb::object hooks_[2] = {interned("_state_dict_pre_hooks"), interned("_load_state_dict_pre_hooks")};
  const nb::object methods_[2] = {interned("state_dict"), interned("load_state_dict")};
};

}  // namespace

void bind_tables(nb::module_& module) {
  module.def("table_tensors", &table_tensors, nb::arg("mapping"), nb::arg("keys"), nb::arg("classes"),
             nb::sig("def table_tensors(mapping: dict, keys: tuple, classes: tuple) -> list | None"),
             "The tensors of a table with exactly these keys, of these classes; None if it is another.");
  module.def("row_tensors", &row_tensors, nb::arg("mapping"), nb::arg("columns"), nb::arg("classes"),
             nb::sig("def row_tensors(mapping: dict, columns: tuple, classes: tuple) -> list | None"),
             "The same of a dict of such tables, whose own keys are not compared.");
  module.def(
      "module_tensors",
      [](const nb::object& layer, const nb::tuple& layers, const nb::tuple& classes, const nb::object& run_hooks) {
        return ModuleWalk(classes, run_hooks).tensors(layer, layers);
      },
      nb::arg("module"), nb::arg("layers"), nb::arg("classes"), nb::arg("run_hooks"),
      nb::sig("def module_tensors(module: object, layers: tuple, classes: tuple, run_hooks: "
              "collections.abc.Callable[[object], bool]) -> list | None"),
      "The tensors of a module with exactly these layers, of these classes; None if it is another, or state_dict() "
      "would run code. `run_hooks(layer)` may call the hooks of a layer: True if that is all that state_dict() does.");
  module.def("object_ids", &object_ids, nb::arg("objects"), nb::sig("def object_ids(objects: list | dict) -> bytes"),
             "id() of each item, or of each key.");
  module.def("positions", &positions, nb::arg("objects"), nb::arg("wanted"),
             nb::sig("def positions(objects: list, wanted: list) -> bytes"),
             "Where in `objects` those stand that are also in `wanted`, as an array of 32-bit numbers.");
}

}  // namespace slackwater::python
