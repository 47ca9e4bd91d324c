#pragma once

// A sliding window on a payload that a warp reads from front to back, in shared memory. In the
// window, the bytes begin at a multiple of 4, whatever their alignment in the payload.

#include "cuda/warp.h"

namespace bf16codecs::cuda {

// The next part, kQuads for each thread, is loaded from the device's memory long before it is
// needed. The quads are shifted only when they are used: otherwise all threads would wait for the
// loads.
template <unsigned kQuads>
class WindowOf {
 public:
  static constexpr unsigned kPartBytes = kQuads * kStripBytes;
  static constexpr unsigned kBytes = 2 * kPartBytes;
  // The first quad is repeated after the window, so that reads across its end are contiguous.
  using Memory = Shared<kBytes + kQuadBytes>;

  // Reads from `begin` on. Bytes from `end` on are unspecified.
  BF16CODECS_DEVICE WindowOf(const Warp& warp, Memory& memory, const uint8_t* begin,
                             const uint8_t* end)
      : warp_(warp), memory_(memory) {
    const unsigned at = reinterpret_cast<uintptr_t>(begin) % kQuadBytes;
    quads_ = begin - at;
    size_ = static_cast<uint32_t>(end - quads_);
    begin_ = at / 4 * 4;
    skipped_ = 8 * (at % 4);
    fetch();
  }

  // The position of the first byte. Positions count from the quad that contains it.
  BF16CODECS_DEVICE unsigned begin() const { return begin_; }

  // Loads `size` bytes from a position on, at most half of the window; earlier bytes are lost.
  BF16CODECS_DEVICE void reach(uint32_t position, unsigned size) {
    while (loaded_ < position + size) {
      warp_.sync();
      warp_.each([&](unsigned t) {
        BF16CODECS_UNROLLED
        for (unsigned i = 0; i < kQuads; ++i) {
          const Quad quad = shifted(i, t);
          const unsigned at = (loaded_ + kStripBytes * i + kQuadBytes * t) % kBytes;
          memory_.store(at, quad);
          if (at == 0) memory_.store(kBytes, quad);
        }
      });
      warp_.sync();
      loaded_ += kPartBytes;
      fetch();
    }
  }

  // Two bytes at an even position, within those of the last reach().
  BF16CODECS_DEVICE uint32_t load16(unsigned position) const {
    return memory_.template load<uint16_t>(position);
  }
  // Four bytes at a multiple of four, likewise.
  BF16CODECS_DEVICE uint32_t load32(unsigned position) const {
    return memory_.template load<uint32_t>(position);
  }

 private:
  BF16CODECS_DEVICE void fetch() {
    warp_.each([&](unsigned t) {
      BF16CODECS_UNROLLED
      for (unsigned i = 0; i < kQuads; ++i) {
        const uint32_t at = loaded_ + kStripBytes * i + kQuadBytes * t;
        ahead_[i][t] = load_quad_until(quads_, at, size_);
        next_[i][t] = load_word_until(quads_, at + kQuadBytes, size_);
      }
    });
  }

  // A quad that thread t has loaded, shifted to the payload's alignment.
  BF16CODECS_DEVICE Quad shifted(unsigned i, unsigned t) const {
    const auto& [word] = ahead_[i][t];
    return {pick_bits(word[0], word[1], skipped_), pick_bits(word[1], word[2], skipped_),
            pick_bits(word[2], word[3], skipped_), pick_bits(word[3], next_[i][t], skipped_)};
  }

  const Warp& warp_;
  Memory& memory_;
  const uint8_t* quads_;
  uint32_t size_, loaded_ = 0;
  unsigned begin_, skipped_;
  PerThread<Quad> ahead_[kQuads];
  PerThread<uint32_t> next_[kQuads];
};

using Window = WindowOf<1>;

}  // namespace bf16codecs::cuda
