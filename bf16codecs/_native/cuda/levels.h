#pragma once

// Items of grids (docs/format_grids.md): the level of a code, times the scale of the item's group.

#include "cuda/job.h"
#include "cuda/merge.h"
#include "cuda/strips.h"
#include "kernels/quantized_items.h"

namespace bf16codecs::cuda {

struct LevelsMemory {
  Shared<4 * kMostCodes> levels;
  Shared<kStripBytes> strip;
};

// The group of an item, and how many items of the row are left in it, this one included.
struct GroupPlace {
  uint32_t group, left;
};

BF16CODECS_DEVICE GroupPlace place_of(const Grid& grid, uint32_t i) {
  const uint32_t at = grid.column + i, row = at / grid.row, column = at - row * grid.row;
  const uint32_t band = (grid.row_of_band + row) / grid.height, place = column / grid.width;
  const uint32_t in_group = column - place * grid.width;
  return {band * grid.groups + place, least(grid.width - in_group, grid.row - column)};
}

// A float, as bits, of an array of them.
BF16CODECS_DEVICE uint32_t float_at(uint64_t floats, uint32_t i) {
  return load_word_until(bytes_at(floats), 4 * i, 4 * i + 4);
}

// Loads the bits of kCount codes from code `at` on, a byte for each. They must be the same bits of
// consecutive bytes, as is_in_field() says.
template <unsigned kCount>
BF16CODECS_DEVICE uint64_t some_bits(const uint8_t* block, const PackedBits& packed, uint32_t at) {
  if (packed.bits == 0) return 0;
  constexpr uint64_t kEach = ~uint64_t{0} / 255;
  const uint32_t field = at / packed.size, byte = at - field * packed.size;
  const uint64_t bytes = some_symbols<kCount>({block + packed.begin}, byte);
  return bytes >> field * packed.bits & kEach * ((1u << packed.bits) - 1);
}
BF16CODECS_DEVICE bool is_in_field(const PackedBits& packed, uint32_t at, unsigned count) {
  return packed.bits == 0 || at % packed.size + count <= packed.size;
}

// Makes items of a block of one kind.
template <Container kContainer, Precision kPrecision>
class LevelItems {
 public:
  static constexpr unsigned kWidth = kContainer == Container::float32 ? 4 : 2;
  static constexpr unsigned kQuadItems = kQuadBytes / kWidth;  // which a thread makes at a time

  BF16CODECS_DEVICE LevelItems(LevelsMemory& memory, const Job& job, const Grid& grid,
                               const Plane& symbols)
      : memory_(memory), block_(bytes_at(job.payload)), grid_(grid), symbols_(symbols) {}

  // How many of `count` items from item i on have codes.
  BF16CODECS_DEVICE uint32_t coded(uint32_t i, unsigned count) const {
    if (count == 0) return 0;  // behind the last group
    const GroupPlace place = place_of(grid_, i);
    if (place.left >= count) return is_coded(place.group) ? count : 0;
    uint32_t n = 0;
    BF16CODECS_ROLLED
    for (unsigned k = 0; k < count; ++k) n += is_coded(place_of(grid_, i + k).group) ? 1 : 0;
    return n;
  }

  // Stores items from item i on to the strip: those of a quad, or fewer at the end of the block.
  // The first of them that has a code has code j.
  BF16CODECS_DEVICE void store(uint32_t i, uint32_t j, unsigned count, unsigned at) {
    const GroupPlace first = place_of(grid_, i);
    const bool is_whole = count == kQuadItems && first.left >= count && is_coded(first.group) &&
                          is_in_field(grid_.low[0], j, count) &&
                          is_in_field(grid_.low[1], j, count);
    if (is_whole) return store_quad(first.group, j, at);
    BF16CODECS_ROLLED
    for (unsigned k = 0; k < count; ++k) {
      const uint32_t group = place_of(grid_, i + k).group;
      uint32_t item;
      if (is_coded(group)) {
        make<1>(group, j++, &item);
      } else {
        item = plain_item(i + k - j);
      }
      if constexpr (kWidth == 4) memory_.strip.store(at + 4 * k, item);
      if constexpr (kWidth == 2) memory_.strip.store(at + 2 * k, static_cast<uint16_t>(item));
    }
  }

 private:
  BF16CODECS_DEVICE bool is_coded(uint32_t group) const {
    return grid_.plain == 0 || float_at(grid_.scales, group) != 0;
  }

  BF16CODECS_DEVICE uint32_t plain_item(uint32_t i) const {
    const uint8_t* const item = bytes_at(grid_.plain) + kWidth * i;
    return kWidth == 4 ? load_any<uint32_t>(item) : load_any<uint16_t>(item);
  }

  BF16CODECS_DEVICE void store_quad(uint32_t group, uint32_t j, unsigned at) {
    uint32_t items[kQuadItems];
    make<kQuadItems>(group, j, items);
    Quad quad{};
    BF16CODECS_UNROLLED
    for (unsigned k = 0; k < kQuadItems; ++k) {
      quad.word[kWidth * k / 4] |= items[k] << kWidth * k % 4 * 8;
    }
    memory_.strip.store(at, quad);
  }

