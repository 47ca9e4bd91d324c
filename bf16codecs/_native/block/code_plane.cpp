#include "block/code_plane.h"

#include <algorithm>
#include <cstring>

#include "histogram.h"
#include "huffman/huffman.h"
#include "rans/frequencies.h"
#include "rans/rans.h"
#include "scattered.h"

namespace bf16codecs {
namespace {

// A plane is coded only if that saves more than 1/32 of it: less is not worth the time of decoding.
// Signs and mantissas have 7.97 bits of 8, and are stored (docs/design_codecs.md, "Which plane is
// coded, and by which table").
constexpr size_t kLeastSaving = 32;

bool may_pay(uint64_t entropy, size_t counted) {
  return entropy >> 19 < counted - counted / kLeastSaving;
}

// Whether a second sample agrees with the first one. That lies at equal distances, which are powers
// of two as most rows are: of a matrix whose every second row is a tenth of the others, it came
// from one kind of row, and the matrix took 15.4 bits a value instead of 11.2. In 404 planes of
// trained weights, which differ by up to 60, no table gained from all counts; a difference of 64
// costs 0.04 bits a symbol.
bool is_typical(const PlaneCounts& counts, const uint8_t* plane, size_t n) {
  constexpr size_t kSamples = 64, kSampleSymbols = 16;
  constexpr uint32_t kTotal = kSamples * kSampleSymbols;
  constexpr float kMostDifferent = 64;
  uint32_t scattered[256] = {};
  for_each_sample(plane, n, kSamples, kSampleSymbols, [&](const uint8_t* symbols, size_t length) {
    for (size_t i = 0; i < length; ++i) ++scattered[symbols[i]];
  });
  // Chi-squared, as if the first sample were as small as this one: by chance, a half for each
  // symbol.
  const float scale = static_cast<float>(kTotal) / static_cast<float>(counts.counted);
  float difference = 0;
  for (unsigned s = 0; s < 256; ++s) {
    const float expected = scale * static_cast<float>(counts.of[s]);
    const float found = static_cast<float>(scattered[s]), sum = expected + found;
    if (sum == 0) continue;
    difference += (expected - found) * (expected - found) / sum - 0.5f;
  }
  return difference <= kMostDifferent;
}

// By how much a wide table is larger than one of pairs, in units of 2^-16 bit.
uint64_t wide_table(const PlaneCounts& counts) {
  const auto distinct = 256 - std::count(counts.of, counts.of + 256, uint32_t{0});
  return (32 + static_cast<uint64_t>(distinct)) << 19;
}

CodedPlane code_arithmetic(PlaneCounts& counts, uint64_t entropy, const uint8_t* plane, size_t n,
                           uint8_t* out, size_t capacity, Scratch& words) {
  if (counts.is_sample && !is_typical(counts, plane, n)) {
    counts.make_exact(plane, n);
    entropy = entropy_size(counts.of);
  }
  const PairsChoice pairs = choose_pairs(counts.of, counts.is_sample);
  if (pairs.size != UINT64_MAX && pairs.size <= entropy + kWideSaving * counts.counted) {
    const size_t size = pairs_encode(plane, n, pairs.entries, groups_log2(n), out, capacity, words);
    if (size != 0) return {Mode::rans_pairs, size};
  }
  counts.make_exact(plane, n);
  return coded_or_stored(Mode::rans_wide, wide_encode(plane, n, counts.of, out, capacity, words));
}

}  // namespace

bool is_constant(const uint8_t* plane, size_t n) {
  return n < 2 || std::memcmp(plane, plane + 1, n - 1) == 0;
}

PlaneCounts::PlaneCounts(const uint8_t* plane, size_t n)
    : counted(sample_histogram(plane, n, of)), is_sample(counted != n) {}

void PlaneCounts::make_exact(const uint8_t* plane, size_t n) {
  if (is_sample) histogram(plane, n, of);
  counted = n;
  is_sample = false;
}

CodedPlane code_plane(const EncodeOptions& options, const uint8_t* plane, size_t n, uint8_t* out,
                      Workspace& workspace) {
  if (options.codec == Codec::split) return {};
  if (is_constant(plane, n)) {
    *out = *plane;
    return {Mode::constant, 1};
  }
  if (n < kLeastCoded) return {};
  if (options.codec == Codec::zstd) {
    const size_t size = options.zstd->compress(plane, n, options.level, out, n - kCodedOverhead);
    return coded_or_stored(Mode::zstd, size);
  }
  PlaneCounts counts(plane, n);
  if (options.is_best()) {
    counts.make_exact(plane, n);
    return code_smallest(counts, plane, n, groups_log2(n), out, workspace.words);
  }
  return code_counted(options, counts, plane, n, out, workspace);
}

CodedPlane code_counted(const EncodeOptions& options, PlaneCounts& counts, const uint8_t* plane,
                        size_t n, uint8_t* out, Workspace& workspace) {
  const uint64_t entropy = entropy_size(counts.of);
  if (!may_pay(entropy, counts.counted)) return {};
  const size_t capacity = n - std::max(n / kLeastSaving, kCodedOverhead);
  if (options.codec == Codec::arithmetic)
    return code_arithmetic(counts, entropy, plane, n, out, capacity, workspace.words);
  counts.make_exact(plane, n);
  const size_t size = huffman_encode(plane, n, counts.of, out, capacity, workspace.code_pairs);
  return coded_or_stored(Mode::huffman, size);
}

CodedPlane code_smallest(const PlaneCounts& counts, const uint8_t* plane, size_t n,
                         unsigned log2_groups, uint8_t* out, Scratch& words) {
  const size_t capacity = n - kCodedOverhead;
  const PairsChoice pairs = choose_pairs(counts.of, false);
  if (pairs.size != UINT64_MAX && pairs.size <= entropy_size(counts.of) + wide_table(counts)) {
    const size_t size = pairs_encode(plane, n, pairs.entries, log2_groups, out, capacity, words);
    return coded_or_stored(Mode::rans_pairs, size);
  }
  return coded_or_stored(Mode::rans_wide, wide_encode(plane, n, counts.of, out, capacity, words));
}

}  // namespace bf16codecs
