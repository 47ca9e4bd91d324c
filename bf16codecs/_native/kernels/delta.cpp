// The portable kernels of the difference mode: the definition that the others are tested against.
// They implement, of docs/format_differences.md, "Numbers" for items of 16 bits and relation 0, and
// "Coding", one item and one lane after the other.

#include "kernels/delta.h"

#include <algorithm>

#include "format/little_endian.h"
#include "kernels/delta_tables.h"

namespace bf16codecs {
namespace {

// All bits if the item's sign is set, otherwise none.
uint16_t sign_mask(uint16_t item) {
  return static_cast<uint16_t>(-(item >> 15));
}

uint16_t magnitude(unsigned item) {
  return item & 0x7FFF;
}

// The item as a number that grows with the value it stands for: of negative items all bits but the
// sign are inverted. It is its own inverse.
uint16_t order(unsigned item) {
  const auto u = static_cast<uint16_t>(item);
  return u ^ magnitude(sign_mask(u));
}

// d < 0 ? -2 d - 1 : 2 d, for d as a signed word.
uint16_t zigzag(unsigned difference) {
  const auto d = static_cast<uint16_t>(difference);
  return static_cast<uint16_t>(d << 1) ^ sign_mask(d);
}

// z % 2 ? -(z + 1) / 2 : z / 2, modulo 2^32; callers use the low 16 bits.
unsigned unzigzag(unsigned z) {
  return z >> 1 ^ (0u - (z & 1));
}

// The magnitude from which those of near classes are counted. Only its low 16 bits count in what
// comes of it; the second term may have more.
unsigned anchor(const DeltaShape& shape, unsigned base, unsigned scale) {
  return std::max<unsigned>(magnitude(base), (scale >> 4) << (shape.fraction - 1));
}

void classify16(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales, size_t n,
                uint8_t* classes) {
  const int last = static_cast<int>(shape.places) - 1;
  for (size_t i = 0; i < n; ++i) {
    const int exponent = magnitude(load_le<uint16_t>(base + 2 * i)) >> (shape.fraction - 1);
    const int place = (scales[i] - 16 * exponent + shape.origin) >> shape.shift;
    classes[i] = shape.class_of[std::clamp(place, 0, last)];
  }
}

void subtract16(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                const uint16_t* scales, const uint8_t* classes, size_t n, uint16_t* numbers) {
  const unsigned r = shape.near_raw;
  for (size_t i = 0; i < n; ++i) {
    const auto b = load_le<uint16_t>(base + 2 * i), x = load_le<uint16_t>(items + 2 * i);
    if (classes[i] < shape.near) {
      // (d ^ m) - m is -d if m is all bits, and d if m is 0.
      const uint16_t negative = sign_mask(b);
      const unsigned d = static_cast<unsigned>(order(x)) - order(b);
      numbers[i] = zigzag((d ^ negative) - negative);
      continue;
    }
    // y has 16 bits, and the number, with a sign above its r low bits, 17.
    const unsigned y = zigzag(magnitude(x) - anchor(shape, b, scales[i]));
    const unsigned sign = (b ^ x) >> 15;
    const unsigned number = y >> r << (r + 1) | sign << r | (y & ((1u << r) - 1));
    numbers[i] = static_cast<uint16_t>(std::min(number, 0xFFFFu));
  }
}

void add16(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
           const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items) {
  const unsigned r = shape.near_raw;
  for (size_t i = 0; i < n; ++i) {
    const auto b = load_le<uint16_t>(base + 2 * i);
    const unsigned number = numbers[i];
    if (classes[i] < shape.near) {
      const uint16_t negative = sign_mask(b);
      const unsigned d = (unzigzag(number) ^ negative) - negative;
      store_le(items + 2 * i, order(order(b) + d));
      continue;
    }
    const unsigned y = number >> (r + 1) << r | (number & ((1u << r) - 1));
    const unsigned sign = b >> 15 ^ (number >> r & 1);
    const unsigned x = magnitude(anchor(shape, b, scales[i]) + unzigzag(y)) | sign << 15;
    store_le(items + 2 * i, static_cast<uint16_t>(x));
  }
}

// Ranges, on which the vector kernels rely: x div 4096 is 16 ... 2^20 - 1 and rank < f <= 4095, so
// that `state` is below f 2^20 < 2^32 and at least 16 f. As 16 f >= 2^q, with q at most 14, `rest`
// is at least 1, and one word takes it to 2^16 or more. A number is below 2^7 2^r, 15 bits.
void decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
            uint16_t* numbers, uint32_t* escapes) {
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; ++step) {
    uint32_t* const x = d.x + kLanesPerGroup * (step % d.groups);
    uint32_t mask = 0;
    for (unsigned lane = 0; lane < kLanesPerGroup; ++lane) {
      const unsigned place = lane_place(lane), c = classes[place];
      const uint32_t slot = tables.slots[4096 * c + x[lane] % 4096];
      const unsigned entry = slot >> 28, q = slot >> 12 & 15;
      const uint32_t state = (slot & 4095) * (x[lane] / 4096) + (slot >> 16 & 4095);
      mask |= uint32_t{entry == kDeltaEscape} << place;
      const unsigned base = unsigned{kDeltaBase[entry]} << tables.raw[c];
      numbers[place] = static_cast<uint16_t>(base + (state & ((1u << q) - 1)));
      const uint32_t rest = state >> q;
      const bool low = rest < kLowestState;
      x[lane] = low ? rest << 16 | load_le<uint16_t>(words) : rest;
      words += low ? 2 : 0;
    }
    escapes[step] = mask;
    classes += kDeltaStep;
    numbers += kDeltaStep;
  }
  d.words = words;
}

// Ranges: once there is room, x < f 2^(20 - q), either by the test or because a word was put out,
// which leaves less than 2^16 <= f 2^(20 - q). With the q raw bits x is below f 2^20, so that the
// quotient is below 2^20 and the new x below 2^32.
void encode(DeltaEncoder& e, const DeltaTables& tables, const uint8_t* classes,
            const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  uint8_t* words = e.words;
  for (size_t step = steps; step-- != 0;) {
    uint32_t* const x = e.x + kLanesPerGroup * (step % e.groups);
    uint32_t mask = 0;
    for (unsigned lane = kLanesPerGroup; lane-- != 0;) {
      const unsigned place = lane_place(lane);
      const size_t i = kDeltaStep * step + place;
      const unsigned c = classes[i];
      unsigned at = kDeltaEntries * c + delta_entry(numbers[i] >> tables.raw[c]);
      // An entry that does not occur in this class: the item is an escape.
      if ((tables.coder[at] & 4095) == 0) at = kDeltaEntries * c + kDeltaEscape;
      mask |= uint32_t{at % kDeltaEntries == kDeltaEscape} << place;
      const uint32_t f = tables.coder[at] & 4095, q = tables.coder[at] >> 12;
      uint32_t state = x[lane];
      if (state >> (20 - q) >= f) {
        words -= 2;
        store_le(words, static_cast<uint16_t>(state));
        state >>= 16;
      }
      state = state << q | (numbers[i] & ((1u << q) - 1));
      x[lane] = state / f << 12 | (tables.start[at] + state % f);
    }
    escapes[step] = mask;
  }
  e.words = words;
}

}  // namespace

const DeltaKernels kScalarDeltaKernels = {classify16,      subtract16,  add16, decode,
                                          spell_out_slots, kDeltaSlots, encode};

}  // namespace bf16codecs
