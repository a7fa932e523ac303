// Tables of tensors that look as they did at the save before: their keys, and where their DTensors lie, are compared
// with what is kept of them. The rules of what a table is stand in python/slackwater/state/tables.py. Here is only the
// quick answer for the common case, that nothing has changed. Any other case is None, and Python looks for itself.
#include <cstddef>

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

// Appends the tensors of one dict. False if its keys are not these, in this order, or it has something else in it.
bool append_row(nb::handle row, nb::handle keys, const nb::tuple& classes, nb::list& tensors) {
  if (!PyDict_CheckExact(row.ptr()) || !PyTuple_CheckExact(keys.ptr()) ||
      PyDict_Size(row.ptr()) != PyTuple_Size(keys.ptr())) {
    return false;
  }
  Py_ssize_t position = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (std::size_t i = 0; PyDict_Next(row.ptr(), &position, &key, &value) != 0; ++i) {
    if (!is_same_key(key, item(keys, i)) || !is_one_of(value, classes)) return false;
    tensors.append(nb::handle(value));
  }
  return true;
}

// `keys` are those that tables.rows_of() gives: of a dict of tensors, or a pair for a dict of dicts of tensors.
nb::object table_tensors(const nb::dict& mapping, const nb::tuple& keys, const nb::tuple& classes) {
  nb::list tensors;
  if (keys.size() == 0 || !PyDict_CheckExact(mapping.ptr())) return nb::none();
  if (!PyTuple_CheckExact(item(keys, 0))) {
    return append_row(mapping, keys, classes, tensors) ? nb::object(tensors) : nb::none();
  }
  if (keys.size() != 2) return nb::none();
  const nb::handle names = item(keys, 0), columns = item(keys, 1);
  const auto count = static_cast<std::size_t>(PyDict_Size(mapping.ptr()));
  if (!PyTuple_CheckExact(columns.ptr()) || nb::len(names) != count || nb::len(columns) != count) return nb::none();
  Py_ssize_t position = 0;
  PyObject *key = nullptr, *row = nullptr;
  for (std::size_t i = 0; PyDict_Next(mapping.ptr(), &position, &key, &row) != 0; ++i) {
    if (!is_same_key(key, item(names, i)) || !append_row(row, item(columns, i), classes, tensors)) return nb::none();
  }
  return tensors;
}

bool has_fact(const nb::object& object, const nb::object& name, PyObject* fact) {
  const nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  const int same = value.is_valid() ? PyObject_RichCompareBool(value.ptr(), fact, Py_EQ) : -1;
  if (same < 0) PyErr_Clear();
  return same == 1;
}

// `facts` are those that tables.local_rows() gives: for each tensor None, or (mesh, placements, tensor_meta, shape).
nb::object local_tensors(const nb::list& tensors, const nb::list& facts, nb::handle dtensor, const nb::tuple& classes) {
  if (facts.size() != tensors.size()) return nb::none();
  const nb::object local_name = interned("_local_tensor"), spec_name = interned("_spec"), shape = interned("shape");
  const nb::object of_spec[] = {interned("mesh"), interned("placements"), interned("tensor_meta")};
  nb::list parts;
  for (std::size_t i = 0; i < facts.size() && i < tensors.size(); ++i) {
    const nb::object tensor = tensors[i], fact = facts[i];
    const bool distributed = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) == dtensor.ptr();
    if (distributed == fact.is_none()) return nb::none();
    if (!distributed) {
      parts.append(tensor);
      continue;
    }
    if (!PyTuple_CheckExact(fact.ptr()) || PyTuple_Size(fact.ptr()) != 4) return nb::none();
    nb::object local = nb::steal(PyObject_GetAttr(tensor.ptr(), local_name.ptr()));
    const nb::object spec = nb::steal(PyObject_GetAttr(tensor.ptr(), spec_name.ptr()));
    if (!local.is_valid() || !spec.is_valid()) PyErr_Clear();
    if (!local.is_valid() || !spec.is_valid() || !is_one_of(local.ptr(), classes)) return nb::none();
    for (std::size_t field = 0; field < 3; ++field) {
      if (!has_fact(spec, of_spec[field], item(fact, field))) return nb::none();
    }
    if (!has_fact(local, shape, item(fact, 3))) return nb::none();
    parts.append(std::move(local));
  }
  return parts.size() == facts.size() ? nb::object(parts) : nb::none();
}

}  // namespace

void bind_tables(nb::module_& module) {
  module.def("table_tensors", &table_tensors, nb::arg("mapping"), nb::arg("keys"), nb::arg("classes"),
             nb::sig("def table_tensors(mapping: dict, keys: tuple, classes: tuple) -> list | None"),
             "The tensors of a table with exactly these keys, of these classes; None if it is another.");
  module.def("local_tensors", &local_tensors, nb::arg("tensors"), nb::arg("facts"), nb::arg("dtensor"),
             nb::arg("classes"),
             nb::sig("def local_tensors(tensors: list, facts: list, dtensor: type, classes: tuple) -> list | None"),
             "Of a table with DTensors that lie as the facts say: the local tensors; None if one lies otherwise.");
}

}  // namespace slackwater::python
