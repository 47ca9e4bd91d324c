// Encoding of a block with the scale model (docs/format_scale.md, "Payload of a block of n items").

#include <bit>
#include <memory>

#include "copy.h"
#include "format/little_endian.h"
#include "grid/fixed_point.h"
#include "grid/grid.h"
#include "grid/keys.h"
#include "scale/rans64.h"
#include "scale/scales.h"
#include "scale/tables.h"

namespace bf16codecs::scale {
namespace {

// A symbol at one scale. With q = x div f, the new state 4096 q + start + x mod f is x + start +
// (4096 - f) q. The quotient is a multiplication with the inverse of f (Alverson), exact for x
// below 2^63:
//
//   q = (x inverse div 2^64) >> shift,  inverse = ceil(2^(63 + log2_up) / f),  shift = log2_up - 1
//
// with 2^log2_up the first power of two that is not below f.
//
// A state from `limit` on, f 2^(51 - raw), puts a word out: so it is below f 2^51 <= 2^63 with the
// raw bits, and the new state below 2^63.
struct Entry {
  uint64_t inverse, limit;
  uint32_t bias;
  uint16_t rest;  // 4096 - frequency
  uint8_t shift, raw_bits;

  Entry() = default;
  Entry(unsigned f, unsigned start, unsigned raw)
      : limit(uint64_t{f} << (63 - kModelBits - raw)),
        rest(static_cast<uint16_t>(kModelTotal - f)),
        raw_bits(static_cast<uint8_t>(raw)) {
    if (f == 1) {
      // x (2^64 - 1) div 2^64 is x - 1 for every x > 0: the bias makes up for the missing 1.
      inverse = UINT64_MAX;
      shift = 0;
      bias = start + kModelTotal - 1;
      return;
    }
    const unsigned log2_up = static_cast<unsigned>(std::bit_width(f - 1));
    // ceil(2^(63 + log2_up) / f), in two steps of 32 bits
    const uint64_t high = uint64_t{1} << (31 + log2_up);
    const uint64_t low = (high % f << 32) + f - 1;
    inverse = (high / f << 32) + low / f;
    shift = static_cast<uint8_t>(log2_up - 1);
    bias = start;
  }
};

struct EncodeTables {
  Entry entry[kScaleSteps][kSymbolStride];
  SymbolLookup lookup;

