#pragma once

// The parts of a payload of differences, and the initial states of its lanes
// (docs/format_differences.md, "Payload of a block").

#include "cuda/lanes.h"
#include "cuda/warp.h"

namespace bf16codecs::cuda {

struct DeltaPayload {
  const uint8_t *rows, *widths, *escapes, *rest, *words, *end;
  uint32_t rows_size, coded;
  unsigned groups;
};

// Reads fields from the front of a payload.
class DeltaFields {
 public:
  BF16CODECS_DEVICE DeltaFields(const Warp& warp, const uint8_t* payload, uint32_t size)
      : warp_(warp), next_(payload), end_(payload + size) {}

  // Returns null if fewer bytes are left.
  BF16CODECS_DEVICE const uint8_t* take(uint64_t size) {
    if (next_ == nullptr || size > static_cast<uint64_t>(end_ - next_)) {
      next_ = nullptr;
      return nullptr;
    }
    next_ += size;
    return next_ - size;
  }
  // Returns 0 if no field is left.
  template <typename T>
  BF16CODECS_DEVICE T number() {
    const uint8_t* const p = take(sizeof(T));
    return p == nullptr ? T{0} : warp_.same(load_any<T>(p));
  }
  BF16CODECS_DEVICE bool is_sound() const { return next_ != nullptr; }
  BF16CODECS_DEVICE const uint8_t* next() const { return next_; }

 private:
  const Warp& warp_;
  const uint8_t* next_;
  const uint8_t* const end_;
};

// Reads up to 15 bits of a bit string, from bit `at` on.
BF16CODECS_DEVICE uint32_t some_bits(const uint8_t* bytes, uint32_t at, unsigned width) {
  uint32_t bits = 0;
  for (unsigned i = 0; i < 3 && 8 * i < at % 8 + width; ++i) {
    bits |= uint32_t{bytes[at / 8 + i]} << 8 * i;
  }
  return bits >> at % 8 & ((1u << width) - 1);
}

// Finds the parts of a payload of n items of `width` bytes; returns false if it is invalid.
BF16CODECS_DEVICE bool find_parts(const Warp& warp, const uint8_t* payload, uint32_t size,
                                  uint32_t n, unsigned width, DeltaPayload& parts) {
  DeltaFields fields(warp, payload, size);
  parts.end = payload + size;
  parts.rows_size = fields.number<uint16_t>();
  parts.rows = fields.take(parts.rows_size);
  const unsigned head = fields.number<uint8_t>();
  if (head > 2) return false;
  parts.groups = 1u << head;
  const unsigned lanes = kLanesPerGroup * parts.groups;
  parts.coded = n - n % lanes;
  const auto escapes = fields.number<uint32_t>();
  if (parts.coded == 0 || escapes > parts.coded) return false;
  parts.widths = fields.take(lanes / 2 + 2 * lanes);
  if (!fields.is_sound()) return false;
  // Size of the high halves.
  PerThread<uint32_t> widths;
  warp.each([&](unsigned t) {
    widths[t] = 0;
    for (unsigned i = t; i < lanes / 2; i += kThreads) {
      widths[t] += (parts.widths[i] & 15) + (parts.widths[i] >> 4);
    }
  });
  uint32_t bits;
  warp.sums_before(widths, bits);
  const uint8_t* const high = fields.take((bits + 7) / 8);
  if (high == nullptr || (bits % 8 != 0 && warp.same(high[bits / 8]) >> bits % 8 != 0))
    return false;
  parts.escapes = fields.take(uint64_t{escapes} * width);
  parts.rest = fields.take((n - parts.coded) * width);
  parts.words = fields.next();
  return fields.is_sound() && (parts.end - parts.words) % 2 == 0;
}

// Reads the states of all groups.
template <typename States>
BF16CODECS_DEVICE void read_short_states(const Warp& warp, const DeltaPayload& parts,
                                         States& states) {
  const unsigned lanes = kLanesPerGroup * states.groups();
  const uint8_t* const low = parts.widths + lanes / 2;
  const uint8_t* const high = low + 2 * lanes;
  uint32_t bits = 0;
  BF16CODECS_UNROLLED_BY(States::kUnrolled)
  for (unsigned g = 0; g < states.groups(); ++g) {
    PerThread<uint32_t> width;
    warp.each([&](unsigned t) {
      const unsigned lane = kLanesPerGroup * g + t;
      width[t] = parts.widths[lane / 2] >> lane % 2 * 4 & 15;
    });
    uint32_t total;
    const PerThread<uint32_t> before = warp.sums_before(width, total);
    warp.each([&](unsigned t) {
      const unsigned lane = kLanesPerGroup * g + t;
      const uint32_t of_high = 1u << width[t] | some_bits(high, bits + before[t], width[t]);
      states.set(g, t, of_high << 16 | load_any<uint16_t>(low + 2 * lane));
    });
    bits += total;
  }
}

}  // namespace bf16codecs::cuda
