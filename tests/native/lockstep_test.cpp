// The kernels for CUDA, in lockstep, on frames of every codec, layout and size around steps and
// blocks, and on damaged ones: the processor's decoder says what is expected.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "check.h"
#include "codec.h"
#include "codec/device_plan.h"
#include "cuda/rows.h"
#include "format/checksum.h"
#include "format/errors.h"
#include "lockstep/compare.h"
#include "lockstep/device.h"
#include "lockstep/grids.h"

namespace bf16codecs::test {
namespace {

// Numbers of 16 bits: weights, whose exponents fall off geometrically; some of them anything, which
// makes escapes; and noise.
Bytes numbers(size_t size, unsigned outliers, Random& random) {
  Bytes raw(size);
  for (size_t i = 0; i < size; i += 2) {
    const uint64_t bits = random.next();
    unsigned exponent = 121 - static_cast<unsigned>(std::countr_zero(bits | 1u << 20));
    if ((bits >> 56) < outliers) exponent = bits >> 48 & 255;
    const auto number = static_cast<uint16_t>((bits >> 32 & 0x807F) | exponent << 7);
    raw[i] = static_cast<uint8_t>(number);
    if (i + 1 < size) raw[i + 1] = static_cast<uint8_t>(number >> 8);
  }
  return raw;
}

// Most of the bytes, changed a little.
Bytes changed(const Bytes& raw, size_t width, Random& random) {
  Bytes result = raw;
  for (size_t i = 0; i < raw.size(); i += width) {
    if (random.below(4) != 0) result[i] = static_cast<uint8_t>(result[i] + random.below(5) - 2);
    if (random.below(999) == 0) result[i] = random.byte();
  }
  return result;
}

Bytes encode_frame(const Bytes& raw, EncodeOptions options, const Bytes* base) {
  options.has_base = base != nullptr;
  Bytes frame(static_cast<size_t>(encode_room(raw.size(), options)));
  frame.resize(encode(raw.data(), raw.size(), options, base == nullptr ? nullptr : base->data(),
                      frame.data()));
  return frame;
}

// A frame, and the same with bits of its blocks flipped, without checksums that would hide the
// rest.
void test_frame(const Bytes& raw, const EncodeOptions& options, const Bytes* base, unsigned damages,
                Random& random) {
  Bytes frame = encode_frame(raw, options, base);
  FrameIndex index = read_index(frame.data(), frame.size());
  const Bytes of_frame = base == nullptr ? Bytes() : *base;
  compare_on_device(index, frame.data(), of_frame, nullptr);
  if (index.blocks() == 0) return;
  const auto head = static_cast<size_t>(index.offsets.front());
  index.header.has_checksums = false;
  for (; damages != 0; --damages) {
    Bytes copy = frame;
    for (unsigned flips = 1 + random.below(3); flips != 0; --flips) {
      copy[head + random.below(frame.size() - head)] ^= static_cast<uint8_t>(1 << random.below(8));
    }
    compare_on_device(index, copy.data(), of_frame, nullptr);
  }
}

constexpr DType kDTypesOfAll[] = {DType::bfloat16, DType::float16,       DType::float32,
                                  DType::float64,  DType::float8_e4m3fn, DType::float8_e5m2};

void test_codecs(Random& random) {
  // Around steps of 1, 2 and 4 groups of lanes, Huffman's streams, and blocks.
  for (const size_t size : {1u, 2u, 127u, 128u, 257u, 1000u, 8192u, 9999u, 65536u, 80001u}) {
    for (const unsigned outliers : {0u, 3u, 256u}) {
      const Bytes raw = numbers(size, outliers, random);
      for (const Codec codec : {Codec::split, Codec::huffman, Codec::arithmetic}) {
        for (const DType dtype : kDTypesOfAll) {
          EncodeOptions options;
          options.codec = codec;
          options.layout = {dtype, codec == Codec::split && size % 2 == 0};
          options.has_checksums = size % 3 != 0;
          options.block_log2 = size % 2 == 0 ? 12 : 15;
          test_frame(raw, options, nullptr, size < 9999 ? 3 : 1, random);
        }
      }
    }
  }
}

// Blocks of the default size have four groups of lanes.
void test_large(Random& random) {
  const Bytes raw = numbers(700'001, 2, random);
  for (const Codec codec : {Codec::huffman, Codec::arithmetic}) {
    for (const DType dtype : kDTypesOfAll) {
      EncodeOptions options;
      options.codec = codec;
      options.layout = {dtype, false};
      options.block_log2 = block_log2_for(0, options.layout.planes());
      test_frame(raw, options, nullptr, 2, random);
    }
  }
}

void test_differences(Random& random) {
  for (const size_t size : {64u, 1000u, 24'000u, 300'000u}) {
    for (const DType dtype : kDTypesOfAll) {
      EncodeOptions options;
      options.codec = Codec::arithmetic;
      options.layout = {dtype, false};
      options.row = 100;
      options.block_log2 = 14;
      const Bytes base = numbers(size, 1, random);
      const Bytes raw = changed(base, options.layout.planes(), random);
      for (const int level : {0, kBest}) {
        options.level = level;
        test_frame(raw, options, &base, size < 99'999 ? 4 : 1, random);
      }
    }
  }
}

// Blocks of the default size have a kernel of their own.
void test_large_differences(Random& random) {
  for (const size_t row : {0u, 17u, 100u, 3000u}) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      EncodeOptions options;
      options.codec = Codec::arithmetic;
      options.layout = {dtype, false};
      options.row = row;
      options.block_log2 = block_log2_for(0, options.layout.planes());
      const Bytes base = numbers(700'006, 1, random);
      const Bytes raw = changed(base, 2, random);
      for (const int level : {0, kBest}) {
        options.level = level;
        test_frame(raw, options, &base, 3, random);
      }
      options.level = 0;
      const Bytes frame = encode_frame(raw, options, &base);
      Bytes out(raw.size());
      Device device;
      device.decodes_unusual = false;
      const auto verdicts = device.decode(read_index(frame.data(), frame.size()), frame.data(),
                                          base.data(), out.data(), nullptr);
      for (const auto verdict : verdicts) CHECK(verdict == cuda::Verdict::done);
      CHECK(out == raw);
    }
  }
}

void test_versions(Random& random) {
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    EncodeOptions options;
    options.codec = Codec::arithmetic;
    options.layout = {dtype, false};
    options.block_log2 = 12;
    options.steps = 5;
    Bytes all, step = numbers(36'000, 1, random);
    for (unsigned i = 0; i < options.steps; ++i) {
      all.insert(all.end(), step.begin(), step.end());
      step = changed(step, options.layout.planes(), random);
    }
    test_frame(all, options, nullptr, 6, random);
  }
}

// Usual blocks are decoded by kernels of their own; small ones are not, unless their planes are
// stored.
void test_usual_blocks(Random& random) {
  constexpr size_t kItems = 4096, kWhole = 6;
  const Bytes raw = numbers(2 * (kWhole * kItems + 100), 0, random);
  for (const Codec codec : {Codec::huffman, Codec::arithmetic}) {
    EncodeOptions options;
    options.codec = codec;
    options.block_log2 = 12;
    const Bytes frame = encode_frame(raw, options, nullptr);
    const FrameIndex index = read_index(frame.data(), frame.size());
    Bytes out(raw.size());
    Device device;
    device.decodes_unusual = false;
    const auto verdicts = device.decode(index, frame.data(), nullptr, out.data(), nullptr);
    CHECK(verdicts.size() == kWhole + 1);
    for (size_t b = 0; b < kWhole; ++b) CHECK(verdicts[b] == cuda::Verdict::done);
    CHECK(std::equal(raw.begin(), raw.begin() + 2 * kWhole * kItems, out.begin()));
    const bool is_stored = frame[static_cast<size_t>(index.offsets[kWhole])] == 0;
    CHECK(verdicts[kWhole] == (is_stored ? cuda::Verdict::done : cuda::Verdict::pending));
  }
}

// Blocks of two planes that end anywhere, at any address that the kernels for them take.
void test_ends_and_addresses(Random& random, Codec codec) {
  EncodeOptions options;
  options.codec = codec;
  options.block_log2 = 13;
  for (size_t i = 0; i < 66; ++i) {
    const size_t n = 4096 + (i < 40 ? i : 5 * i), shift = i % 4 * 4;
    const Bytes raw = numbers(2 * n, static_cast<unsigned>(i % 3), random);
    const Bytes frame = encode_frame(raw, options, nullptr);
    const FrameIndex index = read_index(frame.data(), frame.size());
    Bytes room(raw.size() + 16, 0xA5);
    uint8_t* const out = room.data() + shift;
    Device device{.backwards = i % 2 != 0};
    device.decodes_unusual = false;
    const auto verdicts = device.decode(index, frame.data(), nullptr, out, nullptr);
    CHECK(verdicts.size() == 1 && verdicts[0] == cuda::Verdict::done);
    CHECK(std::equal(raw.begin(), raw.end(), out));
    CHECK(std::all_of(room.data(), out, [](uint8_t byte) { return byte == 0xA5; }));
    CHECK(std::all_of(out + raw.size(), room.data() + room.size(),
                      [](uint8_t byte) { return byte == 0xA5; }));
  }
}

// Another base than that of the frame: in a step of usual and other blocks, and behind the last
// one.
void test_other_base(Random& random, unsigned block_log2) {
  const Bytes base = numbers(700'006, 0, random), raw = changed(base, 2, random);
  EncodeOptions options;
  options.codec = Codec::arithmetic;
  options.block_log2 = block_log2;
  const Bytes frame = encode_frame(raw, options, &base);
  const FrameIndex index = read_index(frame.data(), frame.size());
  Bytes out(raw.size());
  for (const size_t at : {size_t{0}, size_t{12'345}, size_t{700'000}, base.size() - 1}) {
    Bytes other = base;
    other[at] ^= 1;
    const auto verdicts = Device{}.decode(index, frame.data(), other.data(), out.data(), nullptr);
    for (size_t b = 0; b < verdicts.size(); ++b) {
      const bool is_other = b == at / (size_t{2} << block_log2);
      CHECK(verdicts[b] == (is_other ? cuda::Verdict::other_base : cuda::Verdict::done));
    }
  }
}

// Damage that the other blocks of a warp must not notice, and modes that a frame has no model for.
void test_damaged_heads(Random& random) {
  constexpr size_t kItems = 4096, kHead = 6;
  const Bytes raw = numbers(2 * 4 * kItems, 0, random);
  for (const Codec codec : {Codec::huffman, Codec::arithmetic}) {
    EncodeOptions options;
    options.codec = codec;
    options.block_log2 = 12;
    const Bytes frame = encode_frame(raw, options, nullptr);
    FrameIndex index = read_index(frame.data(), frame.size());
    index.header.has_checksums = false;
    for (size_t b = 0; b < index.blocks(); ++b) {
      const auto block = static_cast<size_t>(index.offsets[b]);
      Bytes damaged = frame;
      damaged[block + kHead + kItems] = 0xCC;  // no such length, and no such number of groups
      compare_on_device(index, damaged.data(), {}, nullptr);
      damaged = frame;
      damaged[block] = static_cast<uint8_t>(Mode::difference);
      compare_on_device(index, damaged.data(), {}, nullptr);
    }
  }
}

// What only jobs can say: no memory for planes, an address for items that is not aligned.
void test_jobs(Random& random) {
  const Bytes raw = numbers(50'000, 0, random);
  EncodeOptions options;
  options.codec = Codec::huffman;
  options.block_log2 = 12;
  options.layout = {DType::float32, false};
  Bytes frame = encode_frame(raw, options, nullptr);
  FrameIndex index = read_index(frame.data(), frame.size());
  Bytes out(raw.size());
  Device without;
  without.has_scratch = false;
  for (const auto verdict : without.decode(index, frame.data(), nullptr, out.data(), nullptr)) {
    CHECK(verdict == cuda::Verdict::done || verdict == cuda::Verdict::pending);
  }

  options = {};
  options.codec = Codec::arithmetic;
  options.block_log2 = 12;
  frame = encode_frame(raw, options, nullptr);
  index = read_index(frame.data(), frame.size());
  Bytes room(raw.size() + 16);
  for (size_t shift = 0; shift < 16; ++shift) {
    for (const auto verdict :
         Device{}.decode(index, frame.data(), nullptr, room.data() + shift, nullptr)) {
      CHECK(verdict == cuda::Verdict::done);
    }
    CHECK(std::equal(raw.begin(), raw.end(), room.begin() + static_cast<ptrdiff_t>(shift)));
  }
}

// Grids of all kinds; then damaged, with and without the checksums of what they were.
void test_grids(Random& random) {
  for (unsigned i = 0; i < 400; ++i) {
    GridFrame grids = random_grids(random);
    FrameIndex& index = grids.index;
    CHECK(DevicePlan(index, 0, index.blocks(), grids.blocks.data()).needs(grids.blocks.data(), 0));
    compare_on_device(index, grids.frame(), {}, nullptr);
    Bytes room(static_cast<size_t>(index.header.raw_size) + 16);
    uint8_t* const out = room.data() + i % 16;
    const auto verdicts = Device{}.decode(index, grids.frame(), nullptr, out, nullptr);
    for (const auto verdict : verdicts) CHECK(verdict == cuda::Verdict::done);
    index.header.has_checksums = i % 2 == 0;
    for (size_t b = 0; b < index.blocks(); ++b) {
      const auto at = static_cast<size_t>(index.header.first_item(b)) * index.header.width();
      index.checksums.push_back(checksum(out + at, index.raw_size(b, b + 1)));
    }
    for (unsigned damages = 4; damages != 0; --damages) {
      const Bytes sound = grids.blocks;
      grids.blocks[random.below(sound.size())] ^= static_cast<uint8_t>(1 << random.below(8));
      compare_on_device(index, grids.frame(), {}, nullptr);
      grids.blocks = sound;
    }
  }
}

// Weights that were quantised: INT8, a scale for each group.
Bytes quantised(size_t n, size_t group, Random& random) {
  Bytes raw(2 * n);
  float scale = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i % group == 0) scale = (1 + static_cast<float>(random.below(128)) / 128) / 4096;
    const int some = static_cast<int>(random.below(100) + random.below(100)) - 99;
    const int level = i % group == 0 ? 127 : some;
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(level) * scale);
    const auto item = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    std::memcpy(raw.data() + 2 * i, &item, sizeof item);
  }
  return raw;
}

// As encoders make them: beside a model, and instead of differences to a base, which is compared.
void test_encoded_grids(Random& random) {
  EncodeOptions options;
  options.codec = Codec::arithmetic;
  options.row = 1024;
  for (const size_t n : {20'000u, 600'001u}) {
    options.block_log2 = n < 99'999 ? 12 : 18;
    const Bytes raw = quantised(n, 128, random), base = numbers(2 * n, 0, random);
    test_frame(raw, options, nullptr, 3, random);
    test_frame(raw, options, &base, 3, random);
    const Bytes frame = encode_frame(raw, options, &base);
    const FrameIndex index = read_index(frame.data(), frame.size());
    for (size_t b = 0; b + 1 < index.blocks(); ++b) {
      CHECK(Mode{frame[static_cast<size_t>(index.offsets[b])]} == Mode::grid);
    }
    Bytes other = base, out(raw.size());
    other[1] ^= 1;
    const auto verdicts = Device{}.decode(index, frame.data(), other.data(), out.data(), nullptr);
    CHECK(verdicts[0] == cuda::Verdict::other_base && verdicts[1] == cuda::Verdict::done);
  }
}

// Rows at any distances and addresses, copied by several warps.
void test_rows(Random& random) {
  const Bytes from = numbers(100'000, 256, random);
  for (unsigned i = 0; i < 400; ++i) {
    const uint64_t size = i % 8 == 0 ? random.below(9'000) : random.below(70);
    const cuda::RowCopy rows{size, random.below(9), size + random.below(300),
                             size + random.below(300)};
    const uint64_t to_at = random.below(20), from_at = random.below(20);
    Bytes to(to_at + rows.count * rows.to_pitch + 20, 0xA5);
    Bytes expected = to;
    for (uint64_t row = 0; row < rows.count; ++row) {
      std::copy_n(from.data() + from_at + row * rows.from_pitch, size,
                  expected.data() + to_at + row * rows.to_pitch);
    }
    const unsigned warps = 1 + random.below(5);
    for (unsigned warp = 0; warp < warps; ++warp) {
      cuda::copy_rows(cuda::Warp(i % 2 != 0), warp, warps, to.data() + to_at, from.data() + from_at,
                      rows);
    }
    CHECK(to == expected);
  }
}

}  // namespace
}  // namespace bf16codecs::test

int main() {
  using namespace bf16codecs::test;
  Random random(7);
  test_codecs(random);
  test_large(random);
  test_differences(random);
  test_large_differences(random);
  test_versions(random);
  test_usual_blocks(random);
  test_ends_and_addresses(random, bf16codecs::Codec::split);
  test_ends_and_addresses(random, bf16codecs::Codec::huffman);
  for (const unsigned block_log2 : {12u, 18u}) test_other_base(random, block_log2);
  test_damaged_heads(random);
  test_jobs(random);
  test_grids(random);
  test_encoded_grids(random);
  test_rows(random);
  std::puts("every block as on the host");
}
