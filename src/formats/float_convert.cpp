#include "formats/float_convert.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace slackwater::formats {
namespace {

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 31;
  const std::uint32_t fraction = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) {  // a multiple of 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
    // 0.5 has steps of 2^-24 behind it, so the addition rounds as wanted.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000));
  }
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

template <class Item>
Item load(const std::byte* at) {
  Item item;
  std::memcpy(&item, at, sizeof item);
  return item;
}

template <class From, class To, class Convert>
void convert_all(std::span<const std::byte> in, std::span<std::byte> out, const Convert& convert) {
  const std::size_t count = in.size() / sizeof(From);
  for (std::size_t i = 0; i < count; ++i) {
    const To item = convert(load<From>(in.data() + i * sizeof(From)));
    std::memcpy(out.data() + i * sizeof(To), &item, sizeof item);
  }
}

template <class From, class ToFloat>
void convert_from(DType to, std::span<const std::byte> in, std::span<std::byte> out, const ToFloat& to_float) {
  if (to == DType::kBF16)
    convert_all<From, std::uint16_t>(in, out, [&](From item) { return to_bf16(to_float(item)); });
  else if (to == DType::kF16)
    convert_all<From, std::uint16_t>(in, out, [&](From item) { return to_f16(to_float(item)); });
  else if (to == DType::kF32)
    convert_all<From, float>(in, out, to_float);
  else
    convert_all<From, double>(in, out, [&](From item) { return static_cast<double>(to_float(item)); });
}

}  // namespace

bool is_convertible(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void convert_floats(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out) {
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
  } else if (from == DType::kF64) {
    convert_from<double>(to, in, out, [](double item) { return static_cast<float>(item); });
  } else if (from == DType::kF32) {
    convert_from<float>(to, in, out, [](float item) { return item; });
  } else if (from == DType::kF16) {
    convert_from<std::uint16_t>(to, in, out, from_f16);
  } else {
    convert_from<std::uint16_t>(to, in, out, from_bf16);
  }
}

}  // namespace slackwater::formats
