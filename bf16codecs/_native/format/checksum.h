#pragma once

#include "kernels/kernels.h"

namespace bf16codecs {

// The checksum of docs/format.md over bytes that arrive in pieces. All pieces but the last have
// a multiple of kChecksumStripe bytes.
class Checksum {
 public:
  void update(const uint8_t* bytes, size_t size);
  uint64_t digest() const;  // 64 bits, not folded
  uint32_t value() const;

 private:
  ChecksumState state_;
  uint64_t size_ = 0;
};

uint32_t fold(uint64_t digest);

uint32_t checksum(const uint8_t* bytes, size_t size);
uint64_t digest(const uint8_t* bytes, size_t size);

}  // namespace bf16codecs
