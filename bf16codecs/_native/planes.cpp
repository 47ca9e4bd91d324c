#include "planes.h"

#include <bit>

#include "format/little_endian.h"
#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

template <typename T, int kRotation>
void split(const uint8_t* items, size_t n, uint8_t* const planes[]) {
  constexpr unsigned w = sizeof(T);
  for (size_t i = 0; i < n; ++i) {
    const T item = std::rotl(load_le<T>(items + w * i), kRotation);
    for (unsigned p = 0; p < w; ++p) {
      planes[p][i] = static_cast<uint8_t>(item >> (8 * (w - 1 - p)));
    }
  }
}

template <typename T, int kRotation>
void merge(const uint8_t* const planes[], size_t n, uint8_t* items) {
  constexpr unsigned w = sizeof(T);
  for (size_t i = 0; i < n; ++i) {
    T item = 0;
    for (unsigned p = 0; p < w; ++p) {
      item =
          static_cast<T>(item | static_cast<T>(static_cast<T>(planes[p][i]) << (8 * (w - 1 - p))));
    }
    store_le(items + w * i, std::rotr(item, kRotation));
  }
}

// Calls function.operator()<T, rotation>() with the type of a layout's items and the bits that they
// are rotated by.
template <typename Function>
void with_items(const Layout& layout, Function function) {
  const auto rotated = [&]<typename T>(T) {
    if (layout.by_byte) {
      function.template operator()<T, 0>();
    } else {
      function.template operator()<T, 1>();
    }
  };
  switch (layout.planes()) {
    case 1:
      return rotated(uint8_t{});
    case 2:
      return rotated(uint16_t{});
    case 4:
      return rotated(uint32_t{});
    default:
      return rotated(uint64_t{});
  }
}

}  // namespace

void split_planes(const Layout& layout, const uint8_t* items, size_t n, uint8_t* const planes[]) {
  if (layout.is_rotated16()) {
    return kernels().split16(items, n, planes[0], planes[1]);
  }
  with_items(layout, [&]<typename T, int kRotation>() { split<T, kRotation>(items, n, planes); });
}

void merge_planes(const Layout& layout, const uint8_t* const planes[], size_t n, uint8_t* items) {
  if (layout.is_rotated16()) {
    return kernels().merge16(planes[0], planes[1], n, items);
  }
  with_items(layout, [&]<typename T, int kRotation>() { merge<T, kRotation>(planes, n, items); });
}

}  // namespace bf16codecs
