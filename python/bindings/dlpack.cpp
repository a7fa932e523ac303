// Memory that another library lends through DLPack: its address, layout and dtype, without importing that library.
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "tensor_reader.hpp"

namespace slackwater::python {
namespace {

// Codes of the DLPack standard. Older headers lack those of the 8-bit floats.
constexpr int kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kComplex = 5, kBool = 6;
constexpr int kFloat8E4M3Fn = 10, kFloat8E4M3Fnuz = 11, kFloat8E5M2 = 12, kFloat8E5M2Fnuz = 13, kFloat8E8M0Fnu = 14;

std::optional<DType> of_bits(std::uint8_t bits, std::initializer_list<std::pair<int, DType>> known) {
  for (const auto& [own, dtype] : known) {
    if (own == bits) return dtype;
  }
  return std::nullopt;
}

std::string dtype_text(const nb::dlpack::dtype& dtype) {
  const std::string bits = std::to_string(dtype.bits);
  if (dtype.lanes != 1) return bits + "-bit vectors of " + std::to_string(dtype.lanes);
  switch (static_cast<int>(dtype.code)) {
    case kInt: return "int" + bits;
    case kUInt: return "uint" + bits;
    case kFloat: return "float" + bits;
    case kBFloat: return "bfloat" + bits;
    case kComplex: return "complex" + bits;
    case kBool: return "bool";
    case kFloat8E4M3Fn: return "float8_e4m3fn";
    case kFloat8E4M3Fnuz: return "float8_e4m3fnuz";
    case kFloat8E5M2: return "float8_e5m2";
    case kFloat8E5M2Fnuz: return "float8_e5m2fnuz";
    case kFloat8E8M0Fnu: return "float8_e8m0fnu";
    default: return "DLPack code " + std::to_string(dtype.code) + " of " + bits + " bits";
  }
}

// Holds what it describes.
struct DlpackMemory {
  nb::ndarray<nb::ro> array;
  bool read_only;
};

// Takes a capsule from __dlpack__(). If that fails, the capsule is unchanged.
DlpackMemory borrow(nb::handle capsule) {
  nb::ndarray<> writable;
  if (nb::try_cast(capsule, writable)) return {nb::ndarray<nb::ro>(writable), false};
  nb::ndarray<nb::ro> array;
  if (nb::try_cast(capsule, array)) return {std::move(array), true};
  throw nb::type_error("__dlpack__() returned no readable DLPack capsule");
}

std::vector<std::int64_t> shape_of(const DlpackMemory& self) {
  std::vector<std::int64_t> shape(self.array.ndim());
  for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = static_cast<std::int64_t>(self.array.shape(i));
  return shape;
}

std::vector<std::int64_t> strides_of(const DlpackMemory& self) {
  std::vector<std::int64_t> strides(self.array.ndim());
  for (std::size_t i = 0; i < strides.size(); ++i) strides[i] = self.array.stride(i);
  return strides;
}

}  // namespace

std::optional<DType> dtype_of(const nb::dlpack::dtype& dtype) {
  if (dtype.lanes != 1) return std::nullopt;
  const std::uint8_t bits = dtype.bits;
  switch (static_cast<int>(dtype.code)) {
    case kInt: return of_bits(bits, {{8, DType::kI8}, {16, DType::kI16}, {32, DType::kI32}, {64, DType::kI64}});
    case kUInt: return of_bits(bits, {{8, DType::kU8}, {16, DType::kU16}, {32, DType::kU32}, {64, DType::kU64}});
    case kFloat: return of_bits(bits, {{16, DType::kF16}, {32, DType::kF32}, {64, DType::kF64}});
    case kBFloat: return of_bits(bits, {{16, DType::kBF16}});
    case kComplex: return of_bits(bits, {{32, DType::kC32}, {64, DType::kC64}, {128, DType::kC128}});
    case kBool: return of_bits(bits, {{8, DType::kBool}});
    case kFloat8E4M3Fn: return of_bits(bits, {{8, DType::kF8E4M3}});
    case kFloat8E4M3Fnuz: return of_bits(bits, {{8, DType::kF8E4M3Fnuz}});
    case kFloat8E5M2: return of_bits(bits, {{8, DType::kF8E5M2}});
    case kFloat8E5M2Fnuz: return of_bits(bits, {{8, DType::kF8E5M2Fnuz}});
    case kFloat8E8M0Fnu: return of_bits(bits, {{8, DType::kF8E8M0}});
    default: return std::nullopt;
  }
}

void bind_dlpack(nb::module_& module) {
  nb::class_<DlpackMemory>(module, "DlpackMemory", "Memory lent through DLPack, held while this object lives.")
      .def(
          "__init__", [](DlpackMemory* self, nb::handle capsule) { new (self) DlpackMemory(borrow(capsule)); },
          nb::arg("capsule"))
      .def_prop_ro("dtype", [](const DlpackMemory& self) { return dtype_text(self.array.dtype()); })
      .def_prop_ro("shape", &shape_of)
      .def_prop_ro("strides", &strides_of)
      .def_prop_ro("address",
                   [](const DlpackMemory& self) { return reinterpret_cast<std::uintptr_t>(self.array.data()); })
      .def_ro("read_only", &DlpackMemory::read_only)
      .def_prop_ro("device", [](const DlpackMemory& self) { return self.array.device_id(); });
}

}  // namespace slackwater::python