  // Makes items of one group, from code j on.
  template <unsigned kCount>
  BF16CODECS_DEVICE void make(uint32_t group, uint32_t j, uint32_t items[]) {
    const uint64_t symbols = some_symbols<kCount>(symbols_, j);
    const uint64_t low = some_bits<kCount>(block_, grid_.low[0], j) << grid_.low[1].bits |
                         some_bits<kCount>(block_, grid_.low[1], j);
    const unsigned low_bits = grid_.low[0].bits + grid_.low[1].bits;
    const float scale = float_of(float_at(grid_.scales, group));
    const float offset = grid_.offsets == 0 ? 0 : float_of(float_at(grid_.offsets, group));
    BF16CODECS_UNROLLED
    for (unsigned k = 0; k < kCount; ++k) {
      const auto symbol = static_cast<unsigned>(symbols >> 8 * k) & 31;
      const unsigned code = symbol << low_bits | (static_cast<unsigned>(low >> 8 * k) & 15);
      const float level = float_of(memory_.levels.load<uint32_t>(4 * code));
      items[k] = item_of<kContainer>(value(level, scale, offset));
    }
  }

  BF16CODECS_DEVICE float value(float level, float scale, float offset) const {
    switch (grid_.formula) {
      case Formula::product:
        return rounded<kPrecision>(times(level, scale));
      case Formula::sum:
        return with_offset<Formula::sum, kPrecision>(level, scale, offset);
      case Formula::rounded_sum:
        return with_offset<Formula::rounded_sum, kPrecision>(level, scale, offset);
      default:
        return with_offset<Formula::difference, kPrecision>(level, scale, offset);
    }
  }

  LevelsMemory& memory_;
  const uint8_t* const block_;
  const Grid& grid_;
  const Plane symbols_;
};

// Calls function.operator()<Items>() with the items' class. Each container has only some of the
// precisions.
template <typename Function>
BF16CODECS_DEVICE uint32_t with_items(const Grid& grid, Function function) {
  using enum Precision;
  const Precision precision = grid.precision;
  if (grid.container == Container::float16) {
    if (precision == binary16)
      return function.template operator()<LevelItems<Container::float16, binary16>>();
    return function.template operator()<LevelItems<Container::float16, bfloat16_binary16>>();
  }
  if (grid.container == Container::bfloat16) {
    if (precision == bfloat16)
      return function.template operator()<LevelItems<Container::bfloat16, bfloat16>>();
    return function.template operator()<LevelItems<Container::bfloat16, binary16_bfloat16>>();
  }
  if (precision == binary32)
    return function.template operator()<LevelItems<Container::float32, binary32>>();
  if (precision == binary16)
    return function.template operator()<LevelItems<Container::float32, binary16>>();
  return function.template operator()<LevelItems<Container::float32, bfloat16>>();
}

// The job of decoding a grid's symbols, as the only plane of a block, to the end of the items'
// memory. A base is compared before.
BF16CODECS_DEVICE Job symbols_job(const Warp& warp, const Job& job) {
  const Grid& grid = *reinterpret_cast<const Grid*>(job.section);
  Job result = job;
  result.width = 1;
  result.n = warp.same(grid.coded);
  result.items += uint64_t{job.n} * job.width - result.n;
  result.base = 0;
  result.flags = kJobGrid;
  result.payload += warp.same(grid.begin) - 1;
  result.size = warp.same(grid.size) + 1;
  return result;
}

BF16CODECS_DEVICE Plane symbols_of(const Warp& warp, const Job& job, const Grid& grid) {
  const uint8_t* const payload = bytes_at(job.payload) + grid.begin;
  if (grid.mode == Mode::constant) return {nullptr, warp.same(*payload)};
  return {grid.mode == Mode::stored ? payload : bytes_at(symbols_job(warp, job).items)};
}

// Makes the items of a block, strip by strip.
template <typename Items>
BF16CODECS_DEVICE void multiply_strips(const Warp& warp, Items items, const Grid& grid, uint32_t n,
                                       Strips& strips) {
  constexpr unsigned kStripItems = kStripBytes / Items::kWidth;
  uint32_t coded = 0;  // before the strip
  for (uint32_t begin = 0; begin < n; begin += kStripItems) {
    const unsigned in_strip = least<uint32_t>(n - begin, kStripItems);
    PerThread<uint32_t> from, counts, codes;
    warp.each([&](unsigned t) {
      from[t] = least(Items::kQuadItems * t, in_strip);
      counts[t] = least(in_strip - from[t], Items::kQuadItems);
      codes[t] = grid.plain == 0 ? counts[t] : items.coded(begin + from[t], counts[t]);
    });
    uint32_t of_strip = 0;
    const PerThread<uint32_t> before = warp.sums_before(codes, of_strip);
    warp.each([&](unsigned t) {
      if (counts[t] == 0) return;
      items.store(begin + from[t], coded + before[t], counts[t], kQuadBytes * t);
    });
    coded += of_strip;
    strips.pass(Items::kWidth * in_strip);
  }
}

// Makes the items of a block; returns their checksum. Symbols at the end of the items' memory are
// read in time: writing does not overtake reading.
BF16CODECS_DEVICE uint32_t multiply_levels(const Warp& warp, LevelsMemory& memory, const Job& job,
                                           const Grid& grid) {
  warp.each([&](unsigned t) {
    for (unsigned code = t; code < grid.codes; code += kThreads) {
      memory.levels.store(4 * code, float_at(grid.levels, code));
    }
  });
  warp.sync();
  const Plane symbols = symbols_of(warp, job, grid);
  return with_items(grid, [&]<typename Items>() {
    Strips strips(warp, memory.strip, reinterpret_cast<uint8_t*>(job.items));
    multiply_strips(warp, Items(memory, job, grid, symbols), grid, job.n, strips);
    return strips.checksum();
  });
}

}  // namespace bf16codecs::cuda
