#include "quantized/decode.h"

#include <algorithm>
#include <bit>

#include "copy.h"
#include "kernels/kernels.h"
#include "quantized/values.h"

namespace bf16codecs::quantized {
namespace {

// Bits that no code has, behind the last code of each field of the last bytes.
bool has_stray_bits(const uint8_t* packed, const Packed& part, size_t m) {
  const size_t fields = 8 / part.bits, mask = (size_t{1} << part.bits) - 1;
  for (size_t j = m; j < fields * part.size; ++j) {
    if ((packed[j % part.size] >> (j / part.size * part.bits) & mask) != 0) return true;
  }
  return false;
}

// Whether a number's magnitude is in a range, of bits that are compared as integers, so that
// compilers make vectors of a loop.
struct Bounds {
  uint32_t least, range;

  Bounds(float low, float high)
      : least(std::bit_cast<uint32_t>(low)), range(std::bit_cast<uint32_t>(high) - least) {}
  bool has(uint32_t bits) const { return (bits & 0x7FFFFFFF) - least < range; }
};

// Whether are_within() allows all scales with their offsets; that of a group without a scale is 0.
bool are_possible(Formula formula, const float* scales, const float* offsets, size_t n) {
  const auto [of_scales, of_offsets] = ranges_of(formula);
  const Bounds scale_bounds(of_scales.low, of_scales.high);
  const Bounds offset_bounds(of_offsets.low, of_offsets.high);
  uint32_t wrong = 0;
  for (size_t g = 0; g < n; ++g) {
    const auto scale = std::bit_cast<uint32_t>(scales[g]);
    const auto offset = std::bit_cast<uint32_t>(offsets[g]);
    const bool is_offset = (offset == 0) | (offset_bounds.has(offset) & (scale != 0));
    const bool is_scale = (scale == 0) | scale_bounds.has(scale);
    wrong |= static_cast<uint32_t>(!(is_offset & is_scale));
  }
  return wrong == 0;
}

}  // namespace

size_t packed_size(unsigned low_bits, size_t m) {
  size_t size = 0;
  for (const Packed& part : packed_parts(low_bits, m)) size += part.size;
  return size;
}

void check_low_bits(unsigned low_bits, size_t m, const uint8_t* low) {
  for (const Packed& part : packed_parts(low_bits, m)) {
    if (has_stray_bits(low, part, m)) corrupt("low bits behind the last code");
    low += part.size;
  }
}

void Scales::add(const uint8_t* const planes[], size_t at, size_t n) {
  const ScaleCounts counts =
      kernels().quantized->scales(planes, n, {kLeastScale, kMostScale}, of_group + at);
  if (counts.wrong != 0) corrupt("a scale that is out of range");
  has_zero |= counts.zeros != 0;
}

void Scales::add(const uint8_t* items, size_t n) {
  load_values({DType::float32, false}, items, n, of_group);
  const Bounds bounds(kLeastScale, kMostScale);
  uint32_t zeros = 0, wrong = 0;
  for (size_t g = 0; g < n; ++g) {
    const auto bits = std::bit_cast<uint32_t>(of_group[g]);
    zeros |= static_cast<uint32_t>(bits == 0);
    wrong |= static_cast<uint32_t>((bits != 0) & !bounds.has(bits));
  }
  if (wrong != 0) corrupt("a scale that is out of range");
  has_zero |= zeros != 0;
}

void Scales::add_offsets(const uint8_t* items, size_t n) {
  load_values({DType::float32, false}, items, n, offsets);
}

void Scales::add_offsets(const uint8_t* const planes[], size_t at, size_t n) {
  kernels().quantized->scales(planes, n, {0, kMostScale}, offsets + at);
}

void Scales::finish(const Grid& grid, uint64_t first, size_t n) {
  if (offsets != nullptr && !are_possible(grid.levels.formula, of_group, offsets, count))
    corrupt("an offset that is out of range");
  coded = n;
  if (!has_zero) return;
  Runs runs(grid.groups, first, n);
  for (size_t left = n; left != 0;) {
    const EqualRuns equal = runs.next_runs(of_group, left);
    left -= equal.length * equal.count;
    if (of_group[equal.group] == 0) coded -= equal.length;
  }
  if (coded == 0) corrupt("no item that has a code");
}

Items::Items(const Layout& layout, const Grid& grid, const Scales& scales, uint64_t first, size_t n,
             const uint8_t* low)
    : width_(layout.planes()),
      container_(container_of(layout)),
      precision_(precision_of(layout, grid.rounding)),
      grid_(grid),
      scales_(scales),
      runs_(grid.groups, first, n),
      has_plain_(scales.has_plain(n)),
      least_run_(kNoRuns),
      parts_(packed_parts(grid.levels.low_bits, scales.coded)),
      packed_(low) {
  const auto least_run = kernels().quantized->least_run;
  if (least_run != nullptr) least_run_ = least_run(grid.levels, precision_, container_);
}

// Puts the scales of the next n codes, and their offsets, into strips.
void Items::expand(size_t n) {
  const float* const offsets = scales_.offsets;
  if (!has_plain_) {
    Runs again = runs_;
    if (offsets != nullptr) again.expand(offsets, n, strip_offsets_);
    return runs_.expand(scales_.of_group, n, strip_scales_);
  }
  for (size_t i = 0; i < n;) {
    const ScaleRuns runs = next_runs(n - i);
    for (size_t r = 0; r < runs.count; ++r, i += runs.length) {
      std::fill_n(strip_scales_ + i, runs.length, runs.scales[r]);
      if (offsets != nullptr) std::fill_n(strip_offsets_ + i, runs.length, runs.offsets[r]);
    }
  }
}

// The next runs of codes, at most n codes.
ScaleRuns Items::next_runs(size_t n) {
  while (true) {
    const EqualRuns runs = runs_.next_runs(has_plain_ ? scales_.of_group : nullptr, n);
    const float* const scales = scales_.of_group + runs.group;
    const float* const offsets = scales_.offsets;
    if (*scales != 0)
      return {scales, offsets == nullptr ? nullptr : offsets + runs.group, runs.length, runs.count};
  }
}

// A field of bits begins anew after as many codes as a part has bytes: up to there, `low` is where
// the next codes have theirs. Returns how many of n codes that are.
size_t Items::find_low(size_t n, LowBits low[2]) const {
  const uint8_t* packed = packed_;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const auto [bits, size] = parts_[p];
    const size_t byte = at_ % size;
    low[p] = {packed + byte, static_cast<unsigned>(at_ / size) * bits, bits};
    n = std::min(n, size - byte);
    packed += size;
  }
  return n;
}

