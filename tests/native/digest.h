#pragma once

// What the tests of the native core compare between platforms.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bf16codecs::test {

// FNV-1a, which has nothing in common with what is tested.
class Digest {
 public:
  void update(const uint8_t* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001B3;
  }
  template <typename T>
  void update(const std::vector<T>& values) {
    for (const T value : values) {
      for (unsigned byte = 0; byte < sizeof(T); ++byte) {
        value_ = (value_ ^ (value >> 8 * byte & 255)) * 0x100000001B3;
      }
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

}  // namespace bf16codecs::test
