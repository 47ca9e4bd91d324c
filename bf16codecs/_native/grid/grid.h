#pragma once

// A grid of scales: those of a section's items by their rows and columns (docs/format_scale.md,
// "Scales"), and the coding of its numbers ("The scale model", there).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "grid/adaptive_coder.h"

namespace bf16codecs::grid {

// A frame's items are described in sections of this many; every block lies in one section.
inline constexpr size_t kSectionItems = size_t{1} << 22;
inline constexpr int kMaxClass = 2047;  // of a row or a column, either sign

// Scales are in 16ths of an octave. A row, a run in the documents, has one row scale.
struct Grid {
  uint32_t row_length = 0;                // items that share one row scale; 0: a whole block
  uint32_t period = 0;                    // distance of the items of a column; 0: no column scales
  uint16_t base = 0;                      // scale of an item in a row and a column of class 0
  uint8_t row_step = 0, column_step = 0;  // log2 of how much one class more adds to the scale
  bool columns_change = false;            // columns are written as changes to the section before
  std::vector<int16_t> columns;           // class of each column

  bool has_one_scale() const { return row_length == 0 && period == 0; }  // in a block
};

// The scales of a block's rows, relative to the grid's base: an offset, and a class for each row.
struct RowScales {
  int offset = 0;
  std::vector<int16_t> rows;
};

// The number of rows that items [first, first + n) touch.
inline size_t rows_in(const Grid& grid, uint64_t first, size_t n) {
  if (grid.row_length == 0) return 0;
  return static_cast<size_t>((first + n - 1) / grid.row_length - first / grid.row_length) + 1;
}

// Calls function(begin, end, row, column) for pieces of items [first, first + n) that lie in one
// row and one period: begin and end count from first, row counts the block's rows, column is that
// of `begin`.
template <typename Function>
void for_each_piece(uint64_t row_length, uint64_t period, uint64_t first, size_t n,
                    Function function) {
  size_t row = 0;
  uint64_t row_left = row_length ? row_length - first % row_length : UINT64_MAX;
  uint64_t column = period ? first % period : 0;
  for (size_t begin = 0; begin < n;) {
    uint64_t length = std::min<uint64_t>(n - begin, row_left);
    if (period) length = std::min(length, period - column);
    const size_t end = begin + static_cast<size_t>(length);
    function(begin, end, row, static_cast<size_t>(column));
    begin = end;
    if (period && (column += length) == period) column = 0;
    if ((row_left -= length) == 0) {
      row_left = row_length;
      ++row;
    }
  }
}

// Writes a block's own numbers.
std::vector<uint8_t> write_rows(const RowScales& scales);

// Reads them for items [first, first + n) of the frame. Throws CorruptDataError.
RowScales read_rows(const Grid& grid, const uint8_t* bytes, size_t size, uint64_t first, size_t n);

// One adaptive integer for each kind of number of a grid. They last from section to section.
struct GridIntegers {
  AdaptiveInteger lengths, base, steps, column;
};

// Writes the grids of a frame's sections, each in two parts, between which a model may have numbers
// of its own.
class GridWriter {
 public:
  // Writes everything but the columns.
  void put_head(SideEncoder& coder, const Grid& grid);
  // Writes the columns, if there are any. `before` is the grid of the section before.
  void put_columns(SideEncoder& coder, const Grid& grid, const Grid& before);

 private:
  void put_length(SideEncoder& coder, uint32_t length);

  GridIntegers integers_;
};

// Reads what GridWriter wrote. Throws CorruptDataError.
class GridReader {
 public:
  // `size` is the size of the stream that the coder reads, which bounds the number of columns.
  GridReader(size_t size, int max_base);

  // `items` is the number of the section's items.
  void get_head(SideDecoder& coder, uint64_t items, Grid& grid);
  void get_columns(SideDecoder& coder, const Grid& before, Grid& grid);

 private:
  uint32_t get_length(SideDecoder& coder);

  GridIntegers integers_;
  int max_base_;
  uint64_t columns_left_;
};

// Reads a number that must be between `least` and `most`. Throws CorruptDataError.
int get_within(AdaptiveInteger& integer, SideDecoder& coder, int least, int most);

}  // namespace bf16codecs::grid
