#pragma once

// What the decoders of the pairs mode for AVX-512 share (docs/format.md, "rANS plane, pairs"): the
// look-ups of 64 slots. Each file that includes this has a copy of its own, built for its
// instruction set.

#include "kernels/x86/avx512.h"

namespace bf16codecs {
namespace {

// The table's rows. They stay in registers while a plane is decoded.
struct DecoderRows {
  __m512i base, threshold, last, frequency, start, symbol, escape;
  explicit DecoderRows(const PairsTable& t)
      : base(load(t.base)),
        threshold(load(t.threshold)),
        last(load(t.last)),
        frequency(load(t.frequency)),
        start(load(t.start)),
        symbol(load(t.symbol)),
        escape(_mm512_set1_epi8(static_cast<char>(t.escape))) {}
};

// The entries of 64 slots: base[bucket] + (slot >= threshold[bucket]), in the last bucket
// last[slot % 16]. There is no shift of bytes: words are shifted, and what comes in from the byte
// above is masked.
BF16CODECS_INLINE __m512i find_entries(const DecoderRows& t, __m512i slots) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i bucket = _mm512_and_si512(_mm512_srli_epi16(slots, 4), nibble);
  const __m512i base = _mm512_shuffle_epi8(t.base, bucket);
  const __mmask64 above = _mm512_cmpge_epu8_mask(slots, _mm512_shuffle_epi8(t.threshold, bucket));
  const __mmask64 in_last =
      _mm512_cmpge_epu8_mask(slots, _mm512_set1_epi8(static_cast<char>(0xF0)));
  const __m512i e = _mm512_mask_sub_epi8(base, above, base, _mm512_set1_epi8(-1));
  return _mm512_mask_shuffle_epi8(e, in_last, t.last, _mm512_and_si512(slots, nibble));
}

// What the slots of two symbols in each word say of a state x, which becomes f (x >> 16) + r:
// f = f[i] f[j],  r = f[i] (b - c[j]) + (a - c[i]). Frequencies are at most 255: f is at most
// 65025, and r below f, so that both fit in words.
struct Pairs {
  __m512i entries, f, r;
};

BF16CODECS_INLINE Pairs look_up(const DecoderRows& t, __m512i slots) {
  const __m512i byte = _mm512_set1_epi16(255);
  const __m512i e = find_entries(t, slots);
  const __m512i frequency = _mm512_shuffle_epi8(t.frequency, e);
  const __m512i rest = _mm512_sub_epi8(slots, _mm512_shuffle_epi8(t.start, e));
  const __m512i fi = _mm512_and_si512(frequency, byte), fj = _mm512_srli_epi16(frequency, 8);
  const __m512i r = _mm512_add_epi16(_mm512_mullo_epi16(_mm512_srli_epi16(rest, 8), fi),
                                     _mm512_and_si512(rest, byte));
  return {e, _mm512_mullo_epi16(fi, fj), r};
}

}  // namespace
}  // namespace bf16codecs