  EncodeTables(const KeyFormat& format, const SymbolSet& symbols, const Frequencies& frequencies)
      : lookup(format, symbols) {
    lookup.restrict_to(symbols, frequencies);
    for (unsigned t = 0; t < kScaleSteps; ++t) {
      unsigned start = 0;
      for (unsigned s = 0; s < symbols.size; ++s) {
        const unsigned f = frequencies[t][s];
        if (f) entry[t][s] = Entry(f, start, symbols.symbol[s].raw_bits);
        start += f;
      }
    }
  }
};

// An item as its symbol and raw bits.
struct Step {
  uint16_t entry;  // scale fraction x kSymbolStride + symbol
  uint16_t raw;
};

void find_steps(const SymbolSet& symbols, const SymbolLookup& lookup, unsigned fraction,
                const uint16_t* keys, const uint16_t* scales, size_t n, Step* steps) {
  for (size_t i = 0; i < n; ++i) {
    const unsigned s = lookup.find(keys[i], scales[i]);
    const Symbol& what = symbols.symbol[s];
    const unsigned origin = what.absolute ? 0 : scales[i] / kScaleSteps << fraction;
    steps[i].entry = static_cast<uint16_t>(scales[i] % kScaleSteps * kSymbolStride + s);
    steps[i].raw = static_cast<uint16_t>(keys[i] - origin - static_cast<unsigned>(what.base));
  }
}

// Codes the steps from the last to the first, the lanes in turn, and writes words downwards from
// `words`, below which is room for n. Returns the first word. Every step stores a word, and keeps
// it only if the state was full: there is no branch.
uint8_t* encode_steps(const EncodeTables& tables, const Step* steps, size_t n, uint64_t* x,
                      uint8_t* words) {
  const Entry* entries = &tables.entry[0][0];
  for (size_t i = n; i-- > 0;) {
    const Entry& e = entries[steps[i].entry];
    uint64_t state = x[i % kLanes];
    const bool full = state >= e.limit;
    store_le<uint32_t>(words - 4, static_cast<uint32_t>(state));
    words -= 4 * static_cast<size_t>(full);
    state >>= 32 * static_cast<unsigned>(full);
    state = state << e.raw_bits | steps[i].raw;
    x[i % kLanes] = state + e.bias + (multiply_high(state, e.inverse) >> e.shift) * e.rest;
  }
  return words;
}

RowScales fit_rows(const KeyFormat& format, const Section& section, const uint16_t* keys,
                   uint64_t first, size_t n) {
  const Magnitudes magnitudes(format, section.base / static_cast<int>(kScaleSteps));
  const Scales scales =
      row_scales(magnitudes, keys, first, n, section.row_length, section.inverse_columns);
  const int center = grid::center_of(section.base);
  const int mean = mean_log_scale(scales);
  RowScales best, moved;
  moved.offset = (mean - center + (mean >= center ? kScaleUnit / 2 : -kScaleUnit / 2)) / kScaleUnit;
  const int moved_center = center + moved.offset * kScaleUnit;
  constexpr uint64_t kOffsetCost = 8 * grid::kOctave;
  if (section.row_length == 0) {
    const uint64_t gain = cost_of_one(scales, center);
    return cost_of_one(scales, moved_center) + kOffsetCost < gain ? moved : best;
  }
  const int unit = kScaleUnit << section.row_step;
  const uint64_t cost = choose_classes(scales, center, unit, best.rows);
  const uint64_t moved_cost = choose_classes(scales, moved_center, unit, moved.rows);
  return moved_cost + kOffsetCost < cost ? moved : best;
}

}  // namespace

size_t encode(const Model& model, const uint8_t* items, uint64_t first, size_t n, uint8_t* out,
              size_t capacity) {
  if (n < kSeedItems + kLanes) return 0;
  const KeyFormat format(model.layout());
  const Section& section = model.section(first);
  std::vector<uint16_t> keys(n);
  grid::load_keys(model.layout(), items, n, keys.data());
  const RowScales rows = fit_rows(format, section, keys.data(), first, n);
  const std::vector<uint8_t> side = grid::write_rows(rows);
  const size_t rest = n % kLanes, coded = n - rest - kSeedItems;
  const size_t head = 2 + side.size() + 8 * kLanes;
  if (side.size() > UINT16_MAX || head + 2 * rest > capacity) return 0;

  const SymbolSet symbols(format);
  Frequencies frequencies;
  model_frequencies(symbols, section, frequencies);
  const EncodeTables tables(format, symbols, frequencies);

  const ScaleMap scale_map(format, section, rows, first);

  uint64_t x[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const uint16_t* seed = keys.data() + coded + 2 * lane;
    x[lane] = uint64_t{1} << 32 | uint64_t{seed[1]} << 16 | seed[0];
  }
  // Words are made from the last to the first: they are written at the end of the room, and moved
  // later.
  uint8_t* const end = out + capacity - 2 * rest;
  uint8_t* words = end;
  uint16_t scales[kTile];
  Step steps[kTile];
  for (size_t at = (coded + kTile - 1) / kTile * kTile; at > 0;) {
    at -= kTile;
    const size_t count = std::min(kTile, coded - at);
    if (static_cast<size_t>(words - out) < head + 4 * count) return 0;
    scale_map.fill(at, count, scales);
    find_steps(symbols, tables.lookup, format.fraction, keys.data() + at, scales, count, steps);
    words = encode_steps(tables, steps, count, x, words);
  }

  store_le(out, static_cast<uint16_t>(side.size()));
  uint8_t* next = std::copy(side.begin(), side.end(), out + 2);
  for (size_t lane = 0; lane < kLanes; ++lane, next += 8) store_le(next, x[lane]);
  const size_t words_size = static_cast<size_t>(end - words);
  next = copy_down(words, words_size, next);
  for (size_t i = n - rest; i < n; ++i, next += 2) store_le(next, keys[i]);
  return static_cast<size_t>(next - out);
}

}  // namespace bf16codecs::scale
