#include "tiles_tables.h"

#include <algorithm>
#include <cstring>

#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

using tiles::Intervals;
using tiles::kEscapeEntry;
using tiles::kMaxIntervals;
using tiles::kTableTotal;

// The largest intervals that cover first ... end - 1, some of them halved until there are `target`.
Intervals random_intervals(unsigned first, unsigned end, unsigned target, Random& random) {
  Intervals intervals;
  for (unsigned a = first; a < end; ++intervals.n) {
    const unsigned n = tiles::largest_interval(a, end);
    intervals.base[intervals.n] = static_cast<uint8_t>(a);
    intervals.log2[intervals.n] = static_cast<uint8_t>(n);
    a += 1u << n;
  }
  for (unsigned tries = 0; tries < 500 && intervals.n < target; ++tries) {
    const unsigned j = random.below(intervals.n);
    if (intervals.log2[j] == 0) continue;
    std::copy_backward(intervals.base + j, intervals.base + intervals.n,
                       intervals.base + intervals.n + 1);
    std::copy_backward(intervals.log2 + j, intervals.log2 + intervals.n,
                       intervals.log2 + intervals.n + 1);
    ++intervals.n;
    const auto half = static_cast<uint8_t>(intervals.log2[j] - 1);
    intervals.log2[j] = intervals.log2[j + 1] = half;
    intervals.base[j + 1] = static_cast<uint8_t>(intervals.base[j] + (1u << half));
  }
  return intervals;
}

unsigned lowest_frequency(const Intervals& intervals, unsigned j) {
  return intervals.log2[j] == kMaxIntervalLog2 ? 2 : 1;
}

// Raises a frequency by up to `wanted`, of `left`.
void raise(Intervals& intervals, unsigned j, unsigned wanted, unsigned& left) {
  unsigned more = std::min(wanted, left);
  more -= more % lowest_frequency(intervals, j);
  intervals.frequency[j] = static_cast<uint16_t>(intervals.frequency[j] + more);
  left -= more;
}

// Spreads what the escape leaves. False if all intervals take even numbers and it is odd.
bool spread_frequencies(Intervals& intervals, unsigned escape_frequency, Spread spread,
                        Random& random) {
  unsigned left = kTableTotal - escape_frequency;
  for (unsigned j = 0; j < intervals.n; ++j) {
    intervals.frequency[j] = static_cast<uint16_t>(lowest_frequency(intervals, j));
    left -= intervals.frequency[j];
  }
  if (spread == Spread::any) {
    for (unsigned i = 0; i < 2 * intervals.n; ++i) {
      raise(intervals, random.below(intervals.n), random.below(left / 2 + 1), left);
    }
  } else if (spread == Spread::buckets) {
    for (unsigned j = 0; j < intervals.n; ++j) {
      raise(intervals, j, 128u - intervals.frequency[j], left);
    }
  }
  const unsigned begin = random.below(intervals.n);
  for (unsigned i = 0; i < intervals.n; ++i) {
    raise(intervals, (begin + i) % intervals.n, left, left);
  }
  return left == 0;
}

// What the intervals of any class can leave to the escape.
unsigned most_for_escape(const Intervals* intervals, unsigned classes) {
  unsigned most = kTableTotal;
  for (unsigned c = 0; c < classes; ++c) {
    unsigned lowest = 0;
    for (unsigned j = 0; j < intervals[c].n; ++j) lowest += lowest_frequency(intervals[c], j);
    most = std::min(most, kTableTotal - lowest);
  }
  return most;
}

void choose_range(TileModel& model, Random& random) {
  const unsigned kind = random.below(4);
  if (kind == 0) {  // nothing but intervals of 32
    model.first = 32 * (1 + random.below(7));
    model.end = model.first + 32 * (1 + random.below((256 - model.first) / 32));
  } else if (kind == 1) {
    model.first = 1, model.end = 256;
  } else {
    model.first = 1 + random.below(255);
    model.end = model.first + 1 + random.below(256 - model.first);
  }
}

