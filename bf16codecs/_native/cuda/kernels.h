#pragma once

// The kernels' loops over jobs: each warp takes the next job in order.

#include "cuda/block.h"
#include "cuda/fused.h"
#include "cuda/fused_delta.h"
#include "cuda/huffman_blocks.h"
#include "cuda/job.h"
#include "cuda/levels.h"

namespace bf16codecs::cuda {

// Decodes usual blocks, which are nearly all, in one pass. Others stay pending.
BF16CODECS_DEVICE void decode_fused_job(const Warp& warp, FusedMemory& memory, const Job& job,
                                        uint8_t* verdict) {
  if (!is_usual(warp, job, Mode::rans_pairs)) return;
  uint32_t checksum = 0;
  const bool is_sound =
      decode_fused(warp, memory, coded_plane(job), coded_size(job), stored_plane(job), job.n,
                   reinterpret_cast<uint8_t*>(job.items), checksum) &&
      ((job.flags & kJobChecked) == 0 || checksum == job.checksum);
  const Verdict result = is_sound ? Verdict::done : Verdict::corrupt;
  warp.once([&] { *verdict = static_cast<uint8_t>(result); });
}

// Calls function(i, verdict) for each job i that this warp takes.
template <typename Function>
BF16CODECS_DEVICE void for_each_job(const Warp& warp, uint32_t n, uint32_t* next,
                                    const uint8_t* verdicts, Function function) {
  for (uint32_t i = warp.count_up(next); i < n; i = warp.count_up(next)) {
    const Verdict verdict{warp.same(verdicts[i])};
    warp.sync();  // the first thread may write it
    function(i, verdict);
  }
}

// Calls function(i) for each pending job i that this warp takes.
template <typename Function>
BF16CODECS_DEVICE void for_each_pending(const Warp& warp, uint32_t n, uint32_t* next,
                                        const uint8_t* verdicts, Function function) {
  for_each_job(warp, n, next, verdicts, [&](uint32_t i, Verdict verdict) {
    if (verdict == Verdict::pending) function(i);
  });
}

BF16CODECS_DEVICE void decode_fused(const Warp& warp, FusedMemory& memory, const Job* jobs,
                                    uint32_t n, uint32_t* next, uint8_t* verdicts) {
  for_each_pending(warp, n, next, verdicts, [&](uint32_t i) {
    decode_fused_job(warp, memory, warp.same(jobs[i]), verdicts + i);
  });
}

// Decodes usual blocks of differences. Others stay pending.
BF16CODECS_DEVICE void decode_fused_delta(const Warp& warp, FusedDeltaMemory& memory,
                                          const Job* jobs, uint32_t n, uint32_t* next,
                                          uint8_t* verdicts) {
  for_each_pending(warp, n, next, verdicts, [&](uint32_t i) {
    const Verdict verdict = decode_fused_delta(warp, memory, warp.same(jobs[i]));
    warp.once([&] { verdicts[i] = static_cast<uint8_t>(verdict); });
  });
}

// Decodes plane 0 of usual blocks of the codec Huffman, four at a time. Others stay pending.
BF16CODECS_DEVICE void decode_huffman(const Warp& warp, HuffmanBlocksMemory& memory,
                                      const Job* jobs, uint32_t n, uint32_t* next,
                                      uint8_t* verdicts) {
  const auto take = [&] { return warp.count_up(next, kHuffmanBlocks); };
  for (uint32_t first = take(); first < n; first = take()) {
    const uint32_t pending = warp.ballot([&](unsigned t) {
      return t < kHuffmanBlocks && t < n - first &&
             Verdict{verdicts[first + t]} == Verdict::pending;
    });
    warp.sync();  // the first thread may write them
    if (pending != 0) decode_huffman_blocks(warp, memory, jobs + first, pending, verdicts + first);
  }
}

// Decodes all kinds of blocks, some of them to planes that are left to merge. Blocks with several
// coded planes need memory: warp w uses `scratch_size` bytes from scratch + w scratch_size on.
// Without it, such blocks stay pending.
BF16CODECS_DEVICE void decode_any(const Warp& warp, BlockMemory& memory, const Job* jobs,
                                  uint32_t n, uint32_t* next, uint8_t* verdicts, uint8_t* scratch,
                                  uint64_t scratch_size) {
  for_each_pending(warp, n, next, verdicts, [&](uint32_t i) {
    Job job = warp.same(jobs[i]);
    Verdict verdict = Verdict::other_base;
    const bool is_grid = (job.flags & kJobGrid) != 0;
    // (One comparison for both would cost registers.)
    if (!is_grid || !has_other_base(warp, memory, job)) {
      if (is_grid) job = symbols_job(warp, job);
      verdict = BlockDecoder(warp, memory, job, scratch, scratch_size).run();
    }
    warp.once([&] { verdicts[i] = static_cast<uint8_t>(verdict); });
  });
}

// Merges the planes of jobs whose plane 0 is decoded, and of blocks of two stored planes. Others
// stay pending.
BF16CODECS_DEVICE void merge_planes(const Warp& warp, MergeMemory& memory, const Job* jobs,
                                    uint32_t n, uint32_t* next, uint8_t* verdicts) {
  for_each_job(warp, n, next, verdicts, [&](uint32_t i, Verdict of_job) {
    const bool is_decoded = of_job == Verdict::to_merge;
    if (!is_decoded && of_job != Verdict::pending) return;
    const Job job = warp.same(jobs[i]);
    if (!is_decoded && !is_stored(warp, job)) return;
    const uint8_t* const low = is_decoded ? stored_plane(job) : bytes_at(job.payload) + job.width;
    const uint8_t* const high = is_decoded ? decoded_plane(job) : low + job.n;
    const uint32_t checksum =
        merge_two_planes(warp, memory, high, low, job.n, reinterpret_cast<uint8_t*>(job.items));
    const bool is_sound = (job.flags & kJobChecked) == 0 || checksum == job.checksum;
    const Verdict verdict = is_sound ? Verdict::done : Verdict::corrupt;
    warp.once([&] { verdicts[i] = static_cast<uint8_t>(verdict); });
  });
}

// Makes the items of grids whose symbols are decoded, stored or constant. Others stay pending.
BF16CODECS_DEVICE void multiply_levels(const Warp& warp, LevelsMemory& memory, const Job* jobs,
                                       uint32_t n, uint32_t* next, uint8_t* verdicts) {
  for_each_job(warp, n, next, verdicts, [&](uint32_t i, Verdict of_job) {
    const bool is_decoded = of_job == Verdict::to_multiply;
    if (!is_decoded && of_job != Verdict::pending) return;
    const Job job = warp.same(jobs[i]);
    if ((job.flags & kJobGrid) == 0) return;
    const Grid grid = warp.same(*reinterpret_cast<const Grid*>(job.section));
    if (!is_decoded && (is_coded(grid.mode) || (job.flags & kJobBaseChecked) != 0)) return;
    const uint32_t checksum = multiply_levels(warp, memory, job, grid);
    const bool is_sound = (job.flags & kJobChecked) == 0 || checksum == job.checksum;
    const Verdict verdict = is_sound ? Verdict::done : Verdict::corrupt;
    warp.once([&] { verdicts[i] = static_cast<uint8_t>(verdict); });
  });
}

}  // namespace bf16codecs::cuda
