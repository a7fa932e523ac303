// TensorReader: reads a list of tensors in one go, for a save whose structure has not changed. Shape, strides, dtype,
// device and address come from the DLPack exchange table of the library that made them (a C table of functions, found
// on the class), the rest from attributes. No library is linked or imported.
//
// It is for plain tensors: those whose class is one of the given ones, exactly. It never trusts: each tensor is
// compared with the structure. Whatever differs, or cannot be read this way, is left to the caller's general path.
// Owner: Python, one per process.
// Thread rule: needs the GIL.
// Lifetime: the table lives as long as the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <nanobind/ndarray.h>

#include "bindings.hpp"
#include "structure.hpp"

namespace slackwater::python {

// Nothing for a dtype that checkpoints cannot hold.
[[nodiscard]] std::optional<DType> dtype_of(const nb::dlpack::dtype& dtype);

// What a save needs of many tensors whose structure is known, one item for each. Python looks into it only if something
// has changed by the fence, so nothing is made into objects of Python before that.
struct Reading {
  std::vector<std::uintptr_t> addresses;
  std::vector<std::int64_t> versions;        // _version of each
  std::vector<std::uintptr_t> identities;    // numbers of the objects behind them
  std::vector<std::uint64_t> storage_bytes;  // bytes of each storage
  nb::list storages;                         // which hold the bytes, even if a parameter is given others meanwhile
};

class TensorReader {
 public:
  // `tensor_class` has __dlpack_c_exchange_api__. `classes` are those whose tensors are plain. `examples` are some of
  // none, one and more dimensions, in this order: they show where the shape that is lent lies. Throws nb::type_error if
  // there is no table that can be used.
  TensorReader(const nb::object& tensor_class, const nb::list& classes, const nb::list& examples);

  // Nothing if a tensor is not as the structure has it, or is not plain.
  [[nodiscard]] std::optional<Reading> read(const Structure& structure, const nb::list& tensors);
  // Whether read() would find the same now, of tensors whose storages are held. False also if it cannot tell.
  [[nodiscard]] bool same(const nb::list& tensors, const Reading& before);

  // `facts` are those that tables.local_rows() gives: for each tensor None, or (mesh, placements, tensor_meta, shape).
  // A pair: the plain tensors and the local ones of DTensors, and those DTensors. None if one lies otherwise. Shapes of
  // local tensors are not compared: read() does that.
  [[nodiscard]] nb::object local_tensors(const nb::list& tensors, const nb::list& facts, nb::handle dtensor);
  // torch_ranks.step_counters() of a state that is dicts of tensors; None if it is anything else.
  [[nodiscard]] nb::object step_counters(const nb::dict& state, nb::handle dtensor, const nb::object& is_on_all);
  // _version of each, as an array of 64-bit numbers; None if one has none.
  [[nodiscard]] nb::object versions(const nb::list& tensors);

 private:
  using FromPyObject = int (*)(void* py_object, nb::dlpack::dltensor* out);

  [[nodiscard]] bool is_plain(nb::handle tensor) const;
  [[nodiscard]] static std::uint64_t size_of(nb::handle storage);
  void prefetch(const nb::list& tensors, std::size_t index) const;
  void prefetch_wrapper(const nb::list& tensors, std::size_t index) const;
  [[nodiscard]] bool is_turned(nb::handle tensor, DType dtype) const;
  // The number of the object behind a tensor (_cdata).
  [[nodiscard]] std::uintptr_t identity_of(nb::handle tensor, const nb::dlpack::dltensor& lent) const;
  void learn_shape_place(const nb::list& examples);
  // False, without an exception of Python: this is not a tensor that can be read.
  [[nodiscard]] bool borrow(nb::handle tensor, nb::dlpack::dltensor& lent) const;
  [[nodiscard]] bool lies_as(const nb::object& spec, nb::handle fact) const;

  FromPyObject from_py_object_ = nullptr;
  // How far into the object behind a tensor its shape lies, by the number of dimensions. The shape that is lent then
  // tells the object, and Python need not be asked. Empty: it must be.
  std::vector<std::uintptr_t> shape_places_;
  std::vector<nb::object> classes_;
  nb::object is_neg_, is_conj_, untyped_storage_;  // methods of the tensor class
  nb::object version_, identity_;                  // names of attributes
  nb::object local_, spec_, facts_of_spec_[3];     // of DTensors

  // Where the memory behind an object of Python was at the last call. Only hints of what to fetch into the cache: an
  // address where nothing is any more does no harm.
  struct Seen {
    PyObject* object = nullptr;
    std::uintptr_t behind = 0;
  };
  void learn(Seen& seen, nb::handle object) const;
  std::vector<std::uintptr_t> seen_tensors_;  // of the last read(): what is behind the tensors
  std::vector<Seen> seen_storages_;           // and their storages
  std::vector<Seen> seen_wrappers_;           // of the last versions()
};

}  // namespace slackwater::python
