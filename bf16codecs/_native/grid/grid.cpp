// Reading and writing the numbers of grids, with all limits of docs/format_scale.md, "The scale
// model".

#include "grid/grid.h"

#include "format/errors.h"

namespace bf16codecs::grid {
namespace {

constexpr uint32_t kMinLength = 16;         // of rows and periods, where there are any
constexpr uint64_t kColumnsPerByte = 1024;  // a byte holds fewer adaptive bits: see AdaptiveBit
constexpr int kMaxStep = 3;

}  // namespace

std::vector<uint8_t> write_rows(const RowScales& scales) {
  SideEncoder coder;
  AdaptiveInteger offset, row;
  offset.put(coder, scales.offset);
  for (const int value : scales.rows) row.put(coder, value);
  return coder.finish();
}

RowScales read_rows(const Grid& grid, const uint8_t* bytes, size_t size, uint64_t first, size_t n) {
  SideDecoder coder(bytes, size);
  AdaptiveInteger offset, row;
  RowScales scales;
  scales.offset = offset.get(coder);
  scales.rows.resize(rows_in(grid, first, n));
  for (auto& value : scales.rows) {
    const int decoded = row.get(coder);
    if (decoded < -kMaxClass || decoded > kMaxClass) {
      throw CorruptDataError("model: row scale out of range");
    }
    value = static_cast<int16_t>(decoded);
  }
  return scales;
}

void GridWriter::put_head(SideEncoder& coder, const Grid& grid) {
  put_length(coder, grid.row_length);
  put_length(coder, grid.period);
  integers_.base.put(coder, grid.base);
  integers_.steps.put(coder, grid.row_step);
  integers_.steps.put(coder, grid.column_step);
}

void GridWriter::put_columns(SideEncoder& coder, const Grid& grid, const Grid& before) {
  if (grid.period == 0) return;
  integers_.steps.put(coder, grid.columns_change);
  for (size_t i = 0; i < grid.period; ++i) {
    integers_.column.put(coder, grid.columns[i] - (grid.columns_change ? before.columns[i] : 0));
  }
}

// A length has up to 30 bits, more than an adaptive integer: it is written as two numbers.
void GridWriter::put_length(SideEncoder& coder, uint32_t length) {
  integers_.lengths.put(coder, static_cast<int>(length >> 15));
  integers_.lengths.put(coder, static_cast<int>(length & 0x7FFF));
}

GridReader::GridReader(size_t size, int max_base)
    : max_base_(max_base), columns_left_(kColumnsPerByte * (size + 4)) {}

void GridReader::get_head(SideDecoder& coder, uint64_t items, Grid& grid) {
  grid.row_length = get_length(coder);
  grid.period = get_length(coder);
  if (grid.period > items) throw CorruptDataError("model: more columns than items");
  if (grid.period > columns_left_) throw CorruptDataError("model: too many columns");
  columns_left_ -= grid.period;
  grid.base = static_cast<uint16_t>(get_within(integers_.base, coder, 0, max_base_));
  grid.row_step = static_cast<uint8_t>(get_within(integers_.steps, coder, 0, kMaxStep));
  grid.column_step = static_cast<uint8_t>(get_within(integers_.steps, coder, 0, kMaxStep));
}

void GridReader::get_columns(SideDecoder& coder, const Grid& before, Grid& grid) {
  if (grid.period == 0) return;
  grid.columns_change = get_within(integers_.steps, coder, 0, 1);
  if (grid.columns_change && before.period != grid.period) {
    throw CorruptDataError("model: changes of columns that the section before does not have");
  }
  grid.columns.resize(grid.period);
  for (size_t i = 0; i < grid.period; ++i) {
    const int from = grid.columns_change ? before.columns[i] : 0;
    const int column = from + integers_.column.get(coder);
    if (column < -kMaxClass || column > kMaxClass) {
      throw CorruptDataError("model: column scale out of range");
    }
    grid.columns[i] = static_cast<int16_t>(column);
  }
}

uint32_t GridReader::get_length(SideDecoder& coder) {
  const int high = get_within(integers_.lengths, coder, 0, 0x7FFF);
  const int low = get_within(integers_.lengths, coder, 0, 0x7FFF);
  const auto length = static_cast<uint32_t>(high << 15 | low);
  if (length != 0 && length < kMinLength) throw CorruptDataError("model: row is too short");
  return length;
}

int get_within(AdaptiveInteger& integer, SideDecoder& coder, int least, int most) {
  const int value = integer.get(coder);
  if (value < least || value > most) throw CorruptDataError("model: number out of range");
  return value;
}

}  // namespace bf16codecs::grid
