#include "grid/keys.h"

#include <bit>

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

}  // namespace bf16codecs::grid
