#include "tiles/magnitudes.h"

#include <algorithm>
#include <array>
#include <bit>

#include "grid/classes.h"
#include "grid/fixed_point.h"
#include "kernels/kernels.h"
#include "rans/frequencies.h"

namespace bf16codecs::tiles {
namespace {

using grid::kOctave;

constexpr int kUnitBits = 16;  // a magnitude of 1 at the exponent
constexpr int kReach = 32;     // octaves around the exponent that are told apart
constexpr unsigned kFloatBits = 23, kFloatBias = 127;
constexpr int kDeviation = 1334;  // log2 of a Gaussian's standard deviation over its mean |x|

// log2(x) in 4096ths of an octave, of the 12 leading bits of x.
int log2_of(uint64_t x) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(x)) - 32);
  return static_cast<int>(log2_fixed(static_cast<uint32_t>(x >> shift)) >> 4) + shift * kOctave;
}

constexpr int kMostScale = 6 * static_cast<int>(grid::kScaleSteps);

// 2^(-s / 16) for s = -kMostScale ... kMostScale
constexpr std::array<float, 2 * kMostScale + 1> make_inverse_scales() {
  constexpr int kBits = 16;
  std::array<float, 2 * kMostScale + 1> table{};
  for (int s = -kMostScale; s <= kMostScale; ++s) {
    const uint64_t power = grid::exp2_floor(kBits * kOctave - s * grid::kScaleUnit);
    table[static_cast<size_t>(s + kMostScale)] = static_cast<float>(power) / (1 << kBits);
  }
  return table;
}
constexpr std::array<float, 2 * kMostScale + 1> kInverseScales = make_inverse_scales();

}  // namespace

int typical_exponent(const grid::KeyFormat& format, const uint16_t* keys, size_t n) {
  constexpr size_t kSample = 1 << 12;
  std::vector<uint32_t> counts(size_t{1} << (format.bits - format.fraction));
  const size_t stride = n / kSample + 1;
  for (size_t i = 0; i < n; i += stride) ++counts[keys[i] >> format.fraction];
  // Infinities and NaNs say nothing.
  size_t e = counts.size() - 2;
  while (e > 1 && counts[e] <= n / stride / 256) --e;
  return static_cast<int>(e) - 1;
}

// A key at the origin, kReach octaves below the exponent, is 2^(kUnitBits - kReach).
Magnitudes::Magnitudes(const grid::KeyFormat& format, int exponent)
    : kernels_(kernels().magnitudes), exponent_(exponent) {
  constexpr uint32_t kFirst = (kFloatBias + kUnitBits - kReach) << kFloatBits;
  const int origin = (exponent - kReach) * (1 << format.fraction);
  const int end = origin + (2 * kReach << format.fraction);
  shape_.first = static_cast<uint16_t>(std::max(origin, 0));
  shape_.last = static_cast<uint16_t>(std::min(end - 1, UINT16_MAX));
  shape_.shift = kFloatBits - format.fraction;
  shape_.bias = kFirst - (static_cast<uint32_t>(origin) << shape_.shift);
}

MagnitudeSum Magnitudes::sum(const uint16_t* keys, size_t n, const float* weights) const {
  return kernels_->sum(shape_, keys, weights, n);
}

void Magnitudes::add_to(const uint16_t* keys, size_t n, float weight, uint32_t* sums) const {
  kernels_->add(shape_, keys, weight, n, sums);
}

int Magnitudes::log_scale(uint64_t sum, uint64_t count) const {
  return log2_of(sum) - log2_of(count) + (exponent_ - kUnitBits) * kOctave + kDeviation;
}

float inverse_scale(int scale) {
  const int inside = std::clamp(scale, -kMostScale, kMostScale);
  return kInverseScales[static_cast<size_t>(inside + kMostScale)];
}

// Rounding to steps of d nats costs count d^2 / 12 nats, and naming a step -log d: least together
// at d = sqrt(6 / count), which is 2^s 16ths of an octave for count = 3196 / 4^s.
uint8_t class_step(size_t count) {
  uint8_t step = 0;
  for (size_t most = 1598; step < 3 && count < most; most /= 4) ++step;
  return step;
}

}  // namespace bf16codecs::tiles
