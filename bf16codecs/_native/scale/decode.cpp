// Decoding of a block with the scale model (docs/format_scale.md, "Payload of a block of n items").

#include <cstring>
#include <memory>

#include "format/errors.h"
#include "format/little_endian.h"
#include "grid/grid.h"
#include "scale/rans64.h"
#include "scale/tables.h"

namespace bf16codecs::scale {
namespace {

// A symbol at one scale, in one load:
//
//   bits   63 - 48                    47 - 32   28 - 24   23 - 12   11 - 0
//          mask of the scale's key    base      raw bits  start     frequency
//
// The mask is 0 where keys are counted from 0 instead of from the scale.
using Entry = uint64_t;

struct DecodeTables {
  uint8_t symbol[kScaleSteps][kModelTotal];
  Entry entry[kScaleSteps][kSymbolStride];

  DecodeTables(const SymbolSet& symbols, const Frequencies& frequencies) {
    for (unsigned t = 0; t < kScaleSteps; ++t) {
      unsigned start = 0;
      for (unsigned s = 0; s < symbols.size; ++s) {
        const unsigned f = frequencies[t][s];
        std::memset(symbol[t] + start, static_cast<int>(s), f);
        const Symbol& what = symbols.symbol[s];
        entry[t][s] = f | start << 12 | uint64_t{what.raw_bits} << 24 |
                      uint64_t{static_cast<uint16_t>(what.base)} << 32 |
                      (what.absolute ? 0 : uint64_t{0xFFFF} << 48);
        start += f;
      }
    }
  }
};

struct Lanes {
  uint64_t x[kLanes];
  const uint8_t* words;
};

// Decodes n items, a multiple of the lanes. 4 n bytes of words must be readable: every item loads a
// word at the place of the next one, whether it uses it or not.
// In each lane x is below 2^63 and at least 2^31 before and after: f (x >> 12) + rank is below f
// 2^51, and what is left of it after the raw bits at least 8.
void decode_steps(const DecodeTables& tables, unsigned fraction, Lanes& lanes,
                  const uint16_t* scales, size_t n, uint16_t* keys) {
  uint64_t x[kLanes];
  std::memcpy(x, lanes.x, sizeof x);
  const uint8_t* words = lanes.words;
  for (size_t i = 0; i < n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const unsigned scale = scales[i + lane];
      const unsigned t = scale % kScaleSteps;
      uint64_t state = x[lane];
      const unsigned slot = static_cast<unsigned>(state) % kModelTotal;
      const Entry e = tables.entry[t][tables.symbol[t][slot]];
      state = (e & 0xFFF) * (state >> kModelBits) + slot - ((e >> 12) & 0xFFF);
      const unsigned raw_bits = (e >> 24) & 31;
      const uint64_t raw = state & ((uint64_t{1} << raw_bits) - 1);
      state >>= raw_bits;
      keys[i + lane] = static_cast<uint16_t>(
          ((scale / kScaleSteps << fraction) & static_cast<unsigned>(e >> 48)) + (e >> 32) + raw);
      // Without a branch, which could not be predicted: about one item in three takes a word.
      const uint64_t refilled = state << 32 | load_le<uint32_t>(words);
      const bool refill = state < kStateMin;
      x[lane] = refill ? refilled : state;
      words += 4 * static_cast<size_t>(refill);
    }
  }
  std::memcpy(lanes.x, x, sizeof x);
  lanes.words = words;
}

// The payload's parts (docs/format_scale.md, "Payload of a block of n items").
struct Payload {
  const uint8_t *side, *states, *words, *end;
  size_t side_size;