unsigned frequency_for_escape(const TileModel& model, Spread spread, Random& random) {
  const unsigned most = most_for_escape(model.intervals, model.classes);
  if (spread == Spread::escape) return most - most % 2;
  if (spread == Spread::buckets) return 128;
  return std::min(most, 1 + (random.below(2) == 0 ? 0 : random.below(300)));
}

bool spread_all(TileModel& model, Spread spread, Random& random) {
  for (unsigned c = 0; c < model.classes; ++c) {
    if (!spread_frequencies(model.intervals[c], model.escape_frequency, spread, random)) {
      return false;
    }
  }
  return true;
}

AliasTable alias_of(const TileTable& table) {
  uint16_t frequency[kTileEntries];
  for (unsigned j = 0; j < kTileEntries; ++j) frequency[j] = table.coder[j] & 0x1FFF;
  return AliasTable(frequency);
}

void make_tables(TileModel& model) {
  for (unsigned c = 0; c < model.classes; ++c) {
    const Intervals& intervals = model.intervals[c];
    model.tables.push_back(
        tiles::make_table(intervals, model.escape_frequency, kScalarTileKernels));
    model.code_tables.push_back(
        tiles::make_code_table(intervals, model.escape_frequency, kScalarTileKernels));
    const AliasTable alias = alias_of(model.tables.back());
    spread_buckets(alias, model.tables.back());
    cut_pieces(alias, model.code_tables.back());
  }
}

template <typename T>
void make_noise(T& part) {
  std::memset(&part, 0xA5, sizeof part);
}

struct EntrySlot {
  unsigned entry, rank;
};

// The format's formula.
EntrySlot find_entry(const AliasTable& table, unsigned slot) {
  const unsigned b = slot % 32, p = slot / 32;
  if (p < table.threshold[b]) return {b, p};
  return {table.alias[b], static_cast<uint16_t>(p + table.shift[b])};
}

unsigned slot_of(const TileCodeTable& table, EntrySlot found) {
  const unsigned position = table.first[found.entry] + found.rank;
  const unsigned from =
      std::max<unsigned>(table.pieces[found.entry], table.piece_at[position / 32]);
  unsigned k = from;
  while (position > table.last[k]) ++k;
  CHECK(k - from <= table.steps && k < kTilePieces);
  return static_cast<uint16_t>(32 * position + table.slot_offset[k]);
}

void test_class(const TileModel& model, unsigned c) {
  const TileTable& table = model.tables[c];
  const TileCodeTable& code_table = model.code_tables[c];
  uint16_t frequency[kTileEntries];
  unsigned sum = 0;
  for (unsigned j = 0; j < kTileEntries; ++j) {
    frequency[j] = table.coder[j] & 0x1FFF;
    sum += frequency[j];
    CHECK(code_table.coder[j] == table.coder[j]);
  }
  CHECK(sum == kTableTotal);
  const AliasTable alias = alias_of(table);
  std::vector<uint8_t> is_taken[kTileEntries];
  for (unsigned j = 0; j < kTileEntries; ++j) is_taken[j].resize(frequency[j]);
  for (unsigned slot = 0; slot < kTableTotal; ++slot) {
    const EntrySlot found = find_entry(alias, slot);
    CHECK(found.rank < frequency[found.entry] && is_taken[found.entry][found.rank]++ == 0);
    CHECK(table.slot[slot] >> 27 == found.entry && (table.slot[slot] >> 12 & 4095) == found.rank);
    CHECK((table.slot[slot] & 4095) == frequency[found.entry]);
    CHECK((table.slot[slot] >> 24 & 7) == table.coder[found.entry] >> 13);
    CHECK(slot_of(code_table, found) == slot);
    CHECK(code_table.slot[code_table.first[found.entry] + found.rank] == slot);
  }
  for (unsigned b = 0; b < kTileEntries; ++b) {
    CHECK(table.alias[b] == (alias.threshold[b] << 8 | alias.alias[b]));
    CHECK(table.shift[b] == alias.shift[b]);
  }
  for (unsigned symbol = 0; symbol < 256; ++symbol) {
    const unsigned entry = code_table.entry_of[symbol];
    const unsigned base = table.symbols[entry] & 255, rest = table.symbols[entry] >> 8;
    CHECK((entry != kEscapeEntry) == (symbol >= model.first && symbol < model.end));
    CHECK(rest == (1u << (table.coder[entry] >> 13)) - 1);
    CHECK(entry == kEscapeEntry ? base == 0 : symbol - base <= rest && base % (rest + 1) == 0);
  }
}

}  // namespace

