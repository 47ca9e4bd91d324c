#pragma once

// Tables and scales of the tiles mode for tests.

#include <vector>

#include "check.h"
#include "kernels/tiles_tables.h"
#include "tiles/tables.h"

namespace bf16codecs::test {

// How the frequencies are spread: anyhow; all but one as low as can be, that one an interval or the
// escape; or as many as can be as large as a bucket.
enum class Spread { any, one_interval, escape, buckets };
inline constexpr Spread kSpreads[] = {Spread::any, Spread::one_interval, Spread::escape,
                                      Spread::buckets};

// The tables of a section: all of its classes have the same range and escape.
struct TileModel {
  unsigned classes;
  unsigned first, end;
  unsigned escape_frequency;
  tiles::Intervals intervals[kTileClasses];
  std::vector<TileTable> tables;  // with all that any kernels read
  std::vector<TileCodeTable> code_tables;

  // With noise in the parts that these kernels do not prepare.
  std::vector<TileTable> tables_for(const TileKernels& kernels) const;
  std::vector<TileCodeTable> code_tables_for(const TileKernels& kernels) const;

  // A symbol for a step of class c: by frequency, or the rarest or most frequent.
  uint8_t likely_symbol(unsigned c, Random& random) const;
  uint8_t any_symbol(Random& random) const;  // one in eight is an escape
};

TileModel random_model(unsigned classes, Spread spread, Random& random);

using Words = std::vector<uint16_t>;

Words random_words(size_t n, unsigned limit, Random& random);

// The layouts that there are: raw bits, and the bits of a key.
struct KeyLayout {
  unsigned raw_bits, key_bits;

  unsigned scale_limit() const { return kScaleFractions << (key_bits - raw_bits - 3); }
};
inline constexpr KeyLayout kLayouts[] = {{0, 8}, {1, 8}, {2, 16}, {5, 16}, {8, 16}};

enum class ScaleKind { any, one_class, alternating, near };
inline constexpr ScaleKind kScaleKinds[] = {ScaleKind::any, ScaleKind::one_class,
                                            ScaleKind::alternating, ScaleKind::near};

Words random_scales(size_t n, ScaleKind kind, unsigned limit, Random& random);

// The alias tables and the tables for encoding, against their definition.
void test_tile_tables();

}  // namespace bf16codecs::test
