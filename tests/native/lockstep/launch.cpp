// The kernels as the driver's stand-in starts them (tests/support/cuda_driver.py).

#include <cstdlib>
#include <cstring>
#include <memory>

#include "cuda/kernels.h"
#include "cuda/rows.h"

namespace {

using namespace bf16codecs::cuda;

template <typename T>
T argument(void** arguments, unsigned i) {
  return *static_cast<T*>(arguments[i]);
}

void copy(uint32_t warps, void** arguments) {
  const RowCopy rows{argument<uint64_t>(arguments, 4), argument<uint64_t>(arguments, 5),
                     argument<uint64_t>(arguments, 1), argument<uint64_t>(arguments, 3)};
  for (uint32_t w = 0; w < warps; ++w) {
    copy_rows(Warp(w % 2 != 0), w, warps, argument<uint8_t*>(arguments, 0),
              argument<const uint8_t*>(arguments, 2), rows);
  }
}

}  // namespace

extern "C" void bf16codecs_lockstep_launch(const char* kernel, uint32_t warps, void** arguments) {
  if (std::strcmp(kernel, "bf16codecs_copy_rows") == 0) return copy(warps, arguments);
  const auto* const jobs = argument<const Job*>(arguments, 0);
  const auto n = argument<uint32_t>(arguments, 1);
  auto* const next = argument<uint32_t*>(arguments, 2);
  auto* const verdicts = argument<uint8_t*>(arguments, 3);
  const auto is = [&](const char* name) { return std::strcmp(kernel, name) == 0; };
  // The last warp begins, and takes all: it has the last part of the memory.
  for (uint32_t w = warps; w-- != 0 && *next < n;) {
    const Warp warp(w % 2 != 0);
    if (is("bf16codecs_decode_fused")) {
      decode_fused(warp, *std::make_unique<FusedMemory>(), jobs, n, next, verdicts);
    } else if (is("bf16codecs_decode_huffman")) {
      decode_huffman(warp, *std::make_unique<HuffmanBlocksMemory>(), jobs, n, next, verdicts);
    } else if (is("bf16codecs_decode_fused_delta")) {
      decode_fused_delta(warp, *std::make_unique<FusedDeltaMemory>(), jobs, n, next, verdicts);
    } else if (is("bf16codecs_merge_planes")) {
      merge_planes(warp, *std::make_unique<MergeMemory>(), jobs, n, next, verdicts);
    } else if (is("bf16codecs_multiply_levels")) {
      multiply_levels(warp, *std::make_unique<LevelsMemory>(), jobs, n, next, verdicts);
    } else if (is("bf16codecs_decode_any")) {
      const auto size = argument<uint64_t>(arguments, 5);
      decode_any(warp, *std::make_unique<BlockMemory>(), jobs, n, next, verdicts,
                 argument<uint8_t*>(arguments, 4) + w * size, size);
    } else {
      std::abort();
    }
  }
}
