#pragma once

// Decoding of the grid mode, once the planes of a payload are decoded.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quantized/format.h"
#include "quantized/runs.h"

namespace bf16codecs::quantized {

// The scales of a block's groups, and their offsets if they have some.
struct Scales {
  std::vector<float> of_group, offsets;
  size_t coded;  // the items that have codes

  // Of groups in the order of their little-endian bytes. `of_offsets` is null if there are none.
  // Throws CorruptDataError.
  Scales(const Grid& grid, uint64_t first, size_t n, const uint8_t* scales,
         const uint8_t* of_offsets);
  bool has_plain(size_t n) const { return coded != n; }

 private:
  void read_offsets(Formula formula, const uint8_t* bytes);
};

// Makes items of codes, in their order.
class Items {
 public:
  // The most items at a time: their numbers and scales stay in the first-level cache.
  static constexpr size_t kStrip = 2048;

  // `low` has the packed low bits. Throws CorruptDataError if more bits are set than there are.
  Items(const Layout& layout, const Grid& grid, const Scales& scales, uint64_t first, size_t n,
        const uint8_t* low);

  // Makes n <= kStrip items of the next codes, given their symbols.
  void decode(const uint8_t* symbols, size_t n, uint8_t* items);

 private:
  Run next_coded(size_t n);
  void expand(size_t n);
  void decode_part(const uint8_t* symbols, const LowBits low[2], size_t n, uint8_t* items);
  size_t find_low(size_t n, LowBits low[2]) const;

  size_t width_;
  Container container_;
  Precision precision_;
  const Grid& grid_;
  const Scales& scales_;
  Runs runs_;
  bool has_plain_, is_by_runs_;
  std::vector<Packed> parts_;
  const uint8_t* packed_;
  size_t at_ = 0;  // the next code
  alignas(64) float strip_scales_[kStrip], strip_offsets_[kStrip];
};

// The bytes of the low bits of m codes.
size_t packed_size(unsigned low_bits, size_t m);

// Puts coded and plain items together, in the order of the block's n items.
void merge_plain(const Layout& layout, const Grid& grid, const Scales& scales, uint64_t first,
                 size_t n, const uint8_t* coded, const uint8_t* plain, uint8_t* items);

}  // namespace bf16codecs::quantized
