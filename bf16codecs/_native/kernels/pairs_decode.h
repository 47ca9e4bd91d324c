#pragma once

// The loop of the pairs mode's decoder (docs/format.md, "rANS plane, pairs"), which all vector
// instruction sets share. Each of them provides a `Group`, the states of 32 lanes, with
//
//   Rows               the table as the kernel reads it, made of a PairsTable
//   load, store        move the states from memory and back
//   decode             decodes two symbols of each lane and puts the 64 into a sink; returns
//                      Escapes: any() says whether there are some, and mask(), or that of what
//                      packed() returns, has a bit for each of the 64 symbols
//   renormalize        gives the next words to the lanes below 2^16, in the order of the lanes
//
// Before each step, words <= limit. A step reads at most a word for each lane, and loads up to one
// vector of words more than it uses; see kWordMargin.
//
// Each file that includes this has a copy of its own, built for its instruction set.

#include "kernels/groups.h"
#include "kernels/pairs_escapes.h"

namespace bf16codecs {
namespace {

// Takes a copy of the sink, so that the loop's own can stay in registers.
template <typename Escapes, typename Sink>
BF16CODECS_COLD void patch_escapes(PairsDecoder& d, Escapes escapes, size_t at, Sink sink) {
  patch_masked(d, escapes.mask(), at, sink);
}

// Escapes as they are handed to patch_escapes. Where that takes no vector, a loop for x86 saves all
// of its own, whose upper halves the call clears: AVX-512 then decodes at 16 GB/s instead of 20.
// NEON's are packed: four vectors would go by memory, stored before it is known whether there are
// escapes.
template <typename Escapes>
BF16CODECS_INLINE decltype(auto) handed_over(const Escapes& escapes) {
  if constexpr (requires { escapes.packed(); }) {
    return escapes.packed();
  } else {
    return (escapes);
  }
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
        patch_escapes(d, handed_over(escapes), at, sink);
    }
    sink.advance(kPairSymbols * kGroups);
  }
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) groups[g].store(d.x + kLanesPerGroup * g);
  d.words = words;
  return steps;
}

// Implements Kernels::pairs_decode and pairs_decode16.
template <typename Group, typename Sink>
BF16CODECS_INLINE size_t decode_pairs(PairsDecoder& d, const uint8_t* limit, Sink sink,
                                      size_t steps) {
  return with_groups(
      d.groups, [&](auto groups) { return decode_steps<Group, groups()>(d, limit, sink, steps); });
}

}  // namespace
}  // namespace bf16codecs
