#include "quantized/kinds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

namespace bf16codecs::quantized {
namespace {

// NF4, by QLoRA (Dettmers et al., arXiv:2305.14314, appendix E), as bitsandbytes rounds it.
constexpr float kNf4[] = {-1.0f,
                          -0.6961928009986877f,
                          -0.5250730514526367f,
                          -0.39491748809814453f,
                          -0.28444138169288635f,
                          -0.18477343022823334f,
                          -0.09105003625154495f,
                          0.0f,
                          0.07958029955625534f,
                          0.16093020141124725f,
                          0.24611230194568634f,
                          0.33791524171829224f,
                          0.44070982933044434f,
                          0.5626170039176941f,
                          0.7229568362236023f,
                          1.0f};
// FP4 of bitsandbytes: a float of two exponent bits whose subnormal is 1/192 of the largest.
constexpr float kFp4[] = {
    0.0f,  0.005208333333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
    -0.0f, -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};

// Usually, the largest magnitude of a group has the level `usual`; where integers have zero points,
// up to twice that. In a part of a group, it may have any.
Kind integers(Label label, unsigned low_bits, int usual) {
  Kind kind;
  kind.levels.family = Family::integers;
  kind.levels.low_bits = low_bits;
  kind.label = label;
  const auto add = [&kind](int top) { kind.tops.push_back(static_cast<float>(top)); };
  for (int top = usual; top > 0; --top) add(top);
  for (int top = usual + 1; top < 16 << low_bits; ++top) add(top);
  return kind;
}

// The largest level is tried with every mantissa, in some octaves: scales need not be made for the
// largest magnitude, and those that are powers of two never are.
Kind floats(Label label, unsigned mantissa, int bias, float most) {
  constexpr unsigned kOctaves = 4;
  Kind kind;
  kind.levels.family = Family::floats;
  kind.levels.low_bits = mantissa + 1;
  kind.levels.bias = bias;
  kind.label = label;
  kind.tops = {most};
  const auto steps = static_cast<float>(1u << (mantissa + 1));
  for (unsigned octave = 0; octave < kOctaves; ++octave) {
    const auto above = static_cast<float>(std::bit_ceil(static_cast<uint32_t>(most)) >> octave);
    for (float q = steps - 1; q >= steps / 2; --q) {
      const float top = above * q / steps;
      if (top < most) kind.tops.push_back(top);
    }
  }
  return kind;
}

// The largest level of the format without NaN (fnuz) is 240, which is 480 with half the scale.
Kind float8_e4m3() {
  Kind kind = floats(Label::e4m3, 3, 7, 448);
  kind.tops.push_back(480);
  return kind;
}

Kind with_offsets(Formula formula, unsigned low_bits, int first, int levels) {
  Kind kind;
  kind.levels.low_bits = low_bits;
  kind.levels.formula = formula;
  kind.tops = {static_cast<float>(levels)};
  kind.first = first;
  return kind;
}

Kind table(Label label, std::span<const float> levels) {
  Kind kind;
  kind.levels.family = Family::table;
  kind.levels.count = static_cast<unsigned>(levels.size());
  std::copy(levels.begin(), levels.end(), kind.levels.table);
  kind.label = label;
  for (const float level : levels) {
    if (level != 0) kind.tops.push_back(std::fabs(level));
  }
  std::sort(kind.tops.begin(), kind.tops.end(), std::greater<>());
  kind.tops.erase(std::unique(kind.tops.begin(), kind.tops.end()), kind.tops.end());
  return kind;
}

}  // namespace

const std::vector<Kind>& known_kinds() {
  static const std::vector<Kind> kinds{
      integers(Label::int4, 0, 7),
      table(Label::nf4, kNf4),
      table(Label::fp4, kFp4),
      integers(Label::int5, 1, 15),
      integers(Label::int6, 2, 31),
      floats(Label::e5m2, 2, 15, 57344),
      float8_e4m3(),
      integers(Label::int8, 4, 127),
  };
  return kinds;
}

const std::vector<Kind>& kinds_with_offsets() {
  static const std::vector<Kind> kinds{
      // GGUF's with minimums; quanto's, with float shifts; tinygemm's; HQQ's.
      with_offsets(Formula::sum, 0, 0, 15),         with_offsets(Formula::sum, 1, 0, 31),
      with_offsets(Formula::rounded_sum, 0, 0, 15), with_offsets(Formula::rounded_sum, 0, -8, 15),
      with_offsets(Formula::difference, 0, 0, 15),  with_offsets(Formula::difference, 1, 0, 31),
  };
  return kinds;
}

const std::vector<InnerKind>& inner_kinds() {
  static const std::vector<InnerKind> kinds{
      {floats(Label::e4m3, 3, 7, 448), kAllItems},  // NVFP4
      {integers(Label::int4, 0, 15), 16},           // Q2_K
      {integers(Label::int6, 2, 63), 8},            // Q4_K, Q5_K
      {integers(Label::int6, 2, 32), 16},           // Q3_K
      {integers(Label::int8, 4, 128), 16},          // Q6_K
  };
  return kinds;
}

Label label_of_integers(const std::set<int>& magnitudes, int spread) {
  static const std::set<int> kTwiceE2M1{0, 1, 2, 3, 4, 6, 8, 12};
  const size_t others = magnitudes.size() - magnitudes.count(0);
  if (others <= 1) return Label::ternary;
  const auto is_e2m1 = [](int level) { return kTwiceE2M1.contains(level); };
  if (*magnitudes.rbegin() == 12 && std::all_of(magnitudes.begin(), magnitudes.end(), is_e2m1))
    return Label::e2m1;
  constexpr std::pair<int, Label> kLimits[] = {
      {3, Label::int2}, {7, Label::int3}, {15, Label::int4}, {31, Label::int5}, {63, Label::int6}};
  for (const auto& [limit, label] : kLimits) {
    if (spread <= limit) return label;
  }
  return Label::int8;
}

}  // namespace bf16codecs::quantized
