#include "tile_models.h"

#include <algorithm>

#include "tiles/gaussian.h"

namespace bf16codecs::fuzz {

using tiles::kMaxChange;
using tiles::kMaxIntervals;
using tiles::kTableTotal;

unsigned TileModelWriter::Table::least() const {
  unsigned sum = 0;
  for (size_t j = 0; j < log2.size(); ++j) sum += least(j);
  return sum;
}

bool TileModelWriter::Table::is_even() const {
  return std::all_of(log2.begin(), log2.end(), [](unsigned n) { return n == kMaxIntervalLog2; });
}

TileModelWriter::TileModelWriter(Reader& in, int max_scale)
    : in_(in), numbers_(in, max_scale, in.u16()), random_(in.u16()) {}

void TileModelWriter::put_section() {
  numbers_.put_columns(numbers_.put_grid_head());
  const unsigned form = in_.u8();
  numbers_.put(range_, static_cast<int>(form), 0, 3);
  const unsigned classes = form % 2 == 0 ? 1 : kTileClasses;
  if (form % 4 >= 2) return put_tables(classes);
  const uint8_t kind = in_.u8();
  numbers_.put(frequency_, kind < 64 ? in_.u16() : kind, 0, kTableTotal - 2);
  for (unsigned c = 0; c < classes; ++c) put_changes();
}

// As many changes as the input says; the others are 0.
void TileModelWriter::put_changes() {
  const unsigned likely = in_.u8();
  int previous = 0;
  for (unsigned j = 0; j < kMaxIntervals; ++j) {
    const int most = likely % 2 == 0 ? kMaxChange : 8;
    const int change = random_.below(256) < likely
                           ? static_cast<int>(random_.below(2 * unsigned(most) + 1)) - most
                           : 0;
    numbers_.put_or(change_, change - previous, static_cast<int8_t>(in_.u8()));
    previous = change;
  }
}

void TileModelWriter::put_tables(unsigned classes) {
  const unsigned first = 1 + in_.u8() % 255u;
  const unsigned end = first + 1 + in_.u8() % (256 - first);
  std::vector<Table> tables;
  unsigned most_escapes = kTableTotal - 1;
  bool is_even = false;
  for (unsigned c = 0; c < classes; ++c) {
    const Table& table = tables.emplace_back(read_intervals(first, end));
    most_escapes = std::min(most_escapes, kTableTotal - table.least());
    is_even |= table.is_even();
  }
  const uint8_t kind = in_.u8();
  unsigned escape = kind == 0 ? most_escapes : 1 + (kind < 64 ? in_.u16() : kind) % most_escapes;
  if (is_even) escape = std::max(2u, escape - escape % 2);
  numbers_.put(frequency_, static_cast<int>(escape) - 1, 0, kTableTotal - 2);
  numbers_.put(range_, static_cast<int>(first) - 1, 0, 254);
  numbers_.put(range_, static_cast<int>(end - first) - 1, 0, 255 - static_cast<int>(first));
  for (Table& table : tables) {
    spread(table, kTableTotal - escape - table.least());
    put_table(table);
  }
}

// The longest intervals that there can be, some of them split.
TileModelWriter::Table TileModelWriter::read_intervals(unsigned first, unsigned end) {
  const unsigned likely = in_.u8();
  std::vector<unsigned> longest;
  for (unsigned a = first; a < end; a += 1u << longest.back()) {
    longest.push_back(tiles::largest_interval(a, end));
  }
  unsigned left = kMaxIntervals - static_cast<unsigned>(longest.size());
  if (likely == 255) left += 4;  // more than there may be
  Table table;
  for (const unsigned log2 : longest) split(table, log2, likely, left);
  return table;
}

void TileModelWriter::split(Table& table, unsigned log2, unsigned likely, unsigned& left) {
  const bool is_split = log2 > 0 && left > 0 && random_.below(256) < likely;
  if (log2 > 0) table.splits.push_back({log2, is_split});
  if (!is_split) {
    table.log2.push_back(log2);
    table.frequency.push_back(table.least(table.log2.size() - 1));
    return;
  }
  --left;
  split(table, log2 - 1, likely, left);
  split(table, log2 - 1, likely, left);
}

// Spreads what is left of the frequencies: evenly, anyhow, or nearly all of it to one interval.
void TileModelWriter::spread(Table& table, unsigned rest) {
  const uint8_t kind = in_.u8();
  const size_t n = table.log2.size();
  const unsigned share = rest / static_cast<unsigned>(n);
  for (size_t j = 0; j < n && kind % 4 != 0; ++j) {
    unsigned more = kind % 4 == 1 ? share : random_.below(kind % 4 == 2 ? 2 * share + 1 : rest + 1);
    more = std::min(more, rest) / table.least(j) * table.least(j);
    table.frequency[j] += more;
    rest -= more;
  }
  // The rest may be odd; then an interval has to take it that can.
  size_t last = kind % n;
  while (rest % table.least(last) != 0 && !table.is_even()) last = (last + 1) % n;
  table.frequency[last] += rest;
}

void TileModelWriter::put_table(const Table& table) {
  for (const Table::Split& split : table.splits) numbers_.put(split_[split.log2], split.is_split);
  int previous = 0;
  for (size_t j = 0; j < table.log2.size(); ++j) {
    const int half = static_cast<int>(table.frequency[j] / table.least(j));
    numbers_.put_or(frequency_, half - previous, half + 1);
    previous = half;
  }
}

}  // namespace bf16codecs::fuzz
