#pragma once

// The usual blocks of the codec Huffman: 16-bit items whose plane 0, of exponents, has eight
// Huffman streams, and whose plane 1 is stored. A warp decodes four at a time, so that each thread
// has a stream.

#include "cuda/huffman.h"
#include "cuda/job.h"
#include "cuda/two_planes.h"
#include "cuda/window.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kHuffmanBlocks = kThreads / kHuffmanStreams;

struct HuffmanBlocksMemory {
  BF16CODECS_ONE_OF {
    HuffmanMemory of[kHuffmanBlocks];
    struct {
      Window::Memory high, low;
      Shared<kStripBytes> strip;
    } merging;
  }
  part;
};

// Merges n exponents, which lie in the second half of the items' memory, with their low bytes;
// returns the checksum of the items.
BF16CODECS_DEVICE uint32_t merge_two_planes(const Warp& warp, HuffmanBlocksMemory& memory,
                                            const uint8_t* low, uint32_t n, uint8_t* items) {
  constexpr unsigned kStep = 256;
  constexpr unsigned kGroup = 2 * kThreads;
  const uint8_t* const high = items + n;
  Strips strips(warp, memory.part.merging.strip, items);
  Window highs(warp, memory.part.merging.high, high, high + n);
  Window lows(warp, memory.part.merging.low, low, low + n);
  const uint32_t whole = n - n % kStep;
  for (uint32_t at = 0; at < whole; at += kStep) {
    highs.reach(highs.begin() + at, kStep);
    lows.reach(lows.begin() + at, kStep);
    const unsigned high_at = (highs.begin() + at) % kWindowBytes;
    const unsigned low_at = (lows.begin() + at) % kWindowBytes;
    BF16CODECS_UNROLLED
    for (unsigned i = 0; i < kStep; i += kGroup) {
      PerThread<uint32_t> words;
      warp.each([&](unsigned t) {
        const unsigned of_thread = i + 2 * t;
        words[t] = two_items(highs.load16(high_at + of_thread), lows.load16(low_at + of_thread));
      });
      strips.pass_words(words);
    }
  }
  pass_two_planes(warp, high + whole, low + whole, n - whole, strips);
  return strips.checksum();
}

// Decodes those of four jobs from `jobs` on whose bit in `pending` is set.
BF16CODECS_DEVICE void decode_huffman_blocks(const Warp& warp, HuffmanBlocksMemory& memory,
                                             const Job* jobs, uint32_t pending, uint8_t* verdicts) {
  PerThread<StreamBounds> bounds;
  warp.each([&](unsigned t) { bounds[t] = {}; });
  uint32_t usual = 0, sound = 0;
  BF16CODECS_ROLLED
  for (unsigned q = 0; q < kHuffmanBlocks; ++q) {
    if ((pending >> q & 1) == 0) continue;
    const Job job = warp.same(jobs[q]);
    if (job.n % 2 != 0 || job.n < kHuffmanStreamsFrom) continue;
    if (!is_usual(warp, job, Mode::huffman)) continue;
    usual |= 1u << q;
    auto* const plane = reinterpret_cast<uint8_t*>(job.items) + job.n;
    const bool is_sound = find_streams(warp, memory.part.of[q], coded_plane(job), coded_size(job),
                                       plane, job.n, kHuffmanStreams * q, bounds);
    sound |= is_sound ? 1u << q : 0;
  }
  warp.sync();
  const uint32_t bad = warp.ballot([&](unsigned t) {
    const unsigned q = t / kHuffmanStreams;
    return (sound >> q & 1) != 0 && !decode_stream(memory.part.of[q], bounds[t]);
  });
  warp.sync();
  BF16CODECS_ROLLED
  for (unsigned q = 0; q < kHuffmanBlocks; ++q) {
    if ((usual >> q & 1) == 0) continue;
    const Job job = warp.same(jobs[q]);
    bool is_sound = (sound >> q & 1) != 0 && (bad >> kHuffmanStreams * q & 255) == 0;
    if (is_sound) {
      const uint32_t checksum = merge_two_planes(warp, memory, stored_plane(job), job.n,
                                                 reinterpret_cast<uint8_t*>(job.items));
      is_sound = (job.flags & kJobChecked) == 0 || checksum == job.checksum;
    }
    warp.sync();
    const Verdict verdict = is_sound ? Verdict::done : Verdict::corrupt;
    warp.once([&] { verdicts[q] = static_cast<uint8_t>(verdict); });
  }
}

}  // namespace bf16codecs::cuda
