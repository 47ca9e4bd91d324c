// Ranges of blocks: what they give is what each of their blocks gives alone.

#include <algorithm>

#include "core.h"

namespace bf16codecs::fuzz {
namespace {

constexpr size_t kMostBlocks = 24;  // each block alone reads the frame's model again

// Joins the outcomes of blocks that were decoded one by one: the first error is the range's.
Outcome joined(const std::vector<Outcome>& blocks, size_t first, size_t last) {
  Outcome all;
  for (size_t b = first; b < last; ++b) {
    if (!blocks[b].error.empty()) {
      all.error = blocks[b].error;
      return all;
    }
    all.size += blocks[b].size;
  }
  all.bytes.reset(new uint8_t[all.size]);
  uint8_t* out = all.bytes.get();
  for (size_t b = first; b < last; ++b) {
    out = std::copy_n(blocks[b].bytes.get(), blocks[b].size, out);
  }
  return all;
}

void test(const FrameIndex& index, const uint8_t* frame) {
  const size_t n = index.blocks();
  std::vector<Outcome> blocks;
  for (size_t b = 0; b < n; ++b) blocks.push_back(decode(index, frame, b, b + 1));
  const size_t ranges[][2] = {{0, n}, {0, n / 2 + 1}, {n / 2, n}, {n / 3, n - n / 3}};
  for (const auto& [first, last] : ranges) {
    CHECK(decode(index, frame, first, last) == joined(blocks, first, last));
  }
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  FrameIndex index;
  if (fuzz::is_frame_to_decode(data, size, index) && index.blocks() <= fuzz::kMostBlocks) {
    fuzz::use(*fuzz::instruction_sets().back());
    fuzz::test(index, data);
  }
  return 0;
}
