#include "quantized/decode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "format/errors.h"
#include "format/little_endian.h"
#include "kernels/kernels.h"

namespace bf16codecs::quantized {
namespace {

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string("grid: ") + what);
}

// From groups of this width on, items are multiplied by runs.
constexpr size_t kLeastRun = 16;

// Bits that no code has, behind the last code of each field of the last bytes.
bool has_stray_bits(const uint8_t* packed, const Packed& part, size_t m) {
  const size_t fields = 8 / part.bits, mask = (size_t{1} << part.bits) - 1;
  for (size_t j = m; j < fields * part.size; ++j) {
    if ((packed[j % part.size] >> (j / part.size * part.bits) & mask) != 0) return true;
  }
  return false;
}

}  // namespace

size_t packed_size(unsigned low_bits, size_t m) {
  size_t size = 0;
  for (const Packed& part : packed_parts(low_bits, m)) size += part.size;
  return size;
}

Scales::Scales(const Grid& grid, uint64_t first, size_t n, const uint8_t* scales,
               const uint8_t* of_offsets)
    : of_group(static_cast<size_t>(Bands(grid.groups, first, n).groups())), coded(n) {
  bool has_zero = false, has_wrong = false;
  for (size_t g = 0; g < of_group.size(); ++g) {
    const auto bits = load_le<uint32_t>(scales + 4 * g);
    const float scale = of_group[g] = std::bit_cast<float>(bits);
    has_zero |= bits == 0;
    has_wrong |= bits != 0 && !is_within(std::fabs(scale), kLeastScale, kMostScale);
  }
  if (has_wrong) corrupt("a scale that is out of range");
  if (of_offsets != nullptr) read_offsets(grid.levels.formula, of_offsets);
  if (!has_zero) return;
  Runs runs(grid.groups, first, n);
  for (Run run = runs.next(n); run.length != 0; run = runs.next(n)) {
    if (of_group[run.group] == 0) coded -= run.length;
  }
  if (coded == 0) corrupt("no item that has a code");
}

void Scales::read_offsets(Formula formula, const uint8_t* bytes) {
  offsets.resize(of_group.size());
  for (size_t g = 0; g < offsets.size(); ++g) {
    const auto bits = load_le<uint32_t>(bytes + 4 * g);
    offsets[g] = std::bit_cast<float>(bits);
    const bool is_possible =
        of_group[g] == 0 ? bits == 0 : are_within(formula, of_group[g], offsets[g]);
    if (!is_possible) corrupt("an offset that is out of range");
  }
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
      parts_(packed_parts(grid.levels.low_bits, scales.coded)),
      packed_(low) {
  const auto takes_runs = kernels().quantized->takes_runs;
  is_by_runs_ = takes_runs != nullptr && !grid.has_offsets() && grid.groups.width >= kLeastRun &&
                takes_runs(grid.levels, precision_, container_);
  for (const Packed& part : parts_) {
    if (has_stray_bits(low, part, scales.coded)) corrupt("low bits behind the last code");
    low += part.size;
  }
}

// Puts the scales of the next n codes, and their offsets, into strips.
void Items::expand(size_t n) {
  const bool has_offsets = grid_.has_offsets();
  if (!has_plain_ && has_offsets) {
    Runs runs = runs_;
    runs.expand(scales_.offsets.data(), n, strip_offsets_);
  }
  if (!has_plain_) return runs_.expand(scales_.of_group.data(), n, strip_scales_);
  for (size_t i = 0; i < n;) {
    const Run run = next_coded(n - i);
    std::fill_n(strip_scales_ + i, run.length, scales_.of_group[run.group]);
    if (has_offsets) std::fill_n(strip_offsets_ + i, run.length, scales_.offsets[run.group]);
    i += run.length;
  }
}

// The next run of codes, at most n.
Run Items::next_coded(size_t n) {
  while (true) {
    const Run run = runs_.next(n);
    if (scales_.of_group[run.group] != 0) return run;
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
  const QuantizedKernels& kernel = *kernels().quantized;
  for (size_t i = 0; is_by_runs_ && i < n;) {
    // Where wide groups are plain, runs may be of one item each.
    constexpr size_t kMostRuns = 256;
    ScaleRun runs[kMostRuns];
    size_t n_runs = 0, length = 0;
    for (; n_runs < kMostRuns && i + length < n; length += runs[n_runs++].length) {
      const Run run = next_coded(n - i - length);
      runs[n_runs] = {scales_.of_group[run.group], run.length};
    }
    const LowBits at[2] = {{low[0].packed + i, low[0].from, low[0].bits}};
    kernel.multiply_runs(grid_.levels, precision_, container_, symbols + i, at, runs, n_runs,
                         items + width_ * i);
    i += length;
  }
  if (is_by_runs_) return;
  expand(n);
  const auto parts = static_cast<unsigned>(parts_.size());
  if (grid_.has_offsets()) {
    kernel.multiply_and_add(grid_.levels, precision_, container_, symbols, low, parts,
                            strip_scales_, strip_offsets_, n, items);
  } else {
    kernel.multiply(grid_.levels, precision_, container_, symbols, low, parts, strip_scales_, n,
                    items);
  }
}

void merge_plain(const Layout& layout, const Grid& grid, const Scales& scales, uint64_t first,
                 size_t n, const uint8_t* coded, const uint8_t* plain, uint8_t* items) {
  const size_t width = layout.planes();
  Runs runs(grid.groups, first, n);
  for (Run run = runs.next(n); run.length != 0; run = runs.next(n)) {
    const uint8_t*& from = scales.of_group[run.group] == 0 ? plain : coded;
    std::memcpy(items, from, width * run.length);
    from += width * run.length, items += width * run.length;
  }
}

}  // namespace bf16codecs::quantized