void Items::decode(const uint8_t* symbols, size_t n, uint8_t* items) {
  for (size_t i = 0; i < n;) {
    LowBits low[2] = {};
    const size_t count = find_low(n - i, low);
    decode_part(symbols + i, low, count, items + width_ * i);
    at_ += count;
    i += count;
  }
}

// Decodes codes whose low bits are in the same fields.
void Items::decode_part(const uint8_t* symbols, const LowBits low[2], size_t n, uint8_t* items) {
  // Scales of narrow groups are read item by item: a run of a few items costs more.
  constexpr size_t kNarrow = 16;
  const size_t width = grid_.groups.width;
  const bool is_wide = width >= std::max(least_run_, kNarrow);
  if (least_run_ != kNoRuns && (is_wide || (width == 1 && least_run_ == 1)))
    return decode_runs(symbols, low, n, items);
  expand(n);
  const QuantizedKernels& kernel = *kernels().quantized;
  const auto parts = static_cast<unsigned>(parts_.size());
  if (least_run_ == 1) {
    const ScaleRuns each{strip_scales_, strip_offsets_, 1, n};
    return kernel.multiply_runs(grid_.levels, precision_, container_, symbols, low, &each, 1,
                                items);
  }
  if (grid_.has_offsets()) {
    return kernel.multiply_and_add(grid_.levels, precision_, container_, symbols, low, parts,
                                   strip_scales_, strip_offsets_, n, items);
  }
  kernel.multiply(grid_.levels, precision_, container_, symbols, low, parts, strip_scales_, n,
                  items);
}

void Items::decode_runs(const uint8_t* symbols, const LowBits low[2], size_t n, uint8_t* items) {
  for (size_t i = 0; i < n;) {
    // Where wide groups are plain, runs may be of one item each.
    constexpr size_t kMostRuns = 256;
    ScaleRuns runs[kMostRuns];
    size_t n_runs = 0, length = 0;
    for (; n_runs < kMostRuns && i + length < n; ++n_runs) {
      runs[n_runs] = next_runs(n - i - length);
      length += runs[n_runs].length * runs[n_runs].count;
    }
    LowBits at[2] = {low[0], low[1]};
    for (size_t p = 0; p < parts_.size(); ++p) at[p].packed += i;
    kernels().quantized->multiply_runs(grid_.levels, precision_, container_, symbols + i, at, runs,
                                       n_runs, items + width_ * i);
    i += length;
  }
}

Merger::Merger(const Layout& layout, const Grid& grid, const Scales& scales, uint64_t first,
               size_t n, const uint8_t* plain)
    : width_(layout.planes()), scales_(scales), runs_(grid.groups, first, n), plain_(plain) {}

uint8_t* Merger::merge(const uint8_t* coded, size_t n, uint8_t* out) {
  while (n != 0) {
    const EqualRuns runs = runs_.next_runs(scales_.of_group, n);
    const size_t length = runs.length * runs.count;
    const bool is_plain = scales_.of_group[runs.group] == 0;
    const uint8_t*& from = is_plain ? plain_ : coded;
    out = copy_down(from, width_ * length, out);
    from += width_ * length;
    if (!is_plain) n -= length;
  }
  return out;
}

bool Merger::skip(size_t n) {
  Runs runs = runs_;
  while (n != 0) {
    const EqualRuns equal = runs.next_runs(scales_.of_group, n);
    if (scales_.of_group[equal.group] == 0) return false;
    n -= equal.length * equal.count;
  }
  runs_ = runs;
  return true;
}

uint8_t* Merger::finish(uint8_t* out) {
  for (Run run = runs_.next(SIZE_MAX); run.length != 0; run = runs_.next(SIZE_MAX)) {
    out = copy_down(plain_, width_ * run.length, out);
    plain_ += width_ * run.length;
  }
  return out;
}

std::vector<float> all_levels(const Levels& levels) {
  const size_t n = size_t{kMostLevels} << levels.low_bits;
  std::vector<uint8_t> symbols(n), low(n), bytes(4 * n);
  for (size_t code = 0; code < n; ++code) {
    symbols[code] = static_cast<uint8_t>(code >> levels.low_bits);
    low[code] = static_cast<uint8_t>(code);
  }
  const LowBits of_codes{low.data(), 0, levels.low_bits};
  const std::vector<float> scales(n, 1.0f);
  kernels().quantized->multiply(levels, Precision::binary32, Container::float32, symbols.data(),
                                &of_codes, levels.low_bits == 0 ? 0 : 1, scales.data(), n,
                                bytes.data());
  std::vector<float> all(n);
  load_values({DType::float32, false}, bytes.data(), n, all.data());
  return all;
}

}  // namespace bf16codecs::quantized
