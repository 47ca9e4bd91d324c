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

constexpr int kUnitBits = 16;
static_assert(Magnitudes::kUnit == 1 << kUnitBits);
constexpr int kReach = 32;  // octaves on either side of the exponent that are distinguished
constexpr unsigned kFloatBits = 23, kFloatBias = 127;

// log2(x) in 4096ths of an octave, of the 12 leading bits of x.
int log2_of(uint64_t x) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(x)) - static_cast<int>(kWideBits));
  return static_cast<int>(kLogTable[static_cast<size_t>(x >> shift)] >> 4) + shift * kOctave;
}

constexpr int kSteps = static_cast<int>(grid::kScaleSteps);

// 2^(-f / 16) for f = 0 ... 15
constexpr std::array<float, kSteps> make_inverse_fractions() {
  constexpr int kBits = 24;
  std::array<float, kSteps> table{};
  for (int f = 0; f < kSteps; ++f) {
    const uint64_t power = grid::exp2_floor(kBits * kOctave - f * grid::kScaleUnit);
    table[static_cast<size_t>(f)] = static_cast<float>(power) / (1 << kBits);
  }
  return table;
}
constexpr std::array<float, kSteps> kInverseFractions = make_inverse_fractions();

}  // namespace

int typical_exponent(const grid::KeyFormat& format, const uint16_t* keys, size_t n) {
  constexpr size_t kSample = 1 << 12;
  std::vector<uint32_t> counts(size_t{1} << (format.bits - format.fraction));
  const size_t stride = n / kSample + 1;
  for (size_t i = 0; i < n; i += stride) ++counts[keys[i] >> format.fraction];
  // The highest exponent, of infinities and NaNs, says nothing of a scale.
  size_t e = counts.size() - 2;
  while (e > 1 && counts[e] <= n / stride / 256) --e;
  return static_cast<int>(e) - 1;
}

// A key at the origin, kReach octaves below the exponent, has the magnitude 2^(kUnitBits - kReach);
// shape_.last is the last key 2 kReach octaves above it. So numbers are 2^-16 to 2^48, and with
// weights of 2^-32 to 2^32 normal numbers of binary32.
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
  return log2_of(sum) - log2_of(count) + (exponent_ - kUnitBits) * kOctave + grid::kDeviation;
}

int faint_scale(const grid::KeyFormat& format, const std::vector<uint16_t>& keys) {
  const Magnitudes magnitudes(format, typical_exponent(format, keys.data(), keys.size()));
  const MagnitudeSum sum = magnitudes.sum(keys.data(), keys.size(), nullptr);
  return magnitudes.log_scale(std::max<uint64_t>(1, sum.sum), sum.nonzero);
}

int log_weight(float weight) {
  return log2_of(static_cast<uint64_t>(weight * 65536)) - 16 * kOctave;
}

std::vector<float> inverse_scales(const std::vector<int16_t>& classes, unsigned step) {
  std::vector<float> inverse(classes.size());
  for (size_t i = 0; i < classes.size(); ++i) {
    const int scale = std::clamp(classes[i] * (1 << step), -kReach * kSteps, kReach * kSteps);
    const auto above = static_cast<unsigned>(scale + kReach * kSteps);
    const auto fraction = std::bit_cast<uint32_t>(kInverseFractions[above % kSteps]);
    inverse[i] = std::bit_cast<float>(fraction - ((above / kSteps - kReach) << kFloatBits));
  }
  return inverse;
}

// Rounding to steps of d nats costs count d^2 / 12 nats, and naming a step -log d: least together
// at d = sqrt(6 / count), which is 2^s 16ths of an octave for count = 3196 / 4^s.
uint8_t class_step(size_t count) {
  uint8_t step = 0;
  for (size_t most = 1598; step < 3 && count < most; most /= 4) ++step;
  return step;
}

}  // namespace bf16codecs::tiles
