#include "format/checksum.h"

#include <bit>
#include <cstring>
#include <initializer_list>

#include "format/constants.h"

namespace bf16codecs {

void Checksum::update(const uint8_t* bytes, size_t size) {
  const size_t stripes = size / kChecksumStripe, rest = size % kChecksumStripe;
  const Kernels& kernel = kernels();
  kernel.checksum(state_, bytes, stripes);
  if (rest != 0) {
    uint8_t padded[kChecksumStripe] = {};
    std::memcpy(padded, bytes + size - rest, rest);
    kernel.checksum(state_, padded, 1);
  }
  size_ += size;
}

uint64_t Checksum::digest() const {
  uint64_t h = size_;
  for (unsigned j = 0; j < 16; ++j) {
    for (const uint64_t z : {state_.a[j], state_.c[j]}) {
      h = std::rotl(h ^ z, 29) * 0x9E3779B97F4A7C15u;
    }
  }
  return h;
}

uint32_t Checksum::value() const {
  return fold(digest());
}

uint32_t fold(uint64_t digest) {
  return static_cast<uint32_t>(digest ^ digest >> 32);
}

uint64_t digest(const uint8_t* bytes, size_t size) {
  Checksum sum;
  sum.update(bytes, size);
  return sum.digest();
}

uint32_t checksum(const uint8_t* bytes, size_t size) {
  Checksum sum;
  sum.update(bytes, size);
  return sum.value();
}

}  // namespace bf16codecs
