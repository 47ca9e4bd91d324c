#pragma once

// The checksum of the bytes that a warp decodes (docs/format.md, "Checksum").

#include "cuda/warp.h"
#include "format/constants.h"

namespace bf16codecs::cuda {

inline constexpr uint64_t kChecksumFactor = 0x9E3779B97F4A7C15;

// Thread 2 j computes lane j: each thread writes 4 bytes of a stripe, which is half of a lane's
// number. The sums of the other threads are not used.
class Sum {
 public:
  BF16CODECS_DEVICE explicit Sum(const Warp& warp) {
    warp.each([&](unsigned t) { a_[t] = c_[t] = 0; });
  }

  // Adds the number of lane t / 2 of a stripe; meaningful if t is even.
  BF16CODECS_DEVICE void add(unsigned t, uint64_t number) {
    a_[t] += number;
    c_[t] = rotated(c_[t], 23) + a_[t];
  }

  // The checksum of `size` bytes.
  BF16CODECS_DEVICE uint32_t value(const Warp& warp, uint64_t size) const {
    uint64_t h = size;
    for (unsigned j = 0; j < 16; ++j) {
      h = rotated(h ^ warp.of(a_, 2 * j), 29) * kChecksumFactor;
      h = rotated(h ^ warp.of(c_, 2 * j), 29) * kChecksumFactor;
    }
    return static_cast<uint32_t>(h ^ h >> 32);
  }

 private:
  BF16CODECS_DEVICE static uint64_t rotated(uint64_t v, unsigned by) {
    return v << by | v >> (64 - by);
  }

  PerThread<uint64_t> a_, c_;
};

}  // namespace bf16codecs::cuda
