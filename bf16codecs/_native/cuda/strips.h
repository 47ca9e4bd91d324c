#pragma once

// Strips of 512 bytes, which buffer decoded bytes on their way to memory, so that a warp writes
// whole lines in whatever order it decodes.

#include "cuda/checksum.h"
#include "cuda/warp.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kStripeBytes = static_cast<unsigned>(kChecksumStripe);
inline constexpr unsigned kStripes = kStripBytes / kStripeBytes;  // stripes of a strip

// A warp's strip, and the checksum of all bytes that passed through it.
class Strips {
 public:
  // `out` is the target of the first strip, or null to compute only the checksum.
  BF16CODECS_DEVICE Strips(const Warp& warp, Shared<kStripBytes>& strip, uint8_t* out)
      : warp_(warp), strip_(strip), out_(out), sum_(warp) {}

  // The strip, which threads write to at any offset.
  BF16CODECS_DEVICE Shared<kStripBytes>& strip() { return strip_; }

  // Passes on the first `size` bytes of the strip, which threads have written. All strips but the
  // last must be full.
  BF16CODECS_DEVICE void pass(unsigned size) {
    warp_.sync();
    if (size < kStripBytes) pad(size);
    for (unsigned stripe = 0; stripe * kStripeBytes < size; ++stripe) {
      warp_.each([&](unsigned t) {
        sum_.add(t, strip_.template load<uint64_t>(kStripeBytes * stripe + t / 2 * 8));
      });
    }
    if (out_ != nullptr) write(size);
    size_ += size;
    warp_.sync();
  }

  // Passes on a stripe from registers, 4 bytes of each thread, to an address that is a multiple of
  // 4.
  BF16CODECS_DEVICE void pass_words(const PerThread<uint32_t>& words) {
    const PerThread<uint32_t> others = warp_.shuffle(words, [](unsigned t) { return t ^ 1; });
    warp_.each([&](unsigned t) {
      sum_.add(t, uint64_t{others[t]} << 32 | words[t]);  // a lane's number if t is even
      store_aligned(out_ + size_ + 4 * t, words[t]);
    });
    size_ += kStripeBytes;
  }

  BF16CODECS_DEVICE uint64_t size() const { return size_; }
  BF16CODECS_DEVICE uint32_t checksum() const { return sum_.value(warp_, size_); }

 private:
  BF16CODECS_DEVICE void pad(unsigned size) {
    warp_.each([&](unsigned t) {
      const unsigned end = (size + kStripeBytes - 1) / kStripeBytes * kStripeBytes;
      // The same bounds for all threads here and in write(): with bounds that vary by thread, the
      // compiler no longer proves that they go in lockstep.
      BF16CODECS_UNROLLED
      for (unsigned k = 0; k < kStripeBytes; k += kThreads) {
        const unsigned i = size + k + t;
        if (i < end) strip_.store(i, uint8_t{0});
      }
    });
    warp_.sync();
  }

  BF16CODECS_DEVICE void write(unsigned size) {
    uint8_t* const out = out_ + size_;
    const bool is_aligned = reinterpret_cast<uintptr_t>(out) % kQuadBytes == 0;
    warp_.each([&](unsigned t) {
      const unsigned at = kQuadBytes * t;
      if (is_aligned && at + kQuadBytes <= size) {
        store_aligned(out + at, strip_.template load<Quad>(at));
        return;
      }
      BF16CODECS_ROLLED
      for (unsigned i = at; i < at + kQuadBytes; ++i) {
        if (i < size) out[i] = strip_.template load<uint8_t>(i);
      }
    });
  }

  const Warp& warp_;
  Shared<kStripBytes>& strip_;
  uint8_t* const out_;
  uint64_t size_ = 0;
  Sum sum_;
};

// Passes on bytes of memory.
BF16CODECS_DEVICE void pass_all(const Warp& warp, const uint8_t* bytes, uint64_t size,
                                Strips& strips) {
  for (uint64_t done = 0; done < size; done += kStripBytes) {
    const auto n = static_cast<unsigned>(least<uint64_t>(size - done, kStripBytes));
    const uint8_t* const from = bytes + done;
    warp.each([&](unsigned t) {
      for (unsigned i = 4 * t; i < n; i += 4 * kThreads) {
        if (i + 4 <= n) {
          strips.strip().store(i, load_any<uint32_t>(from + i));
        } else {
          for (unsigned k = i; k < n; ++k) strips.strip().store(k, from[k]);
        }
      }
    });
    strips.pass(n);
  }
}

// The checksum of bytes of memory.
BF16CODECS_DEVICE uint32_t checksum_of(const Warp& warp, Shared<kStripBytes>& strip,
                                       const uint8_t* bytes, uint64_t size) {
  Strips strips(warp, strip, nullptr);
  pass_all(warp, bytes, size, strips);
  return strips.checksum();
}

}  // namespace bf16codecs::cuda
