// The portable kernels: the definition that the other instruction sets are tested against. They
// implement, of docs/format.md, "Checksum", "Element layout" and "rANS plane, pairs", one lane
// after the other.

#include <algorithm>
#include <bit>
#include <cstring>

#include "format/constants.h"
#include "format/little_endian.h"
#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

void checksum(ChecksumState& state, const uint8_t* bytes, size_t stripes) {
  for (size_t t = 0; t < stripes; ++t, bytes += kChecksumStripe) {
    for (unsigned j = 0; j < 16; ++j) {
      state.a[j] += load_le<uint64_t>(bytes + 8 * j);
      state.c[j] = std::rotl(state.c[j], 23) + state.a[j];
    }
  }
}

void load_keys16(const uint8_t* items, size_t n, uint16_t* keys) {
  for (size_t i = 0; i < n; ++i) keys[i] = std::rotl(load_le<uint16_t>(items + 2 * i), 1);
}

// Subnormal numbers count as zeros: whether a processor flushes them depends on its settings, and
// the encoder's bytes must not.
uint32_t normal_bits(uint32_t bits) {
  constexpr uint32_t kExponent = 0x7F800000;
  return (bits & kExponent) != 0 ? bits : 0;
}

float bfloat16(const uint8_t* item) {
  return std::bit_cast<float>(normal_bits(uint32_t{load_le<uint16_t>(item)} << 16));
}

void load_distances16(const uint8_t* base, const uint8_t* items, size_t n, uint16_t* keys) {
  constexpr uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
  for (size_t i = 0; i < n; ++i) {
    const float difference = bfloat16(items + 2 * i) - bfloat16(base + 2 * i);
    // Below infinity, bits >> 15 is below 0xFF00: a rotated bfloat16 whose sign is 0.
    const uint32_t bits = normal_bits(std::bit_cast<uint32_t>(difference) & kMagnitude);
    keys[i] = static_cast<uint16_t>((bits < kInfinity ? bits : 0) >> 15 | 2);
  }
}

// Bits of a bfloat16 item s eeeeeeee mmmmmmm: the high plane has the exponent, eeeeeeee, the low
// one mantissa and sign, mmmmmmm s.
void split16(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low) {
  for (size_t i = 0; i < n; ++i) {
    const unsigned item = load_le<uint16_t>(items + 2 * i);
    high[i] = static_cast<uint8_t>(item >> 7);
    low[i] = static_cast<uint8_t>(item << 1 | item >> 15);
  }
}

// The item is rotated << 8 | low, rotated right by one bit.
void merge16(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items) {
  for (size_t i = 0; i < n; ++i) {
    const unsigned rotated = static_cast<unsigned>(high[i]) << 8 | low[i];
    store_le(items + 2 * i, static_cast<uint16_t>(rotated >> 1 | rotated << 15));
  }
}

// Four tables, because an increment of a count that was just incremented waits for the store before
// it: neighbours are often the same symbol.
void histogram(const uint8_t* plane, size_t n, uint8_t, uint32_t counts[256]) {
  uint32_t partial[4][256] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint64_t eight = load_le<uint64_t>(plane + i);
    for (unsigned j = 0; j < 8; ++j) ++partial[j % 4][eight >> (8 * j) & 255];
  }
  for (; i < n; ++i) ++partial[0][plane[i]];
  for (unsigned s = 0; s < 256; ++s) {
    counts[s] += partial[0][s] + partial[1][s] + partial[2][s] + partial[3][s];
  }
}

// Decodes one group: 64 symbols by their places; returns whether any of them is an escape.
//
// Ranges, on which the vector kernels rely: fi and fj are 1 ... 255, so fi fj fits in 16 bits;
// b - start[j] < fj and a - start[i] < fi, so that what is added to the product is below fi fj. The
// new x is below 2^16 fi fj < 2^32, and at least 1, as x >> 16 was.
bool decode_group(const PairsTable& table, uint32_t x[kLanesPerGroup], uint8_t symbols[64],
                  uint8_t entries[64]) {
  bool escaped = false;
  for (unsigned lane = 0; lane < kLanesPerGroup; ++lane) {
    const uint32_t a = x[lane] & 255, b = x[lane] >> 8 & 255;
    const uint8_t i = table.slot_entry[a], j = table.slot_entry[b];
    const uint32_t fi = table.frequency[i], fj = table.frequency[j];
    x[lane] = fi * fj * (x[lane] >> 16) + fi * (b - table.start[j]) + (a - table.start[i]);
    const unsigned p = lane_place(lane);
    entries[p] = i, entries[p + 32] = j;
    symbols[p] = table.symbol[i], symbols[p + 32] = table.symbol[j];
    escaped |= i == table.escape || j == table.escape;
  }
  return escaped;
}

// Puts the next escapes in place, in the order of the symbols in the plane.
void patch_escapes(PairsDecoder& d, const uint8_t entries[64], uint8_t symbols[64]) {
  for (unsigned p = 0; p < kPairSymbols; ++p) {
    if (entries[p] != d.table->escape) continue;
    if (d.escapes == d.escapes_end) {
      d.escapes_overrun = true;
      return;
    }
    symbols[p] = *d.escapes++;
  }
}

