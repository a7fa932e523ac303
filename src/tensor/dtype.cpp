#include "tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include <fmt/format.h>

namespace slackwater {
namespace {

struct Row {
  DType dtype;
  std::uint32_t item_bytes;
  std::string_view name;              // torch's
  std::string_view safetensors_name;  // empty: safetensors 0.8 does not have it
};

// In the order of the enumeration, so that a type is its own index.
constexpr std::array kRows = {
    Row{DType::kBool, 1, "bool", "BOOL"},
    Row{DType::kU8, 1, "uint8", "U8"},
    Row{DType::kI8, 1, "int8", "I8"},
    Row{DType::kF8E4M3, 1, "float8_e4m3fn", "F8_E4M3"},
    Row{DType::kF8E5M2, 1, "float8_e5m2", "F8_E5M2"},
    Row{DType::kF8E8M0, 1, "float8_e8m0fnu", "F8_E8M0"},
    Row{DType::kF8E4M3Fnuz, 1, "float8_e4m3fnuz", "F8_E4M3FNUZ"},
    Row{DType::kF8E5M2Fnuz, 1, "float8_e5m2fnuz", "F8_E5M2FNUZ"},
    Row{DType::kU16, 2, "uint16", "U16"},
    Row{DType::kI16, 2, "int16", "I16"},
    Row{DType::kF16, 2, "float16", "F16"},
    Row{DType::kBF16, 2, "bfloat16", "BF16"},
    Row{DType::kU32, 4, "uint32", "U32"},
    Row{DType::kI32, 4, "int32", "I32"},
    Row{DType::kF32, 4, "float32", "F32"},
    Row{DType::kC32, 4, "complex32", ""},
    Row{DType::kU64, 8, "uint64", "U64"},
    Row{DType::kI64, 8, "int64", "I64"},
    Row{DType::kF64, 8, "float64", "F64"},
    Row{DType::kC64, 8, "complex64", "C64"},
    Row{DType::kC128, 16, "complex128", ""},
};

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_are_in_order());

constexpr const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::uint32_t item_bytes(DType dtype) { return row(dtype).item_bytes; }

std::string_view dtype_name(DType dtype) { return row(dtype).name; }

Result<DType> dtype_from_name(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &Row::name);
  if (found != kRows.end()) return found->dtype;
  return fail(ErrorKind::kUnsupported, fmt::format("Slackwater cannot store the dtype '{}'", name));
}

StoredDType stored_dtype(DType dtype) {
  if (dtype == DType::kC128) return {DType::kF64, true};
  if (dtype == DType::kC32) return {DType::kF16, true};
  return {dtype, false};
}

std::string_view safetensors_name(DType stored) { return row(stored).safetensors_name; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  const auto found = std::ranges::find(kRows, name, &Row::safetensors_name);
  if (name.empty() || found == kRows.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace slackwater