  Payload(const uint8_t* bytes, size_t size, size_t n) {
    const size_t rest = 2 * (n % kLanes);
    if (size < 2 || n < kSeedItems) throw CorruptDataError("scale model: block is too short");
    side_size = load_le<uint16_t>(bytes);
    const size_t fixed = 2 + side_size + 8 * kLanes + rest;
    if (size < fixed || (size - fixed) % 4 != 0) {
      throw CorruptDataError("scale model: sizes of a block's parts disagree");
    }
    side = bytes + 2;
    states = side + side_size;
    words = states + 8 * kLanes;
    end = bytes + size - rest;
  }
};

void store_planes(const KeyFormat& format, const uint16_t* keys, size_t n, size_t at,
                  uint8_t* const planes[]) {
  if (format.bits == 8) {
    for (size_t i = 0; i < n; ++i) planes[0][at + i] = static_cast<uint8_t>(keys[i]);
    return;
  }
  uint8_t *high = planes[0] + at, *low = planes[1] + at;
  for (size_t i = 0; i < n; ++i) {
    high[i] = static_cast<uint8_t>(keys[i] >> 8);
    low[i] = static_cast<uint8_t>(keys[i]);
  }
}

// Decodes a tile whose words may run out.
void decode_tile(const DecodeTables& tables, unsigned fraction, Lanes& lanes, const uint8_t* end,
                 const uint16_t* scales, size_t n, uint16_t* keys) {
  constexpr size_t step_bytes = 4 * kLanes;
  while (n > 0) {
    const size_t left = static_cast<size_t>(end - lanes.words);
    const size_t safe = std::min(n, left / step_bytes * kLanes);
    if (safe > 0) {
      decode_steps(tables, fraction, lanes, scales, safe, keys);
      n -= safe, scales += safe, keys += safe;
      continue;
    }
    // Too near the end for a step that might use a word in every lane: this step reads a copy with
    // zeros after it.
    uint8_t padded[step_bytes + 4] = {};
    std::memcpy(padded, lanes.words, left);
    Lanes copy = lanes;
    copy.words = padded;
    decode_steps(tables, fraction, copy, scales, kLanes, keys);
    const size_t used = static_cast<size_t>(copy.words - padded);
    if (used > left) throw CorruptDataError("scale model: a block's words run out");
    copy.words = lanes.words + used;
    lanes = copy;
    n -= kLanes, scales += kLanes, keys += kLanes;
  }
}

}  // namespace

void decode(const Model& model, const uint8_t* bytes, size_t size, uint64_t first, size_t n,
            uint8_t* const planes[]) {
  const Payload payload(bytes, size, n);
  const KeyFormat format(model.layout());
  const Section& section = model.section(first);
  const RowScales rows = grid::read_rows(section, payload.side, payload.side_size, first, n);
  const SymbolSet symbols(format);
  Frequencies frequencies;
  model_frequencies(symbols, section, frequencies);
  const auto tables = std::make_unique<DecodeTables>(symbols, frequencies);

  Lanes lanes;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    lanes.x[lane] = load_le<uint64_t>(payload.states + 8 * lane);
    if (lanes.x[lane] < kStateMin || lanes.x[lane] >> 63) {
      throw CorruptDataError("scale model: first state out of range");
    }
  }
  lanes.words = payload.words;

  const size_t coded = n / kLanes * kLanes - kSeedItems;
  const ScaleMap scale_map(format, section, rows, first);
  uint16_t scales[kTile], keys[kTile];
  for (size_t at = 0; at < coded; at += kTile) {
    const size_t count = std::min(kTile, coded - at);
    scale_map.fill(at, count, scales);
    decode_tile(*tables, format.fraction, lanes, payload.end, scales, count, keys);
    store_planes(format, keys, count, at, planes);
  }
  if (lanes.words != payload.end) throw CorruptDataError("scale model: words are left over");

  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (lanes.x[lane] >> 32 != 1) throw CorruptDataError("scale model: last state is wrong");
    keys[2 * lane] = static_cast<uint16_t>(lanes.x[lane]);
    keys[2 * lane + 1] = static_cast<uint16_t>(lanes.x[lane] >> 16);
  }
  const size_t rest = n % kLanes;
  for (size_t i = 0; i < rest; ++i) keys[kSeedItems + i] = load_le<uint16_t>(payload.end + 2 * i);
  store_planes(format, keys, kSeedItems + rest, coded, planes);
}

}  // namespace bf16codecs::scale