// Decodes a step: first the symbols of all groups, and then words for all lanes in their order.
// Vector kernels hand out the words group after group, which is the same order.
void decode_step(PairsDecoder& d, uint8_t* symbols) {
  uint8_t entries[kPairSymbols];
  for (unsigned g = 0; g < d.groups; ++g) {
    uint8_t* out = symbols + kPairSymbols * g;
    if (decode_group(*d.table, d.x + kLanesPerGroup * g, out, entries)) {
      patch_escapes(d, entries, out);
    }
  }
  for (unsigned lane = 0; lane < kLanesPerGroup * d.groups; ++lane) {
    if (d.x[lane] < 1u << 16) {
      d.x[lane] = d.x[lane] << 16 | load_le<uint16_t>(d.words);
      d.words += 2;
    }
  }
}

size_t pairs_decode(PairsDecoder& d, const uint8_t* limit, uint8_t* plane, size_t steps) {
  for (; steps != 0 && d.words <= limit; --steps, plane += kPairSymbols * d.groups) {
    decode_step(d, plane);
  }
  return steps;
}

size_t pairs_decode16(PairsDecoder& d, const uint8_t* limit, const uint8_t* low, uint8_t* items,
                      size_t steps) {
  const size_t symbols = kPairSymbols * d.groups;
  uint8_t high[kPairSymbols * kMaxGroups];
  for (; steps != 0 && d.words <= limit; --steps, low += symbols, items += 2 * symbols) {
    decode_step(d, high);
    merge16(high, low, symbols, items);
  }
  return steps;
}

// Puts two symbols on a state, given their entries: frequency in the lower half, start in the
// upper. Once there is room, f <= x < 2^16 f: where a word is put out, x was at least 2^16 f;
// otherwise x is at least 2^16, which is above f. So 1 <= q < 2^16, and the new x is again in 2^16
// ... 2^32 - 1.
void encode_pair(PairsEncoder& e, uint32_t& x, uint32_t first, uint32_t second) {
  const uint32_t f1 = first & 0xFFFF, f = f1 * (second & 0xFFFF);
  if (x >> 16 >= f) {
    e.words -= 2;
    store_le(e.words, static_cast<uint16_t>(x));
    x >>= 16;
  }
  const uint32_t q = x / f, r = x % f;
  x = q << 16 | ((second >> 16) + r / f1) << 8 | ((first >> 16) + r % f1);
}

// Goes backwards through the plane's groups of 64 symbols. Group k is coded by group k mod groups
// of the lanes.
void pairs_encode(PairsEncoder& e, const uint8_t* plane, size_t steps) {
  for (size_t group = steps * e.groups; group-- != 0;) {
    const uint8_t* symbols = plane + kPairSymbols * group;
    uint32_t* x = e.x + kLanesPerGroup * (group % e.groups);
    for (unsigned lane = kLanesPerGroup; lane-- != 0;) {
      const unsigned p = lane_place(lane);
      encode_pair(e, x[lane], e.entry[e.entry_of[symbols[p]]],
                  e.entry[e.entry_of[symbols[p + 32]]]);
    }
    // Without an escape entry e.escape is 255, which no symbol of a plane has as its entry:
    // encoders choose entries for all symbols of the plane then.
    for (unsigned p = kPairSymbols; p-- != 0;) {
      if (e.entry_of[symbols[p]] == e.escape) *--e.escapes = symbols[p];
    }
  }
}

void add_columns(const int16_t* columns, unsigned step, int row, int most, size_t n,
                 uint16_t* scales) {
  for (size_t i = 0; i < n; ++i) {
    scales[i] = static_cast<uint16_t>(std::clamp(row + columns[i] * (1 << step), 0, most));
  }
}

size_t differing_bits(const uint8_t* a, const uint8_t* b, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < 8 * n; i += 8) {
    count +=
        static_cast<size_t>(std::popcount(load_le<uint64_t>(a + i) ^ load_le<uint64_t>(b + i)));
  }
  return count;
}

}  // namespace

void scalar_differing_words(const uint8_t* a, const uint8_t* b, size_t n, uint64_t* masks) {
  for (size_t g = 0; g < n; ++g) {
    masks[g] = 0;
    for (size_t i = 0; i < 64; ++i, a += 8, b += 8) {
      masks[g] |= uint64_t{load_le<uint64_t>(a) != load_le<uint64_t>(b)} << i;
    }
  }
}

const Kernels kScalarKernels = {
    .name = "scalar",
    .checksum = checksum,
    .load_keys16 = load_keys16,
    .load_distances16 = load_distances16,
    .split16 = split16,
    .merge16 = merge16,
    .histogram = histogram,
    .magnitudes = &kScalarMagnitudeKernels,
    .pairs_decode = pairs_decode,
    .pairs_decode16 = pairs_decode16,
    .pairs_encode = pairs_encode,
    .huffman_pack = nullptr,
    .add_columns = add_columns,
    .differing_bits = differing_bits,
    .differing_words = scalar_differing_words,
    .quantized = &kScalarQuantizedKernels,
    .tiles = &kScalarTileKernels,
    .delta = &kScalarDeltaKernels,
    .sparse = &kScalarSparseKernels,
};

}  // namespace bf16codecs
