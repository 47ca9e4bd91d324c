// Encoders: any bytes with any parameters come back, from no more than the stated size, and every
// instruction set encodes them to the same frame.

#include <algorithm>

#include "core.h"

namespace bf16codecs::fuzz {
namespace {

EncodeOptions read_options(Reader& in) {
  EncodeOptions options;
  options.codec = Codec{static_cast<uint8_t>(1 + in.u8() % 4)};
  options.layout.dtype = DType{static_cast<uint8_t>(in.u8() % kDTypes)};
  const uint8_t flags = in.u8();
  options.layout.by_byte = (flags & 1) != 0;
  options.has_checksums = (flags & 2) != 0;
  options.level = flags >> 2 & 1;
  options.block_log2 = block_log2_for(0, options.layout.planes());
  if ((flags & 8) != 0) {
    options.block_log2 = kMinBlockLog2 + in.u8() % (options.block_log2 - kMinBlockLog2 + 4);
  }
  options.row = in.u16();
  options.zstd = &zstd();
  return options;
}

// The bytes that are left; or more, up to 45 kB, drawn from them at random: planes of several lanes
// and streams, and those of more than 2^14 symbols, which are sampled, come of a small input then.
Bytes read_raw(Reader& in) {
  constexpr unsigned kAsTheyAre = 160;
  const unsigned kind = in.u8();
  const uint16_t seed = in.u16();
  if (in.left() == 0 || kind < kAsTheyAre) return Bytes(in.rest(), in.rest() + in.left());
  test::Random random(seed);
  const size_t root = kind - kAsTheyAre;
  Bytes raw(5 * root * root + seed % 8);
  for (size_t i = 0; i < raw.size(); ++i) {
    // From even places and odd ones in turn, so that there are exponents and mantissas.
    const size_t at = seed == 0 ? i : 2 * size_t{random.below(in.left())} + i % 2;
    raw[i] = in.rest()[at % in.left()];
  }
  return raw;
}

Bytes encoded(const Bytes& raw, const EncodeOptions& options) {
  Bytes frame(static_cast<size_t>(encode_room(raw.size(), options)));
  frame.resize(encode(raw.data(), raw.size(), options, nullptr, frame.data()));
  CHECK(frame.size() <= frame_bound(raw.size(), options.layout.planes(), options.block_log2));
  return frame;
}

void check_decodes(const Bytes& frame, const Bytes& raw) {
  FrameIndex index;
  CHECK(is_whole_frame(frame.data(), frame.size(), index));
  CHECK(index.header.raw_size == raw.size());
  if (index.blocks() == 0) {
    CHECK(index.tail == raw);
    return;
  }
  const Outcome outcome = decode(index, frame.data(), 0, index.blocks());
  CHECK(outcome.error.empty());
  CHECK(std::equal(raw.begin(), raw.end(), outcome.bytes.get()));
}

// More blocks than a few take long, and none of them is new.
void limit_blocks(size_t raw_size, EncodeOptions& options) {
  constexpr size_t kMostBlocks = 8;
  while (raw_size / options.layout.planes() >> options.block_log2 > kMostBlocks) {
    ++options.block_log2;
  }
}

void test(const Bytes& raw, const EncodeOptions& options) {
  use(kScalarKernels);
  const Bytes frame = encoded(raw, options);
  for (const Kernels* set : instruction_sets()) {
    if (set == &kScalarKernels) continue;
    use(*set);
    CHECK(encoded(raw, options) == frame);
  }
  check_decodes(frame, raw);
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  fuzz::Reader in(data, size);
  EncodeOptions options = fuzz::read_options(in);
  const fuzz::Bytes raw = fuzz::read_raw(in);
  fuzz::limit_blocks(raw.size(), options);
  fuzz::test(raw, options);
  return 0;
}
