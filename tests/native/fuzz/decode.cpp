// Whole frames: on every instruction set the same bytes, or the same error; in place, too, where
// they are differences to a base, of which there is any. Growing frames, too.

#include "core.h"
#include "format/checksum.h"

namespace bf16codecs::fuzz {
namespace {

bool sums_agree(const FrameIndex& index, const uint8_t* raw) {
  for (size_t b = 0; b < index.blocks(); ++b) {
    const size_t size = index.items(b, b + 1) * index.header.width();
    if (checksum(raw, size) != index.checksums[b]) return false;
    raw += size;
  }
  return true;
}

void test(FrameIndex& index, const uint8_t* frame) {
  const Bytes base = base_of(index);
  error_of([&] { check_base(index, base.data(), base.size()); });
  // First without the blocks' checksums, or the first damaged block would be the last to be seen.
  const bool has_checksums = index.header.has_checksums;
  index.header.has_checksums = false;
  use(kScalarKernels);
  const Outcome scalar = decode_all(index, frame, base);
  for (const Kernels* set : instruction_sets()) {
    if (set == &kScalarKernels) continue;
    use(*set);
    CHECK(decode_all(index, frame, base) == scalar);
  }
  if (index.header.needs_base()) CHECK(decode_all(index, frame, base, true) == scalar);
  if (!has_checksums) return;
  index.header.has_checksums = true;
  const bool is_sound = scalar.error.empty() && sums_agree(index, scalar.bytes.get());
  const Outcome checked = decode_all(index, frame, base);
  CHECK(is_sound ? checked == scalar : !checked.error.empty());
}

void test(const Growing& growing, const uint8_t* data) {
  use(kScalarKernels);
  const Outcome scalar = decode_all(growing, data);
  for (const Kernels* set : instruction_sets()) {
    use(*set);
    CHECK(decode_all(growing, data) == scalar);
  }
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  FrameIndex index;
  fuzz::Growing growing;
  if (fuzz::is_growing_to_decode(data, size, growing)) {
    fuzz::test(growing, data);
  } else if (fuzz::is_frame_to_decode(data, size, index)) {
    fuzz::test(index, data);
  }
  return 0;
}
