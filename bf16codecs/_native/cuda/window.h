#pragma once

// What a warp reads of a payload from front to back, through memory that its threads share: there
// it begins at a multiple of 4 bytes, wherever it does in the payload, and threads read words of
// it.

#include "cuda/warp.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kWindowBytes = 1024;
inline constexpr unsigned kWindowPart = 512;  // what is loaded at a time

// The next part is loaded from the device's memory long before it is needed.
class Window {
 public:
  // Reads from `begin` on. What would be at `end` and after it is something.
  BF16CODECS_DEVICE Window(const Warp& warp, Shared<kWindowBytes>& shared, const uint8_t* begin,
                           const uint8_t* end)
      : warp_(warp), shared_(shared), begin_(begin), end_(end) {
    fetch();
  }

  // Makes sure that so many bytes from `at` on are there, at most a part of the window, and none
  // before.
  BF16CODECS_DEVICE void reach(uint32_t at, unsigned size) {
    while (loaded_ < at + size) {
      warp_.sync();
      warp_.each([&](unsigned t) {
        BF16CODECS_UNROLLED
        for (unsigned k = 0; k < kWords; ++k) {
          shared_.store((loaded_ + kRow * k + 4 * t) % kWindowBytes, ahead_[k][t]);
        }
      });
      warp_.sync();
      loaded_ += kWindowPart;
      fetch();
    }
  }

  // Two bytes, from an even place of the window, where what is at `at` is at % kWindowBytes.
  BF16CODECS_DEVICE uint32_t load16(unsigned place) const {
    return shared_.template load<uint16_t>(place);
  }

 private:
  static constexpr unsigned kRow = 4 * kThreads, kWords = kWindowPart / kRow;

  BF16CODECS_DEVICE void fetch() {
    warp_.each([&](unsigned t) {
      BF16CODECS_UNROLLED
      for (unsigned k = 0; k < kWords; ++k) {
        ahead_[k][t] = load_until<uint32_t>(begin_ + loaded_ + kRow * k + 4 * t, end_);
      }
    });
  }

  const Warp& warp_;
  Shared<kWindowBytes>& shared_;
  const uint8_t *const begin_, *const end_;
  uint32_t loaded_ = 0;
  PerThread<uint32_t> ahead_[kWords];
};

}  // namespace bf16codecs::cuda
