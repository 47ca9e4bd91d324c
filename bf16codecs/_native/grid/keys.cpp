#include "grid/keys.h"

#include <bit>
#include <cmath>
#include <limits>

#include "format/little_endian.h"
#include "kernels/kernels.h"

namespace bf16codecs::grid {
namespace {

unsigned fraction_bits(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 11;
    case DType::float64:
      return 5;
    case DType::float8_e4m3fn:
      return 4;
    case DType::float8_e5m2:
      return 3;
    default:
      return 8;
  }
}

template <typename T>
void load_rotated(const uint8_t* items, size_t n, unsigned bits, uint16_t* keys) {
  for (size_t i = 0; i < n; ++i) {
    const T item = std::rotl(load_le<T>(items + sizeof(T) * i), 1);
    keys[i] = static_cast<uint16_t>(item >> (8 * sizeof(T) - bits));
  }
}

template <typename Float, typename Bits>
void load_distances(const uint8_t* base, const uint8_t* items, size_t n, uint16_t* keys) {
  constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<Float>::infinity());
  // Subnormal numbers count as zeros: whether a processor flushes them depends on its settings, and
  // the encoder's bytes must not.
  const auto normal = [](Bits bits) { return (bits & kInfinity) != 0 ? bits : Bits{0}; };
  const auto load = [&](const uint8_t* from) {
    return std::bit_cast<Float>(normal(load_le<Bits>(from)));
  };
  for (size_t i = 0; i < n; ++i) {
    const size_t at = sizeof(Bits) * i;
    const Bits bits = std::bit_cast<Bits>(std::fabs(load(items + at) - load(base + at)));
    keys[i] =
        static_cast<uint16_t>((bits < kInfinity ? normal(bits) : 0) >> (8 * sizeof(Bits) - 17) | 2);
  }
}

}  // namespace

KeyFormat::KeyFormat(const Layout& layout)
    : bits(layout.planes() == 1 ? 8 : 16), fraction(fraction_bits(layout.dtype)) {}

void load_keys(const Layout& layout, const uint8_t* items, size_t n, uint16_t* keys) {
  switch (layout.planes()) {
    case 1:
      return load_rotated<uint8_t>(items, n, 8, keys);
    case 2:
      return kernels().load_keys16(items, n, keys);
    case 4:
      return load_rotated<uint32_t>(items, n, 16, keys);
    default:
      return load_rotated<uint64_t>(items, n, 16, keys);
  }
}

void load_difference_keys(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                          uint16_t* keys) {
  if (layout.dtype == DType::bfloat16) {
    kernels().load_distances16(base, items, n, keys);
  } else if (layout.dtype == DType::float32) {
    load_distances<float, uint32_t>(base, items, n, keys);
  } else {
    load_distances<double, uint64_t>(base, items, n, keys);
  }
}

}  // namespace bf16codecs::grid
