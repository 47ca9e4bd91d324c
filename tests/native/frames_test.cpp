// Whole frames: every codec, layouts, sizes around steps and blocks, and damaged ones, with every
// buffer between guards.

#include <algorithm>
#include <bit>
#include <string>

#include "check.h"
#include "codec.h"
#include "digest.h"
#include "format/errors.h"
#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kMost = size_t{1} << 20;

struct Arenas {
  Arena raw{kMost}, frame{2 * kMost}, out{kMost};
};

Arenas& arenas() {
  static Arenas all;
  return all;
}

enum class Content { weights, outliers, few, noise, constant };
constexpr Content kContents[] = {Content::weights, Content::outliers, Content::few, Content::noise,
                                 Content::constant};

// Numbers of 16 bits; exponents of weights fall off geometrically.
uint16_t number(Content content, Random& random) {
  const uint64_t bits = random.next();
  switch (content) {
    case Content::weights:
    case Content::outliers: {
      unsigned exponent = 121 - static_cast<unsigned>(std::countr_zero(bits | 1u << 20));
      if (content == Content::outliers && bits >> 56 < 3) exponent = bits >> 48 & 255;
      return static_cast<uint16_t>((bits >> 32 & 0x807F) | exponent << 7);
    }
    case Content::few:
      return static_cast<uint16_t>(bits >> 60 == 0 ? 0x3F80 : 0);
    case Content::noise:
      return static_cast<uint16_t>(bits);
    default:
      return 0xBEEF;
  }
}

Bytes contents(Content content, size_t size, Random& random) {
  Bytes raw(size);
  for (size_t i = 0; i < size; i += 2) {
    const uint16_t value = number(content, random);
    raw[i] = static_cast<uint8_t>(value);
    if (i + 1 < size) raw[i + 1] = static_cast<uint8_t>(value >> 8);
  }
  return raw;
}

// Decodes all, or what an error says.
Bytes decode(const Bytes& frame, size_t raw_size, Against side) {
  const uint8_t* const bytes = arenas().frame.holding(frame, side);
  const FrameIndex index = read_index(bytes, frame.size());
  uint8_t* const out = arenas().out.room(raw_size, side);
  std::fill_n(out, raw_size, uint8_t{0xA5});
  try {
    decode_frame(index, bytes + index.offsets.front(), nullptr, nullptr, out);
  } catch (const CorruptDataError& error) {
    const std::string text = error.what();
    return {text.begin(), text.end()};
  }
  return {out, out + raw_size};
}

Bytes encode_frame(const Bytes& raw, const EncodeOptions& options) {
  const size_t room = static_cast<size_t>(encode_room(raw.size(), options));
  Bytes result;
  for (const Against side : kBothSides) {
    uint8_t* const frame = arenas().frame.room(room, side);
    const size_t size =
        encode(arenas().raw.holding(raw, side), raw.size(), options, nullptr, frame);
    if (side != kBothSides[0]) CHECK(Bytes(frame, frame + size) == result);
    result.assign(frame, frame + size);
  }
  return result;
}

// Flips bits of the blocks, not of the head.
Bytes damaged(const Bytes& frame, Random& random) {
  Bytes result = frame;
  const size_t head = static_cast<size_t>(read_index(frame.data(), frame.size()).offsets.front());
  for (unsigned flips = 1 + random.below(4); flips != 0; --flips) {
    result[head + random.below(frame.size() - head)] ^= static_cast<uint8_t>(1 << random.below(8));
  }
  return result;
}

// Returns the frame.
Bytes test_frame(const Bytes& raw, const EncodeOptions& options, unsigned damages, Digest& digest,
                 Random& random) {
  Bytes frame = encode_frame(raw, options);
  digest.update(frame.data(), frame.size());
  for (const Against side : kBothSides) CHECK(decode(frame, raw.size(), side) == raw);
  if (raw.size() < 8) return frame;  // it has no block
  for (; damages != 0; --damages) {
    const Bytes outcome = decode(damaged(frame, random), raw.size(), kBothSides[damages % 2]);
    digest.update(outcome.data(), outcome.size());
  }
  return frame;
}

struct Format {
  DType dtype;
  unsigned bytes, exponent_bits;
};
constexpr Format kFormats[] = {{DType::bfloat16, 2, 8},      {DType::float16, 2, 5},
                               {DType::float32, 4, 8},       {DType::float64, 8, 11},
                               {DType::float8_e4m3fn, 1, 4}, {DType::float8_e5m2, 1, 5}};

// A matrix whose rows and columns have scales.
Bytes graded(const Format& format, size_t n, size_t row, Random& random) {
  const unsigned fraction_bits = 8 * format.bytes - 1 - format.exponent_bits;
  const unsigned middle = 1u << (format.exponent_bits - 1);
  Bytes raw;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t bits = random.next();
    const unsigned grade = static_cast<unsigned>(i / row * 7 % 3 + i % row * 5 % 4);
    const unsigned below = static_cast<unsigned>(std::countr_zero(bits | 1u << 20));
    const uint64_t exponent = middle + grade - std::min(below, middle);
    const uint64_t fraction = random.next() >> (64 - fraction_bits);
    const uint64_t item =
        exponent << fraction_bits | fraction | (bits >> 63) << (8 * format.bytes - 1);
    for (unsigned b = 0; b < format.bytes; ++b) raw.push_back(static_cast<uint8_t>(item >> 8 * b));
  }
  return raw;
}

// The models of level "best", whose encoder computes with floats.
void test_best(Digest& digest, Random& random) {
  constexpr size_t kRow = 100;
  for (const Format& format : kFormats) {
    for (const size_t n : {700u, 9000u, 40000u, 300000u}) {
      if (n * format.bytes > kMost) continue;
      const Bytes raw = graded(format, n, kRow, random);
      for (const size_t row : {size_t{0}, kRow, size_t{4096}}) {
        EncodeOptions options;
        options.codec = Codec::arithmetic;
        options.level = kBest;
        options.layout = {format.dtype, false};
        options.row = row;
        const Bytes frame = test_frame(raw, options, 1, digest, random);
        const Header header = read_index(frame.data(), frame.size()).header;
        CHECK(row != kRow || n < 9000 || (header.has_model && header.version == kFormatVersion));
      }
    }
  }
}

}  // namespace

uint64_t test_frames() {
  Digest digest;
  Random random(4);
  // Around steps of 1, 2 and 4 groups of lanes, around blocks, with and without tails.
  const size_t sizes[] = {0,    1,    2,     127,   128,   255,    256,    257,   1000,
                          8192, 9999, 65535, 65536, 80000, 262144, 300001, 600000};
  for (const size_t size : sizes) {
    for (const Content content : kContents) {
      const Bytes raw = contents(content, size, random);
      for (const Codec codec : {Codec::split, Codec::huffman, Codec::arithmetic}) {
        for (const DType dtype : {DType::bfloat16, DType::float32, DType::float8_e5m2}) {
          EncodeOptions options;
          options.codec = codec;
          options.layout = {dtype, codec == Codec::split && size % 2 == 0};
          options.has_checksums = size % 3 == 0;
          options.block_log2 = size < 100000 ? 12 : 18;
          test_frame(raw, options, size < 100000 && !options.has_checksums ? 6 : 1, digest, random);
          if (codec != Codec::arithmetic || size > 20000) continue;
          options.level = kBest;
          options.row = 100;
          test_frame(raw, options, 1, digest, random);
        }
      }
    }
  }
  test_best(digest, random);
  return digest.value();
}

}  // namespace bf16codecs::test
