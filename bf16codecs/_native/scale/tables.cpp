#include "scale/tables.h"

#include "grid/fixed_point.h"

namespace bf16codecs::scale {

using grid::exp2_floor;
using grid::kHalfLog2E;
using grid::kOctave;
using grid::log2_floor;

namespace {

// Octaves that are split into 2^bits symbols: most where a Gaussian is densest.
struct SplitOctave {
  int exponent;
  unsigned bits;
};
constexpr SplitOctave kSplitOctaves[] = {{-8, 0}, {-7, 0}, {-6, 0}, {-5, 0}, {-4, 0},
                                         {-3, 0}, {-2, 1}, {-1, 2}, {0, 3},  {1, 4},
                                         {2, 3},  {3, 2},  {4, 1}};

constexpr int kNodesPerOctave = 4;
constexpr int kFirstNode = -6 * kOctave;
constexpr int kMaxLogMass = 24 * kOctave;

}  // namespace

SymbolSet::SymbolSet(const KeyFormat& format) {
  add_range(format, -22, 3);
  add_range(format, -14, 2);
  add_range(format, -10, 1);
  for (const auto& octave : kSplitOctaves) add_octave(format, octave.exponent, octave.bits);
  add_range(format, 5, 1);
  symbol[size++] = {0, 0, true};
  symbol[size++] = {0, static_cast<uint8_t>(format.bits), true};
}

// One symbol for 2^octaves_log2 octaves.
void SymbolSet::add_range(const KeyFormat& format, int exponent, unsigned octaves_log2) {
  const unsigned octaves = 1u << octaves_log2;
  symbol[size] = {exponent * (1 << format.fraction),
                  static_cast<uint8_t>(format.fraction + octaves_log2), false};
  log_width[size] = exponent * kOctave + log2_floor((1u << octaves) - 1);
  log_center[size] = exponent * kOctave + log2_floor((1u << octaves) + 1) - kOctave;
  ++size;
}

void SymbolSet::add_octave(const KeyFormat& format, int exponent, unsigned split_bits) {
  const unsigned split = std::min(split_bits, format.fraction);
  const unsigned raw = format.fraction - split;
  for (unsigned part = 0; part < 1u << split; ++part) {
    symbol[size] = {exponent * (1 << format.fraction) + static_cast<int>(part << raw),
                    static_cast<uint8_t>(raw), false};
    log_width[size] = (exponent - static_cast<int>(split)) * kOctave;
    log_center[size] = log_width[size] - kOctave + log2_floor((2u << split) + 2 * part + 1);
    ++size;
  }
}

SymbolLookup::SymbolLookup(const KeyFormat& format, const SymbolSet& symbols)
    : shift_(format.fraction - lookup_bits(format)),
      lookup_bits_(lookup_bits(format)),
      below_(static_cast<unsigned>(-kLowestExponent) << lookup_bits_),
      size_(kOctaves << lookup_bits_),
      zero_(symbols.zero()),
      escape_(symbols.escape()) {
  for (unsigned s = 0; s < symbols.zero(); ++s) {
    const Symbol& what = symbols.symbol[s];
    const auto from = static_cast<unsigned>((what.base >> shift_) + static_cast<int>(below_));
    std::fill_n(symbol_[0].begin() + from, 1u << (what.raw_bits - shift_), static_cast<uint8_t>(s));
  }
  symbol_.fill(symbol_[0]);
}

void SymbolLookup::restrict_to(const SymbolSet& symbols, const Frequencies& frequencies) {
  has_zero_ = frequencies[0][symbols.zero()] != 0;
  for (unsigned t = 0; t < kScaleSteps; ++t) {
    for (unsigned i = 0; i < size_; ++i) {
      if (frequencies[t][symbol_[t][i]] == 0) symbol_[t][i] = static_cast<uint8_t>(escape_);
    }
  }
}

int gaussian_log_mass(const SymbolSet& symbols, unsigned s, unsigned fraction) {
  const int log_distance =
      symbols.log_center[s] - static_cast<int>(2 * fraction + 1) * (kOctave / 32);
  const int log_square = std::clamp(2 * log_distance + 12 * kOctave, 0, 20 * kOctave);
  const uint64_t penalty = (exp2_floor(log_square) * kHalfLog2E) >> 12;
  return symbols.log_width[s] -
         static_cast<int>(std::min<uint64_t>(penalty, static_cast<uint64_t>(kMaxLogMass)));
}

int curve_place(const SymbolSet& symbols, unsigned s, unsigned fraction) {
  const int log_distance =
      symbols.log_center[s] - static_cast<int>(2 * fraction + 1) * (kOctave / 32);
  return std::clamp((log_distance - kFirstNode) * kNodesPerOctave, 0,
                    (static_cast<int>(kCurveNodes) - 1) * kOctave);
}

namespace {

// The term that the curve adds to the logarithm of a density.
int curve_height(const Section& section, int place) {
  const size_t node = std::min<size_t>(static_cast<size_t>(place) / kOctave, kCurveNodes - 2);
  const int part = place - static_cast<int>(node) * kOctave;
  return (section.curve[node] * (kOctave - part) + section.curve[node + 1] * part) >> 3;
}

// Rounds weights to frequencies with the given sum. A symbol whose share is below an eighth of one
// slot gets none, and is escaped.
void round_weights(const uint64_t* weights, unsigned n, unsigned sum, uint16_t* frequencies) {
  uint64_t total = 0;
  for (unsigned s = 0; s < n; ++s) total += weights[s];
  unsigned used = 0;
  for (unsigned s = 0; s < n; ++s) {
    uint64_t f = (weights[s] * sum + total / 2) / total;
    if (f == 0 && weights[s] * sum * 8 >= total) f = 1;
    frequencies[s] = static_cast<uint16_t>(f);
    used += frequencies[s];
  }
  const auto largest = [&] { return std::max_element(frequencies, frequencies + n); };
  for (; used > sum; --used) --*largest();
  if (used < sum) *largest() = static_cast<uint16_t>(*largest() + (sum - used));
}

}  // namespace

void model_frequencies(const SymbolSet& symbols, const Section& section, Frequencies& frequencies) {
  const unsigned modelled = symbols.size - 2;
  for (unsigned t = 0; t < kScaleSteps; ++t) {
    uint64_t weights[kMaxSymbols];
    for (unsigned s = 0; s < modelled; ++s) {
      const int height = curve_height(section, curve_place(symbols, s, t));
      const int log_weight = gaussian_log_mass(symbols, s, t) + height + kMaxLogMass;
      weights[s] = exp2_floor(std::clamp(log_weight, 0, 31 * kOctave));
    }
    auto& f = frequencies[t];
    round_weights(weights, modelled,
                  kModelTotal - section.zero_frequency - section.escape_frequency, f.data());
    f[symbols.zero()] = section.zero_frequency;
    f[symbols.escape()] = section.escape_frequency;
  }
}

ScaleMap::ScaleMap(const KeyFormat& format, const Section& section, const RowScales& rows,
                   uint64_t first)
    : section_(section), rows_(rows), max_scale_(format.max_scale()), first_(first) {}

void ScaleMap::fill(size_t begin, size_t n, uint16_t* scales) const {
  const uint64_t from = first_ + begin;
  const size_t first_row =
      section_.row_length
          ? static_cast<size_t>(from / section_.row_length - first_ / section_.row_length)
          : 0;
  const auto fill_piece = [&](size_t at, size_t end, size_t row, size_t column) {
    int scale = section_.base + rows_.offset;
    if (section_.row_length) scale += rows_.rows[first_row + row] * (1 << section_.row_step);
    if (!section_.period) {
      std::fill(scales + at, scales + end, static_cast<uint16_t>(std::clamp(scale, 0, max_scale_)));
      return;
    }
    // The classes are read as they are: a copy of what all columns add would cost a short block
    // more than the block itself.
    const int16_t* columns = section_.columns.data() + column;
    const int step = section_.column_step, most = max_scale_;
    for (size_t i = at; i < end; ++i) {
      const int added = columns[i - at] * (1 << step);
      scales[i] = static_cast<uint16_t>(std::clamp(scale + added, 0, most));
    }
  };
  grid::for_each_piece(section_.row_length, section_.period, from, n, fill_piece);
}

}  // namespace bf16codecs::scale
