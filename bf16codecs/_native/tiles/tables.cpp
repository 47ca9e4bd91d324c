// The kernels' tables of a table class, made of its intervals (docs/format_tiles.md, "Table
// classes").

#include "tiles/tables.h"

#include <algorithm>
#include <bit>

namespace bf16codecs::tiles {
namespace {

// Frequencies by entry.
struct Frequencies {
  uint16_t of[kTileEntries] = {};

  Frequencies(const Intervals& intervals, unsigned escape_frequency) {
    std::copy_n(intervals.frequency, intervals.n, of);
    of[kEscapeEntry] = static_cast<uint16_t>(escape_frequency);
  }
};

uint16_t coder_word(const Intervals& intervals, const Frequencies& frequencies, unsigned entry) {
  const unsigned n = entry < intervals.n ? intervals.log2[entry] : 0;
  return static_cast<uint16_t>(n << 13 | frequencies.of[entry]);
}

}  // namespace

unsigned largest_interval(unsigned first, unsigned end) {
  const auto aligned = static_cast<unsigned>(std::countr_zero(first | 1u << kMaxIntervalLog2));
  return std::min(aligned, static_cast<unsigned>(std::bit_width(end - first)) - 1);
}

TileTable make_table(const Intervals& intervals, unsigned escape_frequency,
                     const TileKernels& kernels) {
  const Frequencies frequencies(intervals, escape_frequency);
  const AliasTable alias(frequencies.of);
  TileTable table;
  for (unsigned j = 0; j < kTileEntries; ++j) {
    table.alias[j] = static_cast<uint16_t>(alias.threshold[j] << 8 | alias.alias[j]);
    table.shift[j] = alias.shift[j];
    table.coder[j] = coder_word(intervals, frequencies, j);
    const bool is_interval = j < intervals.n;
    const unsigned rest = is_interval ? (1u << intervals.log2[j]) - 1 : 0;
    table.symbols[j] = static_cast<uint16_t>(rest << 8 | (is_interval ? intervals.base[j] : 0));
  }
  if (kernels.prepare != nullptr) kernels.prepare(alias, table);
  return table;
}

TileCodeTable make_code_table(const Intervals& intervals, unsigned escape_frequency,
                              const TileKernels& kernels) {
  const Frequencies frequencies(intervals, escape_frequency);
  const AliasTable alias(frequencies.of);
  TileCodeTable table;
  std::fill_n(table.entry_of, 256, static_cast<uint8_t>(kEscapeEntry));
  for (unsigned j = 0; j < intervals.n; ++j) {
    std::fill_n(table.entry_of + intervals.base[j], size_t{1} << intervals.log2[j],
                static_cast<uint8_t>(j));
  }
  unsigned sum = 0;
  for (unsigned j = 0; j < kTileEntries; ++j) {
    const unsigned f = frequencies.of[j];
    table.coder[j] = coder_word(intervals, frequencies, j);
    table.reciprocal[j] =
        f == 0 ? 0.0f : 4096.0f / static_cast<float>(f) * (1.0f - kReciprocalBias);
    table.first[j] = static_cast<uint16_t>(sum);
    sum += f;
  }
  kernels.prepare_code(alias, table);
  return table;
}

}  // namespace bf16codecs::tiles
