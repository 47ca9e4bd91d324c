// Encoders: any bytes with any parameters come back, from no more than the stated size, and every
// instruction set encodes them to the same frame. Some have a base, or are several versions.

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
  options.has_base = (flags & 48) == 16;
  if ((flags & 48) == 32) options.steps = 2 + flags / 64 * 2;
  if (options.has_base || options.steps > 1) options.layout.by_byte = false;
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

// Bytes near others: with few bytes changed, most items changed a little, or nothing alike.
void change(Bytes& bytes, size_t width, test::Random& random) {
  const unsigned kind = random.below(8), seldom = 1 + random.below(200);
  const unsigned most = 1 + random.below(random.below(2) == 0 ? 4 : 256);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (kind == 1 ? random.below(seldom) != 0 : kind > 2 && i % width != 0) continue;
    bytes[i] =
        static_cast<uint8_t>(bytes[i] + (kind == 0 ? 0 : random.below(kind == 2 ? 256 : most)));
  }
}

// What the bytes are coded against, if anything.
Bytes base_for(const Bytes& raw, const EncodeOptions& options) {
  if (!options.has_base) return {};
  Bytes base = raw;
  test::Random random(raw.size() + options.row);
  change(base, options.layout.planes(), random);
  return base;
}

// As many versions as the options say, each near the one before.
Bytes with_versions(const Bytes& raw, const EncodeOptions& options) {
  if (options.steps == 1) return raw;
  const size_t width = options.layout.planes();
  Bytes version(raw.begin(), raw.end() - static_cast<ptrdiff_t>(raw.size() % width)), all;
  test::Random random(raw.size() + options.row);
  for (unsigned v = 0; v < options.steps; ++v, change(version, width, random)) {
    all.insert(all.end(), version.begin(), version.end());
  }
  return all;
}

Bytes encoded(const Bytes& raw, const EncodeOptions& options, const Bytes& base) {
  Bytes frame(static_cast<size_t>(encode_room(raw.size(), options)));
  const uint8_t* const of_frame = options.has_base ? base.data() : nullptr;
  frame.resize(encode(raw.data(), raw.size(), options, of_frame, frame.data()));
  const auto versions =
      static_cast<uint16_t>(options.has_base || options.steps > 1 ? options.steps : 0);
  CHECK(frame.size() <=
        frame_bound(raw.size(), options.layout.planes(), options.block_log2, versions));
  return frame;
}

void check_decodes(const Bytes& frame, const Bytes& raw, const Bytes& base) {
  FrameIndex index;
  CHECK(is_whole_frame(frame.data(), frame.size(), index));
  CHECK(index.header.raw_size == raw.size());
  if (index.blocks() == 0) {
    CHECK(index.tail == raw);
    return;
  }
  if (index.header.needs_base()) check_base(index, base.data(), base.size());
  const Outcome outcome = decode_all(index, frame.data(), base);
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
  const Bytes base = base_for(raw, options);
  const Bytes frame = encoded(raw, options, base);
  for (const Kernels* set : instruction_sets()) {
    if (set == &kScalarKernels) continue;
    use(*set);
    CHECK(encoded(raw, options, base) == frame);
  }
  check_decodes(frame, raw, base);
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  fuzz::Reader in(data, size);
  EncodeOptions options = fuzz::read_options(in);
  const fuzz::Bytes raw = fuzz::with_versions(fuzz::read_raw(in), options);
  fuzz::limit_blocks(raw.size(), options);
  fuzz::test(raw, options);
  return 0;
}