uint8_t TileModel::likely_symbol(unsigned c, Random& random) const {
  const uint32_t slot = tables[c].slot[random.below(kTableTotal)];
  const unsigned symbols = tables[c].symbols[slot >> 27];
  return static_cast<uint8_t>((symbols & 255) + (random.byte() & symbols >> 8));
}

std::vector<TileTable> TileModel::tables_for(const TileKernels& kernels) const {
  std::vector<TileTable> prepared = tables;
  for (TileTable& table : prepared) {
    if (kernels.prepare != spell_out_slots) make_noise(table.slot);
    if (kernels.prepare == spread_buckets) continue;
    make_noise(table.threshold);
    make_noise(table.bucket_frequency);
    make_noise(table.bucket_symbols);
  }
  return prepared;
}

std::vector<TileCodeTable> TileModel::code_tables_for(const TileKernels& kernels) const {
  std::vector<TileCodeTable> prepared = code_tables;
  for (TileCodeTable& table : prepared) {
    if (kernels.prepare_code != spell_out_code_slots) make_noise(table.slot);
    if (kernels.prepare_code == cut_pieces) continue;
    make_noise(table.pieces);
    make_noise(table.piece_at);
    make_noise(table.slot_offset);
    make_noise(table.last);
    make_noise(table.steps);
  }
  return prepared;
}

uint8_t TileModel::any_symbol(Random& random) const {
  return random.below(8) == 0 ? uint8_t{0}
                              : static_cast<uint8_t>(first + random.below(end - first));
}

TileModel random_model(unsigned classes, Spread spread, Random& random) {
  TileModel model;
  model.classes = classes;
  do {
    choose_range(model, random);
    for (unsigned c = 0; c < classes; ++c) {
      const unsigned target = random.below(2) == 0 ? kMaxIntervals : random.below(kMaxIntervals);
      model.intervals[c] = random_intervals(model.first, model.end, target, random);
    }
    model.escape_frequency = frequency_for_escape(model, spread, random);
  } while (!spread_all(model, spread, random));
  make_tables(model);
  return model;
}

Words random_words(size_t n, unsigned limit, Random& random) {
  Words words(n);
  for (uint16_t& w : words) w = static_cast<uint16_t>(random.below(limit));
  return words;
}

Words random_scales(size_t n, ScaleKind kind, unsigned limit, Random& random) {
  Words scales = random_words(n, limit, random);
  const unsigned first = random.below(limit);
  for (size_t i = 0; i < n; ++i) {
    if (kind == ScaleKind::one_class) scales[i] = static_cast<uint16_t>(first & ~3u);
    if (kind == ScaleKind::alternating) scales[i] = static_cast<uint16_t>((first + 4 * i) % limit);
    if (kind == ScaleKind::near) scales[i] = static_cast<uint16_t>((first + scales[i] % 6) % limit);
  }
  return scales;
}

void test_tile_tables() {
  Random random(4);
  for (const Spread spread : kSpreads) {
    for (unsigned i = 0; i < 40; ++i) test_class(random_model(1, spread, random), 0);
  }
}

}  // namespace bf16codecs::test
