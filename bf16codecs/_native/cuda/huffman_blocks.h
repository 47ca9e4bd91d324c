#pragma once

// Plane 0 of the usual blocks of the codec Huffman: 16-bit items whose plane 0, of exponents, has
// eight Huffman streams, and whose plane 1 is stored. A warp decodes four at a time, so that each
// thread has a stream.

#include "cuda/huffman.h"
#include "cuda/job.h"
#include "cuda/two_planes.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kHuffmanBlocks = kThreads / kHuffmanStreams;

struct HuffmanBlocksMemory {
  HuffmanTables<kHuffmanBlocks> tables;
  HuffmanLengths lengths;  // of the table that is filled
  HuffmanWords words;
};

// Decodes plane 0 of those of four jobs from `jobs` on whose bit in `pending` is set, to where they
// can be merged.
BF16CODECS_DEVICE void decode_huffman_blocks(const Warp& warp, HuffmanBlocksMemory& memory,
                                             const Job* jobs, uint32_t pending, uint8_t* verdicts) {
  PerThread<HuffmanStream<kHuffmanBlocks>> streams;
  warp.each([&](unsigned t) { streams[t] = {}; });
  uint32_t usual = 0, sound = 0;  // of four blocks
  uint32_t of = 0, symbols = 0;   // threads with streams, and the most symbols of one
  BF16CODECS_ROLLED
  for (unsigned q = 0; q < kHuffmanBlocks; ++q) {
    if ((pending >> q & 1) == 0) continue;
    const Job job = warp.same(jobs[q]);
    if (job.n < kHuffmanStreamsFrom || !is_usual(warp, job, Mode::huffman)) continue;
    usual |= 1u << q;
    const bool is_sound =
        find_streams<kHuffmanBlocks>(warp, memory.lengths, memory.tables, coded_plane(job),
                                     coded_size(job), decoded_plane(job), job.n, q, streams);
    sound |= is_sound ? 1u << q : 0;
    of |= is_sound ? threads_before(kHuffmanStreams) << kHuffmanStreams * q : 0;
    const auto longest = static_cast<uint32_t>(HuffmanLayout(job.n).longest());
    symbols = symbols < longest ? longest : symbols;
  }
  warp.sync();
  const uint32_t bad =
      decode_streams<kHuffmanBlocks>(warp, memory.tables, memory.words, of, symbols, streams);
  warp.each([&](unsigned t) {
    if (t >= kHuffmanBlocks || (usual >> t & 1) == 0) return;
    const bool is_sound = (sound >> t & 1) != 0 && (bad >> kHuffmanStreams * t & 255) == 0;
    verdicts[t] = static_cast<uint8_t>(is_sound ? Verdict::to_merge : Verdict::corrupt);
  });
  warp.sync();
}

}  // namespace bf16codecs::cuda
