#pragma once

// The states of the rANS kernels for WebAssembly's vectors (docs/format.md, "Interleaved rANS"):
// four times eight lanes a group, with the low and the high words of their states in two vectors.
//
//   states     x[0]         x[1]          x[2]         x[3]
//   lanes      0-7          8-15          16-23        24-31
//   symbols    even, 0-14   even, 16-30   odd, 1-15    odd, 17-31
//
// So look-ups by the low bits read x.low alone, 16 lanes at a time as bytes, and a lane needs a
// word exactly if its x.high is 0. Words are handed out by a swizzle from a table by the mask of
// eight lanes.

#include <bit>

#include "kernels/wasm/simd128.h"

namespace bf16codecs {

// The states of eight lanes, x = high << 16 | low.
struct EightLanes {
  v128_t low, high;
};

// The low, and the high, halves of eight 32-bit numbers.
static BF16CODECS_INLINE v128_t lower_halves(v128_t v, v128_t w) {
  return wasm_i16x8_shuffle(v, w, 0, 2, 4, 6, 8, 10, 12, 14);
}
static BF16CODECS_INLINE v128_t upper_halves(v128_t v, v128_t w) {
  return wasm_i16x8_shuffle(v, w, 1, 3, 5, 7, 9, 11, 13, 15);
}

static BF16CODECS_INLINE EightLanes load_states(const uint32_t x[8]) {
  const v128_t v = wasm_v128_load(x), w = wasm_v128_load(x + 4);
  return {lower_halves(v, w), upper_halves(v, w)};
}

static BF16CODECS_INLINE void store_states(uint32_t x[8], const EightLanes& octet) {
  wasm_v128_store(x, wasm_i16x8_shuffle(octet.low, octet.high, 0, 8, 1, 9, 2, 10, 3, 11));
  wasm_v128_store(x + 4, wasm_i16x8_shuffle(octet.low, octet.high, 4, 12, 5, 13, 6, 14, 7, 15));
}

// For each mask of eight lanes, the swizzle that gives each lane of the mask the next word. The
// other lanes get noise, which is not used.
struct ExpandWords {
  alignas(16) uint8_t row[256][16];
};

static constexpr ExpandWords make_expand() {
  ExpandWords expand{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned rank = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      expand.row[mask][2 * lane] = static_cast<uint8_t>(2 * rank);
      expand.row[mask][2 * lane + 1] = static_cast<uint8_t>(2 * rank + 1);
      rank += mask >> lane & 1;
    }
  }
  return expand;
}

static constexpr ExpandWords kExpand = make_expand();

// Gives words to the lanes of a mask, which is is_low as well, and returns the next word. Loads 8
// words, however many the lanes need.
static BF16CODECS_INLINE const uint8_t* renormalize_octet(EightLanes& x, v128_t is_low,
                                                          unsigned mask, const uint8_t* words) {
  const v128_t next = wasm_i8x16_swizzle(wasm_v128_load(words), wasm_v128_load(kExpand.row[mask]));
  x.high = wasm_v128_or(x.high, wasm_v128_and(x.low, is_low));  // x.high is 0 where is_low is set
  x.low = wasm_v128_bitselect(next, x.low, is_low);
  return words + 2 * std::popcount(mask);
}

// if (x < 2^16) x = x << 16 | next word, lane by lane. One mask serves 16 lanes.
static BF16CODECS_INLINE void renormalize(EightLanes x[4], const uint8_t*& words) {
  const v128_t zero = wasm_i8x16_splat(0);
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 4; k += 2) {
    const v128_t first = wasm_i16x8_eq(x[k].high, zero);
    const v128_t second = wasm_i16x8_eq(x[k + 1].high, zero);
    const unsigned mask = wasm_i8x16_bitmask(wasm_i8x16_narrow_i16x8(first, second));
    words = renormalize_octet(x[k], first, mask & 255, words);
    words = renormalize_octet(x[k + 1], second, mask >> 8, words);
  }
}

namespace {

// The states of a group of 32 lanes.
struct Simd128Group {
  EightLanes x[4];

  BF16CODECS_INLINE void load(const uint32_t states[kLanesPerGroup]) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) x[i] = load_states(states + 8 * i);
  }
  BF16CODECS_INLINE void store(uint32_t states[kLanesPerGroup]) const {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) store_states(states + 8 * i, x[i]);
  }
  // if (x < 2^16) x = x << 16 | next word, lane by lane.
  BF16CODECS_INLINE void renormalize(const uint8_t*& words) { bf16codecs::renormalize(x, words); }
};

}  // namespace
}  // namespace bf16codecs
