// Whole frames on the kernels for CUDA, in lockstep (cuda/lockstep.h): each block has the bytes, or
// the verdict, that the processor's decoder gives; in place, too, where they are differences to a
// base.

#include "core.h"
#include "lockstep/compare.h"

namespace bf16codecs::fuzz {
namespace {

void test(FrameIndex& index, const uint8_t* frame) {
  const Bytes base = base_of(index);
  // First without the blocks' checksums, or the first damaged one would be the last to be seen.
  const bool has_checksums = index.header.has_checksums;
  index.header.has_checksums = false;
  // A model is read before any block.
  const std::string error = error_of([&] { test::compare_on_device(index, frame, base, &zstd()); });
  if (!error.empty() || !has_checksums) return;
  index.header.has_checksums = true;
  test::compare_on_device(index, frame, base, &zstd());
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  FrameIndex index;
  if (fuzz::is_frame_to_decode(data, size, index)) fuzz::test(index, data);
  return 0;
}
