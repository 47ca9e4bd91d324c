#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bf16codecs {

// Little-endian loads and stores at any address. Only these swap bytes on big-endian hosts.
template <typename T>
inline T load_le(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  if constexpr (std::endian::native == std::endian::big && sizeof(T) > 1) {
    uint8_t* bytes = reinterpret_cast<uint8_t*>(&value);
    for (size_t i = 0; i < sizeof value / 2; ++i) {
      const uint8_t swapped = bytes[i];
      bytes[i] = bytes[sizeof value - 1 - i];
      bytes[sizeof value - 1 - i] = swapped;
    }
  }
  return value;
}

template <typename T>
inline void store_le(uint8_t* p, T value) {
  if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) {
    std::memcpy(p, &value, sizeof value);
  } else {
    for (size_t i = 0; i < sizeof value; ++i) p[i] = static_cast<uint8_t>(value >> (8 * i));
  }
}

}  // namespace bf16codecs
