#include <algorithm>
#include <cstring>
#include <vector>

#include "block.h"
#include "checksum.h"
#include "frequencies.h"
#include "histogram.h"
#include "huffman.h"
#include "rans.h"

namespace bf16codecs {
namespace {

// Items that are summed and split before the next ones are looked at, while they are in the
// first-level cache.
constexpr size_t kStrip = 4096;

// A plane is coded only where that saves more than 1/32 of it: less is not worth the time to
// decode it. A sign-and-mantissa byte has 7.97 bits and stays as it is.
constexpr size_t kLeastSaving = 32;

// A coded plane has its size before it, so it must be smaller by that to be no larger.
constexpr size_t kCodedOverhead = 5;

// No table is smaller than a plane of fewer symbols.
constexpr size_t kLeastCoded = 64;

// Wide tables decode several times slower than pairs, and are taken where they save this many
// 2^-16 bits a symbol: 0.125. Exponents lose 0.01 bits to the pairs' short probabilities.
constexpr uint64_t kWideSaving = 1 << 13;

bool is_constant(const uint8_t* plane, size_t n) {
  return n < 2 || std::memcmp(plane, plane + 1, n - 1) == 0;
}

struct Coded {
  Mode mode = Mode::stored;
  size_t size = 0;
};

// Counts of a plane, or of a sample of it.
struct Counts {
  uint32_t of[256];
  size_t counted;
  bool is_sample;

  Counts(const uint8_t* plane, size_t n)
      : counted(sample_histogram(plane, n, of)), is_sample(counted != n) {}

  void make_exact(const uint8_t* plane, size_t n) {
    if (is_sample) histogram(plane, n, of);
    counted = n;
    is_sample = false;
  }
  bool may_pay() const { return entropy_size(of) >> 19 < counted - counted / kLeastSaving; }
};

Coded code_arithmetic(Counts& counts, const uint8_t* plane, size_t n, uint8_t* out,
                      size_t capacity) {
  const PairsChoice pairs = choose_pairs(counts.of, counts.is_sample);
  if (pairs.size != UINT64_MAX &&
      pairs.size <= entropy_size(counts.of) + kWideSaving * counts.counted) {
    const size_t size = pairs_encode(plane, n, pairs.entries, out, capacity);
    if (size != 0) return {Mode::rans_pairs, size};
  }
  counts.make_exact(plane, n);
  return {Mode::rans_wide, wide_encode(plane, n, counts.of, out, capacity)};
}

// Writes the plane's payload in the mode that the codec has for it, if that is smaller than
// storing it.
Coded code_plane(const EncodeOptions& options, const uint8_t* plane, size_t n, uint8_t* out) {
  if (options.codec == Codec::split) return {};
  if (is_constant(plane, n)) {
    *out = *plane;
    return {Mode::constant, 1};
  }
  if (n < kLeastCoded) return {};
  const size_t capacity = n - std::max(n / kLeastSaving, kCodedOverhead);
  Coded coded;
  if (options.codec == Codec::zstd) {
    const size_t size = options.zstd->compress(plane, n, options.level, out, n - kCodedOverhead);
    coded = {Mode::zstd, size};
  } else {
    Counts counts(plane, n);
    if (!counts.may_pay()) return {};
    if (options.codec == Codec::huffman) {
      counts.make_exact(plane, n);
      coded = {Mode::huffman, huffman_encode(plane, n, counts.of, out, capacity)};
    } else {
      coded = code_arithmetic(counts, plane, n, out, capacity);
    }
  }
  return coded.size == 0 ? Coded{} : coded;
}

// Splits a block, and sums it if `sum` is there, in one pass over the items.
void split_and_sum(const Layout& layout, const uint8_t* items, size_t n,
                   uint8_t* const planes[], Checksum* sum) {
  const size_t width = layout.planes();
  for (size_t i = 0; i < n; i += kStrip) {
    const size_t strip = std::min(kStrip, n - i);
    uint8_t* at[kMaxItemSize];
    for (size_t p = 0; p < width; ++p) at[p] = planes[p] + i;
    if (sum != nullptr) sum->update(items + width * i, width * strip);
    split_planes(layout, items + width * i, strip, at);
  }
}

}  // namespace

size_t encode_block(const EncodeOptions& options, const uint8_t* items, size_t n, uint8_t* out,
                    Checksum* sum) {
  const size_t width = std::min(options.layout.planes(), kMaxItemSize);  // for GCC's warnings
  static thread_local std::vector<uint8_t> scratch;
  if (scratch.size() < 2 * width * n) scratch.resize(2 * width * n);
  uint8_t* planes[kMaxItemSize];
  uint8_t* payloads[kMaxItemSize];
  for (size_t p = 0; p < width; ++p) {
    planes[p] = scratch.data() + p * n;
    payloads[p] = planes[p] + width * n;
  }
  // The last plane is first in the block, and as a rule it is stored and the others are coded:
  // so it is split right to where it will lie.
  if (n >= kLeastCoded) planes[width - 1] = out + width + 4 * (width - 1);
  split_and_sum(options.layout, items, n, planes, sum);

  Coded coded[kMaxItemSize];
  uint8_t* end = out + width;
  for (size_t p = 0; p < width; ++p) {
    coded[p] = code_plane(options, planes[p], n, payloads[p]);
    if (is_coded(coded[p].mode)) end += 4;
  }
  for (size_t p = width; p-- != 0;) {
    const bool stored = coded[p].mode == Mode::stored;
    const size_t size = stored ? n : coded[p].size;
    const uint8_t* const payload = stored ? planes[p] : payloads[p];
    if (payload != end) std::memmove(end, payload, size);
    end += size;
  }
  uint8_t* sizes = out + width;
  for (size_t p = 0; p < width; ++p) {
    out[p] = static_cast<uint8_t>(coded[p].mode);
    if (!is_coded(coded[p].mode)) continue;
    store_le(sizes, static_cast<uint32_t>(coded[p].size));
    sizes += 4;
  }
  return static_cast<size_t>(end - out);
}

}  // namespace bf16codecs
