#include <algorithm>
#include <cstring>
#include <vector>

#include "block.h"
#include "frequencies.h"
#include "huffman.h"
#include "kernels/kernels.h"
#include "rans.h"

namespace bf16codecs {
namespace {

// A plane is coded only where that saves more than 1/32 of it: less is not worth the time to
// decode it. A sign-and-mantissa byte has 7.97 bits and stays as it is.
constexpr size_t kLeastSaving = 32;

// A coded plane has its size before it, so it must be smaller by that to be no larger.
constexpr size_t kCodedOverhead = 5;

// Wide tables decode several times slower than pairs, and are taken where they save this part of
// the plane: 0.125 bits a symbol. Exponents lose 0.01 bits to the pairs' short probabilities.
constexpr size_t kWideSaving = 64;

// Planes longer than this are sampled first, in runs, to see whether coding could pay.
constexpr size_t kSampleRuns = 32, kSampleRun = 256;

bool is_constant(const uint8_t* plane, size_t n) {
  return n < 2 || std::memcmp(plane, plane + 1, n - 1) == 0;
}

bool may_pay(const uint8_t* plane, size_t n) {
  uint32_t counts[256] = {};
  size_t sampled = n;
  if (n <= 2 * kSampleRuns * kSampleRun) {
    kernels().histogram(plane, n, counts);
  } else {
    sampled = kSampleRuns * kSampleRun;
    for (size_t run = 0; run < kSampleRuns; ++run) {
      kernels().histogram(plane + n / kSampleRuns * run, kSampleRun, counts);
    }
  }
  return entropy_size(counts) >> 19 < sampled - sampled / kLeastSaving;
}

struct Coded {
  Mode mode = Mode::stored;
  size_t size = 0;
};

Coded code_arithmetic(const uint8_t* plane, size_t n, uint8_t* out, size_t capacity) {
  uint32_t counts[256] = {};
  kernels().histogram(plane, n, counts);
  const size_t pairs = pairs_size(counts, n), wide = wide_size(counts, n);
  if (pairs != SIZE_MAX && pairs <= wide + n / kWideSaving) {
    return {Mode::rans_pairs, pairs_encode(plane, n, counts, out, capacity)};
  }
  return {Mode::rans_wide, wide_encode(plane, n, counts, out, capacity)};
}

// Writes the plane's payload in the mode that the codec has for it, if that is smaller than
// storing it.
Coded code_plane(const EncodeOptions& options, const uint8_t* plane, size_t n, uint8_t* out) {
  if (options.codec == Codec::split) return {};
  if (is_constant(plane, n)) {
    *out = *plane;
    return {Mode::constant, 1};
  }
  if (n < 64) return {};  // no table is smaller
  const size_t capacity = n - std::max(n / kLeastSaving, kCodedOverhead);
  Coded coded;
  if (options.codec == Codec::zstd) {
    const size_t size = options.zstd->compress(plane, n, options.level, out, n - kCodedOverhead);
    coded = {Mode::zstd, size};
  } else if (!may_pay(plane, n)) {
    return {};
  } else if (options.codec == Codec::huffman) {
    uint32_t counts[256] = {};
    kernels().histogram(plane, n, counts);
    coded = {Mode::huffman, huffman_encode(plane, n, counts, out, capacity)};
  } else {
    coded = code_arithmetic(plane, n, out, capacity);
  }
  return coded.size == 0 ? Coded{} : coded;
}

}  // namespace

size_t encode_block(const EncodeOptions& options, const uint8_t* items, size_t n, uint8_t* out) {
  const size_t width = options.layout.planes();
  static thread_local std::vector<uint8_t> scratch;
  if (scratch.size() < 2 * width * n) scratch.resize(2 * width * n);
  uint8_t* planes[kMaxItemSize];
  uint8_t* payloads[kMaxItemSize];
  for (size_t p = 0; p < width; ++p) {
    planes[p] = scratch.data() + p * n;
    payloads[p] = planes[p] + width * n;
  }
  split_planes(options.layout, items, n, planes);

  Coded coded[kMaxItemSize];
  for (size_t p = 0; p < width; ++p) {
    coded[p] = code_plane(options, planes[p], n, payloads[p]);
    out[p] = static_cast<uint8_t>(coded[p].mode);
  }
  uint8_t* end = out + width;
  for (size_t p = 0; p < width; ++p) {
    if (!is_coded(coded[p].mode)) continue;
    store_le(end, static_cast<uint32_t>(coded[p].size));
    end += 4;
  }
  for (size_t p = width; p-- != 0;) {
    const bool stored = coded[p].mode == Mode::stored;
    end = std::copy_n(stored ? planes[p] : payloads[p], stored ? n : coded[p].size, end);
  }
  return static_cast<size_t>(end - out);
}

}  // namespace bf16codecs
