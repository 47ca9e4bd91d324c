#pragma once

// The tiles mode, of BF16Arithmetic(level="best") (docs/format_tiles.md). It codes the leading two
// bytes of every item (planes 0 and 1, or plane 0 alone where items have one byte) in tiles that
// are ordered by the scales of rows and columns.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "format/layout.h"
#include "grid/grid.h"
#include "grid/keys.h"
#include "tiles/gaussian.h"
#include "tiles/items.h"
#include "tiles/tables.h"
#include "workspace.h"

namespace bf16codecs::tiles {

// The grid and the tables of one section.
struct Section : grid::Grid {
  unsigned classes = 1;           // 1 or 4
  unsigned escape_frequency = 1;  // of 4096
  bool is_gaussian = false;       // the tables are Gaussian ones with changes
  std::array<Changes, kTileClasses> changes{};
  unsigned first = 1, end = 2;  // the symbols that are not escapes
  std::array<Intervals, kTileClasses> intervals;
};

class Model {
 public:
  Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  // Fits a model to n items; `row` is the length of a row in items, 0 if that is not known.
  static Model fit(const Layout& layout, const uint8_t* items, size_t n, size_t row);

  // Reads a model that write() wrote, for a frame of n items. Keeps the columns and tables of the
  // sections of items [first, last) alone. Throws CorruptDataError.
  static Model read(const Layout& layout, const uint8_t* bytes, size_t size, uint64_t n,
                    uint64_t first, uint64_t last);
  std::vector<uint8_t> write() const;

  const Layout& layout() const { return layout_; }
  // The section of the item with this index in the frame, and the tables of its classes.
  const Section& section(uint64_t item) const { return sections_[section_index(item)]; }
  const TileTable* tables(uint64_t item) const { return tables_[section_index(item)].data(); }

  // For models that were fitted: the tables for encoding; the scales of the rows of a block, items
  // [first, first + n); and how many of 4096 items are zeros.
  const TileCodeTable* code_tables(uint64_t item) const;
  grid::RowScales fit_rows(const Items& items, uint64_t first, size_t n) const;
  uint64_t share_of_zeros() const;

 private:
  struct Fitted;

  size_t section_index(uint64_t item) const {
    return static_cast<size_t>(item / grid::kSectionItems - first_section_);
  }

  Layout layout_;
  uint64_t first_section_ = 0;  // of those that are kept
  std::vector<Section> sections_;
  std::vector<std::vector<TileTable>> tables_;  // for decoding
  std::unique_ptr<Fitted> fitted_;              // for encoding
};

// The most items that decode() gives at a time: the last tile, and those after it.
inline constexpr size_t kMaxDecoded = kMaxTileItems + kMaxLanes;

// Codes items [first, first + n) of the frame, which `items` points at. Returns the payload's
// size, or 0 if it would need more than `capacity` bytes, or if there are too few items; never
// writes past out + capacity.
size_t encode(const Model& model, const uint8_t* items, uint64_t first, size_t n, Scratch& scratch,
              uint8_t* out, size_t capacity);

// The choices that the format leaves to the encoder of a block.
struct BlockChoices {
  grid::RowScales rows;
  unsigned groups_log2 = 0;
  size_t most_escapes = 0;                // with more of them the block is not encoded
  const TileCodeTable* tables = nullptr;  // of the section's classes
};

// Does the same with given choices. The model may have been read instead of fitted.
size_t encode_block(const Model& model, const BlockChoices& choices, const uint8_t* items,
                    uint64_t first, size_t n, Scratch& scratch, uint8_t* out, size_t capacity);

// Decodes a block tile by tile, so that a caller can use what is decoded while it is in the
// first-level cache.
class Reader {
 public:
  // A payload of n items, the first of them at `first` in the frame. Throws CorruptDataError.
  Reader(const Model& model, const uint8_t* payload, size_t size, uint64_t first, size_t n);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // Decodes the next tile, and with the last one the items after it, to keys or to items of 16
  // bits, two bytes each; returns how many, or 0 after the last tile. With the last tile it checks
  // that everything was used. Reads nothing outside of the payload. Throws CorruptDataError.
  size_t decode(bool to_items, uint8_t* out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bf16codecs::tiles
