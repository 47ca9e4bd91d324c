#pragma once

// The pairs mode's decoder of every vector instruction set, which gives it a `Group`: the states of
// 32 lanes, with
//
//   Rows               the table as it is read, made of a PairsTable
//   load, store        the states, of and to memory
//   decode             decodes two symbols of each lane and puts the 64 into a sink; returns
//                      Escapes: whether there are any, and a bit for each of the 64 places
//   renormalize        gives the lanes below 2^16 a word each
//
// Each file that includes this has a copy of its own, built for its instruction set.

#include "kernels/groups.h"
#include "kernels/pairs_escapes.h"

namespace bf16codecs {
namespace {

template <typename Escapes, typename Sink>
BF16CODECS_COLD void patch_escapes(PairsDecoder& d, Escapes escapes, size_t at, Sink sink) {
  patch_places(d, escapes.places(), at, sink);
}

template <typename Group, unsigned kGroups, typename Sink>
size_t decode_steps(PairsDecoder& d, const uint8_t* limit, Sink sink, size_t steps) {
  const typename Group::Rows rows(*d.table);
  Group groups[kGroups];
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) groups[g].load(d.x + kLanesPerGroup * g);
  const uint8_t* words = d.words;
  for (; steps != 0 && words <= limit; --steps) {
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      const size_t at = kPairSymbols * g;
      const auto escapes = groups[g].decode(rows, sink, at);
      groups[g].renormalize(words);
      if (escapes.any()) [[unlikely]]
        patch_escapes(d, escapes, at, sink);
    }
    sink.advance(kPairSymbols * kGroups);
  }
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) groups[g].store(d.x + kLanesPerGroup * g);
  d.words = words;
  return steps;
}

// Decodes whole steps, as Kernels::pairs_decode and pairs_decode16 do.
template <typename Group, typename Sink>
BF16CODECS_INLINE size_t decode_pairs(PairsDecoder& d, const uint8_t* limit, Sink sink,
                                      size_t steps) {
  return with_groups(
      d.groups, [&](auto groups) { return decode_steps<Group, groups()>(d, limit, sink, steps); });
}

}  // namespace
}  // namespace bf16codecs
