#pragma once

// The difference mode, which codes items given those of a base (docs/format_differences.md).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "delta/tables.h"
#include "format/layout.h"
#include "grid/grid.h"
#include "workspace.h"

namespace bf16codecs::delta {

enum class Relation : uint8_t { ordered = 0, plain = 1, exclusive_or = 2 };

// The grid, the classes and the weights of one section.
struct Section : grid::Grid {
  Relation relation = Relation::ordered;
  unsigned low = 0;  // bytes of a number that have planes of their own
  DeltaShape shape{};
  std::vector<ClassCode> classes;
};

// Fw, the bits below the exponent, with the sign.
unsigned fraction_bits(const Layout& layout);

// r of near classes.
unsigned near_raw_bits(const Layout& layout, unsigned low);

class Model {
 public:
  // Fits a model to n items and those of their base. If it `is_best`, looks for scales of rows and
  // columns; `row` is the length of a row in items, 0 if that is not known.
  static Model fit(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                   size_t row, bool is_best);

  // Reads a model that write() wrote, for a version of n items. Keeps the columns and tables of the
  // sections of items [first, last) alone. Throws CorruptDataError.
  static Model read(const Layout& layout, const uint8_t* bytes, size_t size, uint64_t n,
                    uint64_t first, uint64_t last);
  std::vector<uint8_t> write() const;

  const Layout& layout() const { return layout_; }
  // The section of the item with this index in the version, and its tables.
  const Section& section(uint64_t item) const { return sections_[section_index(item)]; }
  const DeltaTables& tables(uint64_t item) const { return tables_[section_index(item)].get(); }

  // Scales of the rows of items [first, first + n), which `base` and `items` point at.
  grid::RowScales fit_rows(const uint8_t* base, const uint8_t* items, uint64_t first,
                           size_t n) const;

 private:
  size_t section_index(uint64_t item) const {
    return static_cast<size_t>(item / grid::kSectionItems - first_section_);
  }

  Layout layout_;
  uint64_t first_section_ = 0;  // of those that are kept
  std::vector<Section> sections_;
  std::vector<Tables> tables_;
  // For models that were fitted: the row scales of the sections, and the number of items.
  std::vector<grid::RowScales> fitted_rows_;
  uint64_t fitted_items_ = 0;
};

// Codes items [first, first + n) of the version; `base` and `items` point at the first of them.
// Puts the numbers' low bytes in low[0 ... section.low - 1], the most significant first. Returns
// the payload's size, which may be smaller and slower if it `is_best`, or 0 if it would need more
// than `capacity` bytes, or if there are too few items; never writes past out + capacity.
size_t encode(const Model& model, const uint8_t* base, const uint8_t* items, uint64_t first,
              size_t n, bool is_best, Scratch& scratch, uint8_t* const low[], uint8_t* out,
              size_t capacity);

// The choices that the format leaves to the encoder of a block.
struct BlockChoices {
  grid::RowScales rows;
  unsigned groups_log2 = 0;
};

// Does the same with given choices. The model may have been read instead of fitted.
size_t encode_block(const Model& model, const BlockChoices& choices, const uint8_t* base,
                    const uint8_t* items, uint64_t first, size_t n, Scratch& scratch,
                    uint8_t* const low[], uint8_t* out, size_t capacity);

// Decodes a block strip by strip, so that a caller can use what is decoded while it is in the
// first-level cache.
class Reader {
 public:
  // A payload of n items, the first of them at `first` in the version, where `base` points at the
  // first item of its block. Throws CorruptDataError.
  Reader(const Model& model, const uint8_t* base, const uint8_t* payload, size_t size,
         uint64_t first, size_t n);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // The number of items that the next call of decode() gives; 0 after the last.
  size_t next() const;

  // Decodes the next strip; low[k] has the low bytes of its numbers, as encode() makes them.
  // `items` may be the memory of its base. With the last strip it checks that everything was used.
  // Throws CorruptDataError.
  void decode(const uint8_t* const low[], uint8_t* items);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bf16codecs::delta
