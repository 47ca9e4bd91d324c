#pragma once

// The kernels of sparse planes for vectors of 16 bytes, of which each half is expanded or packed by
// a shuffle from a table. Each file that includes this defines a vector V, in a namespace of its
// own, with these functions, so that each has a copy of its own, built for its instruction set:
//
//   load(p), store(p, v)   16 bytes at any address
//   splat(byte)            16 equal bytes
//   halves(a, b)           64 bits below 64 others
//   lower(v)               the lower 64 bits
//   upper(v)               the upper 64 bits
//   v | w, v ^ w, v & w
//   equal(v, w)            255 where bytes are equal, otherwise 0
//   mask(v)                one bit for each byte that is 0 or 255
//   shuffle(v, i)          the bytes of v that i names, and 0 where i has bit 7 set

#include <cstring>

#include "kernels/bits.h"
#include "kernels/sparse_tables.h"

namespace bf16codecs {
namespace {

BF16CODECS_INLINE uint64_t load64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

BF16CODECS_INLINE void store64(uint8_t* p, uint64_t v) {
  std::memcpy(p, &v, sizeof v);
}

// 57 bits or more from a bit of some bytes on.
BF16CODECS_INLINE uint64_t load_bits(const uint8_t* bytes, size_t bit) {
  return load64(bytes + bit / 8) >> bit % 8;
}

// Adds `count` of at most 57 bits, those above them 0, to bits that are 0 from `at` on.
BF16CODECS_INLINE void add_bits(uint8_t* bytes, size_t& at, uint64_t bits, unsigned count) {
  store64(bytes + at / 8, load64(bytes + at / 8) | bits << at % 8);
  at += count;
}

// Eight bits as eight bytes, each 0 or 1, of each half.
template <typename V>
BF16CODECS_INLINE V spread_bits(uint64_t lower, uint64_t upper) {
  constexpr uint64_t kEach = 0x0101010101010101, kBits = 0x8040201008040201;
  const V weights = V::halves(kBits, kBits);
  const V bytes = V::halves((lower & 255) * kEach, (upper & 255) * kEach);
  return V::equal(bytes & weights, weights) & V::splat(1);
}

// The indices that take the lower half of a vector to the items of one mask of eight, and the upper
// half to those of the next.
template <typename V>
BF16CODECS_INLINE V indices(const uint64_t table[256], unsigned lower, unsigned upper) {
  return V::halves(table[lower & 255], table[upper & 255] | 0x0808080808080808);
}

template <typename V, bool kHasSigns>
BF16CODECS_INLINE void expand_symbols(SparseDecoder& d, const uint8_t* first, size_t n,
                                      uint8_t* plane) {
  const V zero = V::splat(d.zero), value = V::splat(d.value);
  const uint8_t* symbols = d.symbols;
  size_t sign = d.sign;
  for (size_t i = 0; i < n; i += 16) {
    const V is_zero = V::equal(V::load(first + i), zero);
    const unsigned zeros = V::mask(is_zero);
    const unsigned lower = count_bits(zeros & 255), all = count_bits(zeros);
    const V others = V::halves(load64(symbols), load64(symbols + 8 - lower));
    V found = V::shuffle(others, indices<V>(kSparseTables.expand, ~zeros, ~(zeros >> 8)));
    if constexpr (kHasSigns) {
      const uint64_t bits = load_bits(d.signs, sign);
      const V signs = spread_bits<V>(bits, bits >> lower);
      found = found | V::shuffle(signs, indices<V>(kSparseTables.expand, zeros, zeros >> 8));
      sign += all;
    }
    V::store(plane + i, found | (is_zero & value));
    symbols += 16 - all;
  }
  d.symbols = symbols;
  d.sign = sign;
}

template <typename V>
BF16CODECS_INLINE void expand_halves(SparseDecoder& d, const uint8_t* first, size_t n,
                                     uint8_t* plane) {
  const size_t whole = n / 16 * 16;
  if (d.has_signs) {
    expand_symbols<V, true>(d, first, whole, plane);
  } else {
    expand_symbols<V, false>(d, first, whole, plane);
  }
  kScalarSparseKernels.expand(d, first + whole, n - whole, plane + whole);
}

template <typename V>
BF16CODECS_INLINE size_t pack_halves(SparseEncoder& e, const uint8_t* first, const uint8_t* plane,
                                     size_t n) {
  const V zero = V::splat(e.zero), value = V::splat(e.value), one = V::splat(1);
  const size_t whole = n / 16 * 16;
  uint8_t* out = e.symbols;
  size_t sign = e.sign, others = 0;
  for (size_t i = 0; i < whole; i += 16) {
    const V symbols = V::load(plane + i), is_zero = V::equal(V::load(first + i), zero);
    const unsigned zeros = V::mask(is_zero);
    const unsigned lower = count_bits(zeros & 255), all = count_bits(zeros);
    const V packed = V::shuffle(symbols, indices<V>(kSparseTables.pack, ~zeros, ~(zeros >> 8)));
    store64(out, V::lower(packed));
    store64(out + 8 - lower, V::upper(packed));
    out += 16 - all;

    const V difference = is_zero & (symbols ^ value), is_sign = V::equal(difference, one);
    const V signs = V::shuffle(is_sign, indices<V>(kSparseTables.pack, zeros, zeros >> 8));
    const unsigned bits = V::mask(signs);
    add_bits(e.signs, sign, bits & ((1u << lower) - 1), lower);
    add_bits(e.signs, sign, bits >> 8 & ((1u << (all - lower)) - 1), all - lower);
    others += 16 - count_bits(V::mask(is_sign | V::equal(difference, V::splat(0))));
  }
  e.symbols = out;
  e.sign = sign;
  return others + kScalarSparseKernels.pack(e, first + whole, plane + whole, n - whole);
}

}  // namespace
}  // namespace bf16codecs
