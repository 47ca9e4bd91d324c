#pragma once

#include "model_numbers.h"
#include "tiles/tables.h"

namespace bf16codecs::fuzz {

// Writes a tile model's numbers (docs/format_tiles.md, "The tile model"), from an input.
class TileModelWriter {
 public:
  TileModelWriter(Reader& in, int max_scale);

  void put_section();
  std::vector<uint8_t> finish() { return numbers_.finish(); }

 private:
  // The intervals of one class, and the bits that say how they are split.
  struct Table {
    struct Split {
      unsigned log2;
      bool is_split;
    };
    std::vector<Split> splits;
    std::vector<unsigned> log2, frequency;

    unsigned least(size_t j) const { return log2[j] == kMaxIntervalLog2 ? 2 : 1; }
    unsigned least() const;
    bool is_even() const;  // no interval can have an odd frequency
  };

  void put_changes();
  void put_tables(unsigned classes);
  Table read_intervals(unsigned first, unsigned end);
  void split(Table& table, unsigned log2, unsigned likely, unsigned& left);
  void spread(Table& table, unsigned rest);
  void put_table(const Table& table);

  Reader& in_;
  NumberWriter numbers_;
  test::Random random_;
  grid::AdaptiveInteger range_, frequency_, change_;
  grid::AdaptiveBit split_[kMaxIntervalLog2 + 1];
};

}  // namespace bf16codecs::fuzz
