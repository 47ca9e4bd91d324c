#pragma once

// Decoding of the grid mode, once the planes of a payload are decoded.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/format.h"
#include "quantized/runs.h"

namespace bf16codecs::quantized {

// The scales of a block's groups, and their offsets.
struct Scales {
  size_t count;               // of groups
  float *of_group, *offsets;  // no offsets: null
  size_t coded = 0;           // the items that have codes
  bool has_zero = false;

  // There is room for one or two numbers of each group.
  Scales(float* room, size_t groups, bool has_offsets)
      : count(groups), of_group(room), offsets(has_offsets ? room + groups : nullptr) {}

  // Adds the next n scales or offsets, from number `at` on, of the planes of their bytes; or all,
  // as items of float32. Throws CorruptDataError.
  void add(const uint8_t* const planes[], size_t at, size_t n);
  void add(const uint8_t* items, size_t n);
  void add_offsets(const uint8_t* const planes[], size_t at, size_t n);
  void add_offsets(const uint8_t* items, size_t n);
  // Counts the codes, of n items from `first` on. Throws CorruptDataError.
  void finish(const Grid& grid, uint64_t first, size_t n);

  bool has_plain(size_t n) const { return coded != n; }
};

// Makes items of codes, in their order.
class Items {
 public:
  // The most items at a time: their numbers and scales stay in the first-level cache.
  static constexpr size_t kStrip = 4096;

  // `low` has the packed low bits.
  Items(const Layout& layout, const Grid& grid, const Scales& scales, uint64_t first, size_t n,
        const uint8_t* low);

  // Makes n <= kStrip items of the next codes, given their symbols.
  void decode(const uint8_t* symbols, size_t n, uint8_t* items);

 private:
  ScaleRuns next_runs(size_t n);
  void expand(size_t n);
  void decode_runs(const uint8_t* symbols, const LowBits low[2], size_t n, uint8_t* items);
  void decode_part(const uint8_t* symbols, const LowBits low[2], size_t n, uint8_t* items);
  size_t find_low(size_t n, LowBits low[2]) const;

  size_t width_;
  Container container_;
  Precision precision_;
  const Grid& grid_;
  const Scales& scales_;
  Runs runs_;
  bool has_plain_;
  size_t least_run_;  // of runs that are multiplied without expanding their scales
  std::vector<Packed> parts_;
  const uint8_t* packed_;
  size_t at_ = 0;  // the next code
  alignas(64) float strip_scales_[kStrip], strip_offsets_[kStrip];
};

// The bytes of the low bits of m codes.
size_t packed_size(unsigned low_bits, size_t m);

// Throws CorruptDataError if a bit is set among them that no code has.
void check_low_bits(unsigned low_bits, size_t m, const uint8_t* low);

// The levels of all codes: of the code with symbol s and low bits l, that with number s 2^b + l.
std::vector<float> all_levels(const Levels& levels);

// Puts coded and plain items together, in the order of the block's n items.
class Merger {
 public:
  Merger(const Layout& layout, const Grid& grid, const Scales& scales, uint64_t first, size_t n,
         const uint8_t* plain);

  // Puts the next n coded items to `out`, and the plain ones before and between them; returns the
  // end.
  uint8_t* merge(const uint8_t* coded, size_t n, uint8_t* out);
  // Whether the next n coded items have no plain ones before or between them. If so, they count as
  // put together.
  bool skip(size_t n);
  // Puts the plain items behind the last coded one to `out`; returns the end.
  uint8_t* finish(uint8_t* out);

 private:
  size_t width_;
  const Scales& scales_;
  Runs runs_;
  const uint8_t* plain_;
};

}  // namespace bf16codecs::quantized
