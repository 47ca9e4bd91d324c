#pragma once

// The kernels for CUDA, run on the processor (cuda/lockstep.h), on memory of exactly the sizes in
// question.

#include <vector>

#include "check.h"
#include "codec.h"
#include "cuda/job.h"
#include "format/frame.h"

namespace bf16codecs::test {

// How the kernels run: the order of a warp's threads, whether there is memory for blocks with
// several coded planes, whether a warp takes four blocks of the codec Huffman, whether there is the
// kernel for all blocks, and whether the checksums of a base are compared.
struct Device {
  bool backwards = false;
  bool has_scratch = true;
  bool joins_blocks = true;
  bool decodes_unusual = true;
  bool checks_base = true;

  // Runs kernels, a combination of cuda::Kernel, on jobs.
  std::vector<cuda::Verdict> run(const std::vector<cuda::Job>& jobs, uint8_t kernels) const;

  // Decodes all blocks of a frame to out, version by version. `base` is that of a frame that needs
  // one; it may be `out`. Returns a verdict for each block; those that the host has to decode are
  // decoded by it.
  std::vector<cuda::Verdict> decode(const FrameIndex& index, const uint8_t* frame,
                                    const uint8_t* base, uint8_t* out, const Zstd* zstd) const;
};

}  // namespace bf16codecs::test
