// Kernels::quantized against the scalar ones: all levels, roundings and containers, with values on
// and off a grid, and numbers that are none.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "check.h"
#include "kernels_test.h"
#include "random_levels.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kMost = size_t{1} << 14;

struct Arenas {
  Arena symbols{kMost}, low{kMost}, scales{4 * kMost}, offsets{4 * kMost}, items{4 * kMost},
      values{4 * kMost};
};

Arenas& arenas() {
  static Arenas all;
  return all;
}

using Floats = std::vector<float>;

struct Form {
  Precision precision;
  Container container;
};
constexpr Form kForms[] = {
    {Precision::bfloat16, Container::bfloat16}, {Precision::binary16_bfloat16, Container::bfloat16},
    {Precision::binary16, Container::float16},  {Precision::bfloat16_binary16, Container::float16},
    {Precision::binary32, Container::float32},  {Precision::binary16, Container::float32},
    {Precision::bfloat16, Container::float32},
};

size_t size_of(Container container) {
  return container == Container::float32 ? 4 : 2;
}

// 2^-20 to 2^4, of either sign.
float random_scale(Random& random) {
  const float fraction = 1 + static_cast<float>(random.below(1 << 23)) * 0x1p-23f;
  const float scale = std::ldexp(fraction, static_cast<int>(random.below(24)) - 20);
  return random.below(4) == 0 ? -scale : scale;
}

Bytes multiplied(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
                 const Bytes& symbols, const Bytes& low, const LowBits parts[], unsigned n_parts,
                 const Floats& scales, Against side) {
  const size_t n = symbols.size();
  uint8_t* const packed = arenas().low.holding(low, side);
  LowBits placed[2];
  for (unsigned p = 0; p < n_parts; ++p) placed[p] = {packed, parts[p].from, parts[p].bits};
  const Output items(arenas().items, size_of(form.container) * n, 0, side);
  kernels.multiply(levels, form.precision, form.container, arenas().symbols.holding(symbols, side),
                   placed, n_parts, arenas().scales.holding(scales, side), n, items.data());
  return items.bytes();
}

// Cuts items into runs of equal scales and offsets, none longer than `most`. Products have no
// offsets.
struct RunsOf {
  Floats scales, offsets;
  std::vector<size_t> lengths;

  RunsOf(const Floats& all, const Floats& all_offsets, size_t most) {
    for (size_t i = 0; i < all.size(); ++i) {
      const bool has_offset = !all_offsets.empty();
      const bool is_cut = scales.empty() || scales.back() != all[i] || lengths.back() == most ||
                          (has_offset && offsets.back() != all_offsets[i]);
      if (is_cut) {
        scales.push_back(all[i]), lengths.push_back(0);
        if (has_offset) offsets.push_back(all_offsets[i]);
      }
      ++lengths.back();
    }
  }
  // With those of equal lengths together.
  std::vector<ScaleRuns> placed(Against side) const {
    const float* const at = arenas().scales.holding(scales, side);
    const float* const offsets_at =
        offsets.empty() ? nullptr : arenas().offsets.holding(offsets, side);
    std::vector<ScaleRuns> runs;
    for (size_t r = 0; r < lengths.size(); ++r) {
      if (r != 0 && lengths[r] == lengths[r - 1]) {
        ++runs.back().count;
      } else {
        runs.push_back({at + r, offsets.empty() ? nullptr : offsets_at + r, lengths[r], 1});
      }
    }
    return runs;
  }
};

// The same by runs.
Bytes multiplied_by_runs(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
                         const Bytes& symbols, const Bytes& low, const LowBits parts[],
                         unsigned n_parts, const RunsOf& cut, Against side) {
  const size_t n = symbols.size();
  const auto runs = cut.placed(side);
  uint8_t* const packed = arenas().low.holding(low, side);
  LowBits placed[2];
  for (unsigned p = 0; p < n_parts; ++p) placed[p] = {packed, parts[p].from, parts[p].bits};
  const Output items(arenas().items, size_of(form.container) * n, 0, side);
  kernels.multiply_runs(levels, form.precision, form.container,
                        arenas().symbols.holding(symbols, side), placed, runs.data(), runs.size(),
                        items.data());
  return items.bytes();
}

// Fills parts with those of codes that have so many low bits; returns how many there are.
unsigned random_parts(unsigned low_bits, LowBits parts[2], Random& random) {
  if (low_bits == 0) return 0;
  if (low_bits == 3) {
    parts[0] = {nullptr, 2 * random.below(4), 2};
    parts[1] = {nullptr, random.below(8), 1};
    return 2;
  }
  parts[0] = {nullptr, low_bits * random.below(8 / low_bits), low_bits};
  return 1;
}

// Compares runs of several lengths with the items that are expected.
void test_runs(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
               const Bytes& symbols, const Bytes& low, const LowBits parts[], unsigned n_parts,
               const Floats& scales, const Floats& offsets, const Bytes& expected) {
  if (kernels.least_run == nullptr) return;
  const size_t least = kernels.least_run(levels, form.precision, form.container);
  if (least == kNoRuns) return;
  for (const Against side : kBothSides) {
    for (const size_t most : {size_t{1}, size_t{16}, size_t{67}, size_t{256}}) {
      if (most < least) continue;
      CHECK(multiplied_by_runs(kernels, levels, form, symbols, low, parts, n_parts,
                               RunsOf(scales, offsets, most), side) == expected);
    }
  }
}

// Items of random codes.
Bytes test_multiply(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
                    const Floats& scales, Random& random) {
  const size_t n = scales.size();
  const Bytes symbols = random.bytes(n), low = random.bytes(n);
  LowBits parts[2];
  const unsigned n_parts = random_parts(levels.low_bits, parts, random);
  const Bytes expected = multiplied(kScalarQuantizedKernels, levels, form, symbols, low, parts,
                                    n_parts, scales, Against::front);
  for (const Against side : kBothSides) {
    CHECK(multiplied(kernels, levels, form, symbols, low, parts, n_parts, scales, side) ==
          expected);
  }
  test_runs(kernels, levels, form, symbols, low, parts, n_parts, scales, {}, expected);
  return expected;
}

Floats loaded(const QuantizedKernels& kernels, Container container, const Bytes& items,
              Against side) {
  const size_t n = items.size() / size_of(container);
  const Output values(arenas().values, sizeof(float) * n, 0, side);
  kernels.load(container, arenas().items.holding(items, side), n, values.of<float>());
  return values.values<float>();
}

bool is_same(const Floats& a, const Floats& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

Floats test_load(const QuantizedKernels& kernels, Container container, const Bytes& items) {
  const Floats expected = loaded(kScalarQuantizedKernels, container, items, Against::front);
  for (const Against side : kBothSides) {
    CHECK(is_same(loaded(kernels, container, items, side), expected));
  }
  return expected;
}

struct Quantized {
  bool is_all;
  Bytes symbols, low;
  bool operator==(const Quantized&) const = default;
};

Quantized quantized(const QuantizedKernels& kernels, const Levels& levels, Precision precision,
                    const Floats& values, const Floats& scales, Against side) {
  const size_t n = values.size();
  const Output symbols(arenas().symbols, n, 0, side), low(arenas().low, n, 0, side);
  const bool is_all =
      kernels.quantize(levels, precision, arenas().values.holding(values, side),
                       arenas().scales.holding(scales, side), n, {symbols.data(), low.data()});
  return {is_all, symbols.bytes(), low.bytes()};
}

void test_quantize(const QuantizedKernels& kernels, const Levels& levels, Precision precision,
                   const Floats& values, const Floats& scales) {
  const Quantized expected =
      quantized(kScalarQuantizedKernels, levels, precision, values, scales, Against::front);
  for (const Against side : kBothSides) {
    CHECK(quantized(kernels, levels, precision, values, scales, side) == expected);
  }
}

Bytes multiplied_and_added(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
                           const Bytes& symbols, const Bytes& low, const LowBits parts[],
                           unsigned n_parts, const Floats& scales, const Floats& offsets,
                           Against side) {
  const size_t n = symbols.size();
  uint8_t* const packed = arenas().low.holding(low, side);
  LowBits placed[2];
  for (unsigned p = 0; p < n_parts; ++p) placed[p] = {packed, parts[p].from, parts[p].bits};
  const Output items(arenas().items, size_of(form.container) * n, 0, side);
  kernels.multiply_and_add(levels, form.precision, form.container,
                           arenas().symbols.holding(symbols, side), placed, n_parts,
                           arenas().scales.holding(scales, side),
                           arenas().offsets.holding(offsets, side), n, items.data());
  return items.bytes();
}

// Items of random codes.
Bytes test_multiply_and_add(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
                            const Floats& scales, const Floats& offsets, Random& random) {
  const size_t n = scales.size();
  const Bytes symbols = random.bytes(n), low = random.bytes(n);
  LowBits parts[2];
  const unsigned n_parts = random_parts(levels.low_bits, parts, random);
  const auto of = [&](const QuantizedKernels& tested, Against side) {
    return multiplied_and_added(tested, levels, form, symbols, low, parts, n_parts, scales, offsets,
                                side);
  };
  const Bytes expected = of(kScalarQuantizedKernels, Against::front);
  for (const Against side : kBothSides) CHECK(of(kernels, side) == expected);
  test_runs(kernels, levels, form, symbols, low, parts, n_parts, scales, offsets, expected);
  return expected;
}

Quantized test_quantize_with_offsets(const QuantizedKernels& kernels, const Levels& levels,
                                     Precision precision, const Floats& values,
                                     const Floats& scales, const Floats& offsets) {
  const auto of = [&](const QuantizedKernels& tested, Against side) {
    const size_t n = values.size();
    const Output symbols(arenas().symbols, n, 0, side), low(arenas().low, n, 0, side);
    const bool is_all = tested.quantize_with_offsets(
        levels, precision, arenas().values.holding(values, side),
        arenas().scales.holding(scales, side), arenas().offsets.holding(offsets, side), n,
        {symbols.data(), low.data()});
    return Quantized{is_all, symbols.bytes(), low.bytes()};
  };
  const Quantized expected = of(kScalarQuantizedKernels, Against::front);
  for (const Against side : kBothSides) CHECK(of(kernels, side) == expected);
  return expected;
}

// 0, what makes a level 0, or any number near the levels.
float random_offset(const Levels& levels, float scale, Random& random) {
  const float unit = levels.formula == Formula::difference ? 1 : scale;
  const float level = static_cast<float>(random.below(31)) - 15;
  switch (random.below(4)) {
    case 0:
      return 0;
    case 1:
      return level * unit;
    default:
      return (level + random_scale(random)) * unit;
  }
}

void test_offsets(const QuantizedKernels& kernels, size_t n, Random& random) {
  Levels levels;
  levels.formula = Formula{static_cast<uint8_t>(1 + random.below(3))};
  levels.low_bits = random.below(5);
  const Form form = kForms[random.below(std::size(kForms))];
  Floats scales(n), offsets(n);
  const size_t same = 1 + random.below(40);
  for (size_t i = 0; i < n; ++i) {
    scales[i] = i % same == 0 ? random_scale(random) : scales[i - 1];
    offsets[i] = i % same == 0 ? random_offset(levels, scales[i], random) : offsets[i - 1];
  }
  Bytes items = test_multiply_and_add(kernels, levels, form, scales, offsets, random);
  const auto check = [&] {
    const Floats values = test_load(kernels, form.container, items);
    test_quantize_with_offsets(kernels, levels, form.precision, values, scales, offsets);
  };
  check();
  for (size_t i = random.below(40); i < items.size(); i += 1 + random.below(40)) {
    items[i] = random.byte();
  }
  check();
}

// What is no number, infinite or far away has no code.
void test_offsets_of_strange_values(const QuantizedKernels& kernels) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float strange : {std::nanf(""), kInfinity, -kInfinity, 3e38f, -1e-40f, -0.0f}) {
    for (unsigned formula = 1; formula <= 3; ++formula) {
      Levels levels;
      levels.formula = Formula{static_cast<uint8_t>(formula)};
      for (size_t at = 0; at < 70; ++at) {
        Floats values(70, 0.5f);
        const Floats scales(70, 0.25f), offsets(70, formula == 3 ? 3.0f : -1.0f);
        CHECK(test_quantize_with_offsets(kernels, levels, Precision::binary32, values, scales,
                                         offsets)
                  .is_all);
        values[at] = strange;
        CHECK(!test_quantize_with_offsets(kernels, levels, Precision::binary32, values, scales,
                                          offsets)
                   .is_all);
      }
    }
  }
}

// Codes give items that have these codes.
void test_offsets_there_and_back(const QuantizedKernels& kernels, Formula formula) {
  Levels levels;
  levels.formula = formula;
  constexpr size_t kLevels = 31;  // and -0
  Bytes symbols(kLevels);
  for (size_t i = 0; i < kLevels; ++i) symbols[i] = static_cast<uint8_t>(i + 1);
  for (const float offset : {0.0f, 2.5f, -7.0f}) {
    const Floats scales(kLevels, -0.375f), offsets(kLevels, offset);
    for (const Form& form : kForms) {
      const Bytes items = multiplied_and_added(kernels, levels, form, symbols, symbols, nullptr, 0,
                                               scales, offsets, Against::front);
      const Floats values = loaded(kernels, form.container, items, Against::front);
      for (size_t i = 0; i < kLevels; ++i) {
        const float level = static_cast<float>(i) - 15;
        CHECK(values[i] == (formula == Formula::difference ? (level - offset) * -0.375f
                                                           : level * -0.375f + offset));
      }
      const Quantized found =
          test_quantize_with_offsets(kernels, levels, form.precision, values, scales, offsets);
      CHECK(found.is_all && found.symbols == symbols && found.low == Bytes(kLevels));
    }
  }
}

// --- lines ---------------------------------------------------------------------------------------

// The numbers of a search for lines; those that are no number are all the same one.
class Lines {
 public:
  Lines(const Floats& values, size_t groups, float first)
      : numbers_(kLineNumbers * groups), wrong_(groups) {
    of_.values = values.data();
    of_.length = values.size() / groups, of_.groups = groups, of_.first = first;
    float* next = numbers_.data();
    const auto take = [&](float*& numbers, size_t rows) {
      numbers = next;
      next += rows * groups;
    };
    take(of_.least, 1), take(of_.inverse, 1), take(of_.table, kLineLevels);
    take(of_.low, kLineLevels), take(of_.high, kLineLevels);
    take(of_.scale_low, 1), take(of_.scale_high, 1);
    take(of_.offset_low, 1), take(of_.offset_high, 1), take(of_.scale, 1), take(of_.offset, 1);
    of_.wrong = wrong_.data();
  }

  const LineGroups& of() const { return of_; }
  std::pair<Floats, std::vector<bool>> seen() const {
    std::pair<Floats, std::vector<bool>> seen(numbers_.size(), wrong_.size());
    for (size_t i = 0; i < numbers_.size(); ++i)
      seen.first[i] = std::isnan(numbers_[i]) ? HUGE_VALF : numbers_[i];
    for (size_t g = 0; g < wrong_.size(); ++g) seen.second[g] = wrong_[g] != 0;
    return seen;
  }

 private:
  LineGroups of_ = {};
  Floats numbers_;
  std::vector<uint32_t> wrong_;
};

// Goes through the steps of a search side by side; returns how many groups have a line.
size_t test_steps(const QuantizedKernels& kernels, const Levels& levels, Precision precision,
                  const Floats& values, size_t groups, float first, size_t n_levels) {
  Lines tested(values, groups, first), expected(values, groups, first);
  const auto both = [&](auto&& step) {
    step(kernels, tested.of());
    step(kScalarQuantizedKernels, expected.of());
    CHECK(tested.seen() == expected.seen());
  };
  const Formula formula = levels.formula;
  both([&](const QuantizedKernels& kernel, const LineGroups& of) {
    kernel.find_line_levels(static_cast<float>(n_levels - 1), of);
    kernel.bound_scales(formula, precision, n_levels, of);
    kernel.find_simplest(of.scale_low, of.scale_high, groups, of.scale);
    std::fill_n(of.offset, groups, 0.0f);
  });
  if (formula == Formula::difference) {
    both([&](const QuantizedKernels& kernel, const LineGroups& of) {
      kernel.find_zeros(precision, n_levels, of);
      std::copy_n(of.offset_low, groups, of.offset);
    });
  }
  both([&](const QuantizedKernels& kernel, const LineGroups& of) {
    kernel.bound_lines(formula, precision, n_levels, of);
    const bool is_difference = formula == Formula::difference;
    kernel.find_simplest(is_difference ? of.scale_low : of.offset_low,
                         is_difference ? of.scale_high : of.offset_high, groups,
                         is_difference ? of.scale : of.offset);
    kernel.check_lines(formula, precision, n_levels, of);
  });
  const auto& wrong = expected.seen().second;
  return static_cast<size_t>(std::count(wrong.begin(), wrong.end(), false));
}

// Codes of runs that are lines, and of others.
void test_line_codes(const QuantizedKernels& kernels, const Levels& levels, Precision precision,
                     const Floats& values, size_t length, const Floats& scales,
                     const Floats& offsets) {
  const size_t groups = scales.size(), padded = (length + kRunUnit - 1) / kRunUnit * kRunUnit;
  Floats in_runs, transposed(length * groups), expected(length * groups);
  std::vector<GroupRun> runs;
  for (size_t g = 0; g < groups; ++g) {
    runs.push_back({static_cast<uint32_t>(g), static_cast<uint32_t>(length), in_runs.size()});
    for (size_t i = 0; i < padded; ++i) {
      in_runs.push_back(values[(i < length ? i : 0) * groups + g]);
    }
  }
  kernels.transpose_runs(in_runs.data(), runs.data(), groups, groups, length, transposed.data());
  kScalarQuantizedKernels.transpose_runs(in_runs.data(), runs.data(), groups, groups, length,
                                         expected.data());
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(std::bit_cast<uint32_t>(transposed[i]) == std::bit_cast<uint32_t>(values[i]));
    CHECK(std::bit_cast<uint32_t>(expected[i]) == std::bit_cast<uint32_t>(values[i]));
  }
  const auto codes_of = [&](const QuantizedKernels& kernel) {
    const Lines lines(values, groups, 0);
    kernel.find_line_levels(15, lines.of());
    std::copy_n(scales.data(), groups, lines.of().scale);
    std::copy_n(offsets.data(), groups, lines.of().offset);
    std::vector<uint32_t> codes(in_runs.size());
    kernel.quantize_lines(levels, precision, in_runs.data(), runs.data(), groups, lines.of(),
                          codes.data());
    for (size_t i = 0; i < codes.size(); ++i) codes[i] *= lines.of().wrong[i / padded] == 0;
    return codes;
  };
  CHECK(codes_of(kernels) == codes_of(kScalarQuantizedKernels));
}

// Groups of integers with an offset each, from 0 to 15, or 3, side by side.
void test_lines(const QuantizedKernels& kernels, Random& random) {
  Levels levels;
  levels.formula = Formula{static_cast<uint8_t>(1 + random.below(3))};
  const Form form = kForms[random.below(std::size(kForms))];
  const size_t groups = kRunUnit * (1 + random.below(4)), length = 1 + random.below(70);
  const unsigned n_levels = random.below(3) == 0 ? 4 : 16;
  Floats scales(groups), offsets(groups), of_items, of_offsets;
  for (size_t g = 0; g < groups; ++g) {
    scales[g] = std::fabs(random_scale(random));
    offsets[g] = random_offset(levels, scales[g], random);
  }
  Bytes symbols;
  for (size_t i = 0; i < length * groups; ++i) {
    symbols.push_back(static_cast<uint8_t>(16 + random.below(n_levels)));
    of_items.push_back(scales[i % groups]), of_offsets.push_back(offsets[i % groups]);
  }
  const Bytes items = multiplied_and_added(kernels, levels, form, symbols, symbols, nullptr, 0,
                                           of_items, of_offsets, Against::front);
  Floats values = loaded(kernels, form.container, items, Against::front);
  const size_t found = test_steps(kernels, levels, form.precision, values, groups, 0, n_levels);
  const bool is_easy = form.precision != Precision::binary32 && levels.formula == Formula::sum;
  if (is_easy && length > 60 && n_levels == 4) CHECK(8 * found > groups);
  test_line_codes(kernels, levels, form.precision, values, length, scales, offsets);
  for (size_t i = random.below(40); i < values.size(); i += 1 + random.below(40)) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float strange[] = {random_scale(random), -0.0f, 3e38f, kInfinity, -kInfinity, 1e-40f};
    values[i] = strange[random.below(std::size(strange))];
  }
  test_steps(kernels, levels, form.precision, values, groups, -8, n_levels);
  test_line_codes(kernels, levels, form.precision, values, length, scales, offsets);
}

void test_narrow(const QuantizedKernels& kernels, const Levels& levels, Precision precision,
                 const Floats& values, float scale) {
  for (const float width : {0x1p-22f, 0x1p-9f, 0.25f}) {
    const Interval from{scale * (1 - width), scale * (1 + width)};
    const auto narrowed = [&](const QuantizedKernels& of, Against side) {
      const Interval left =
          of.narrow(levels, precision, arenas().values.holding(values, side), values.size(), from);
      return Floats{left.low, left.high};
    };
    const Floats expected = narrowed(kScalarQuantizedKernels, Against::front);
    for (const Against side : kBothSides) CHECK(is_same(narrowed(kernels, side), expected));
  }
}

void test_magnitudes_of(const QuantizedKernels& kernels, const Floats& values) {
  const Magnitudes expected = kScalarQuantizedKernels.magnitudes(values.data(), values.size());
  for (const Against side : kBothSides) {
    const Magnitudes found =
        kernels.magnitudes(arenas().values.holding(values, side), values.size());
    CHECK(found.most == expected.most && found.zeros == expected.zeros &&
          found.negative_zeros == expected.negative_zeros);
  }
}

void test_fill(const QuantizedKernels& kernels, size_t n) {
  for (const Against side : kBothSides) {
    const Output values(arenas().values, sizeof(float) * n, 0, side);
    kernels.fill(-0.5f, n, values.of<float>());
    CHECK(is_same(values.values<float>(), Floats(n, -0.5f)));
  }
}

// Scales of which some are zeros, and others not of a magnitude from 2^-100 to 2^90.
void test_scales(const QuantizedKernels& kernels, size_t n, Random& random) {
  Bytes planes(4 * n);
  for (size_t i = 0; i < n; ++i) {
    const bool is_zero = random.below(4) == 0;
    for (size_t p = 0; p < 4; ++p) planes[p * n + i] = is_zero ? 0 : random.byte();
    if (is_zero && random.below(4) == 0) planes[3 * n + i] = 1;  // -0
  }
  const auto scales_of = [&](const QuantizedKernels& of, Against side) {
    const uint8_t* const all = arenas().items.holding(planes, side);
    const uint8_t* const placed[] = {all, all + n, all + 2 * n, all + 3 * n};
    const Output scales(arenas().scales, sizeof(float) * n, 0, side);
    const ScaleCounts counts = of.scales(placed, n, {0x1p-100f, 0x1p90f}, scales.of<float>());
    Floats found = scales.values<float>();
    found.push_back(static_cast<float>(counts.zeros));
    found.push_back(static_cast<float>(counts.wrong));
    return found;
  };
  const Floats expected = scales_of(kScalarQuantizedKernels, Against::front);
  for (const Against side : kBothSides) CHECK(is_same(scales_of(kernels, side), expected));
}

// What is found of groups, as bytes.
struct Searched {
  Bytes started, scales, codes, symbols, low;
  bool operator==(const Searched&) const = default;
};

struct Search {
  Levels levels;
  Precision precision;
  GroupedValues of;
  size_t size;  // of all values
  std::vector<Interval> intervals;
  bool is_narrow;
  Guess guess;
};

Searched searched(const QuantizedKernels& kernels, const Search& search) {
  const size_t groups = search.of.groups;
  Bytes memory(kGroupNumbers * sizeof(float) * groups);
  uint8_t* next = memory.data();
  GroupNumbers numbers;
  const auto take = [&]<typename T>(T*& of_groups) {
    of_groups = reinterpret_cast<T*>(next);
    next += sizeof(T) * groups;
  };
  take(numbers.most), take(numbers.least), take(numbers.balance), take(numbers.low);
  take(numbers.high), take(numbers.inverse), take(numbers.spread), take(numbers.scale);
  take(numbers.codes);
  kernels.measure(search.of, numbers);
  kernels.start(groups, search.guess, 0x1p-8f, numbers);
  // The inverses and spreads are left out: they follow from the intervals, and may be any NaN.
  const Bytes started(memory.begin(), memory.begin() + static_cast<ptrdiff_t>(5 * 4 * groups));
  for (size_t g = 0; g < groups; ++g) {
    numbers.low[g] = std::bit_cast<int32_t>(search.intervals[g].low);
    numbers.high[g] = std::bit_cast<int32_t>(search.intervals[g].high);
  }
  std::vector<uint32_t> codes(search.size);
  std::vector<float> levels(search.size);
  kernels.search(search.levels, search.precision, search.of, search.is_narrow, numbers,
                 {codes.data(), levels.data()});
  // A kernel may give any codes to groups without a scale.
  for (size_t r = 0; r < search.of.n_runs; ++r) {
    const GroupRun& run = search.of.runs[r];
    const size_t padded = (run.length + kRunUnit - 1) / kRunUnit * kRunUnit;
    if (numbers.scale[run.group] == 0)
      std::fill_n(codes.begin() + static_cast<ptrdiff_t>(run.offset), padded, 0u);
  }
  for (size_t i = 0; i < search.of.rows * groups; ++i) {
    if (numbers.scale[i % groups] == 0) codes[i] = 0;
  }
  const auto* const scales = reinterpret_cast<const uint8_t*>(numbers.scale);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(codes.data());
  Searched found{started, Bytes(scales, scales + sizeof(float) * groups),
                 Bytes(bytes, bytes + sizeof(uint32_t) * codes.size()), Bytes(codes.size()),
                 Bytes(codes.size())};
  kernels.split_codes(codes.data(), codes.size(), search.levels.low_bits,
                      {found.symbols.data(), found.low.data()});
  return found;
}

// Values in runs of two groups, and in columns, whose scales are in intervals of some widths.
void test_search(const QuantizedKernels& kernels, const Levels& levels, Precision precision,
                 const Floats& values, float scale, Random& random) {
  if (values.empty()) return;
  Floats in_runs;
  std::vector<GroupRun> runs;
  for (size_t i = 0; i < values.size();) {
    const size_t length = std::min<size_t>(1 + random.below(80), values.size() - i);
    runs.push_back({random.below(2), static_cast<uint32_t>(length), in_runs.size()});
    in_runs.insert(in_runs.end(), values.begin() + static_cast<ptrdiff_t>(i),
                   values.begin() + static_cast<ptrdiff_t>(i + length));
    while (in_runs.size() % kRunUnit != 0) in_runs.push_back(values[i]);
    i += length;
  }
  const size_t columns = 1 + random.below(40), rows = values.size() / columns;
  for (const float width : {0x1p-22f, 0x1p-9f, 0x1p-4f}) {
    const std::vector<Interval> intervals(columns + 2, {scale * (1 - width), scale * (1 + width)});
    const bool is_narrow = random.below(2) == 0;
    const Guess guess{random.below(2) == 0, static_cast<float>(1 + random.below(300))};
    for (const Search& search : {Search{levels,
                                        precision,
                                        {in_runs.data(), 2, runs.data(), runs.size(), 0},
                                        in_runs.size(),
                                        intervals,
                                        is_narrow,
                                        guess},
                                 Search{levels,
                                        precision,
                                        {values.data(), columns, nullptr, 0, rows},
                                        columns * rows,
                                        intervals,
                                        is_narrow,
                                        guess}}) {
      CHECK(searched(kernels, search) == searched(kScalarQuantizedKernels, search));
    }
  }
}

// Values of one scale, some of which are then changed: to others, or to what is no number.
void test_values(const QuantizedKernels& kernels, size_t n, Random& random) {
  const auto any_level = [&](unsigned) {
    return (static_cast<float>(random.below(1000)) - 500) / 64;
  };
  const Levels levels = random_levels(random, any_level);
  const Form form = kForms[random.below(std::size(kForms))];
  const float scale = random_scale(random);
  Floats scales(n, scale);
  Bytes items = test_multiply(kernels, levels, form, scales, random);
  const auto check = [&] {
    const Floats values = test_load(kernels, form.container, items);
    test_magnitudes_of(kernels, values);
    if (levels.count <= kMostSearched) {
      test_quantize(kernels, levels, form.precision, values, scales);
      test_narrow(kernels, levels, form.precision, values, std::fabs(scale));
      test_search(kernels, levels, form.precision, values, std::fabs(scale), random);
    }
  };
  check();
  for (size_t i = random.below(40); i < items.size(); i += 1 + random.below(40)) {
    items[i] = random.byte();
  }
  check();
  // Runs of 16 and of a scale for each item are cases of their own.
  const size_t same = random.below(3) == 0 ? 16 : 1 + random.below(100);
  for (size_t i = 0; i < n; ++i) scales[i] = i % same == 0 ? random_scale(random) : scales[i - 1];
  items = test_multiply(kernels, levels, form, scales, random);
  check();
}

}  // namespace

void test_quantized(const Kernels& kernels) {
  const QuantizedKernels& tested = *kernels.quantized;
  Random random(24);
  for (unsigned i = 0; i < 65536; i += 64) {
    Bytes items(128);
    for (unsigned j = 0; j < 64; ++j) {
      items[2 * j] = static_cast<uint8_t>(i + j);
      items[2 * j + 1] = static_cast<uint8_t>((i + j) >> 8);
    }
    test_load(tested, Container::bfloat16, items);
    test_load(tested, Container::float16, items);
  }
  for (size_t n = 0; n < 200; ++n) {
    test_fill(tested, n);
    test_scales(tested, n, random);
    for (unsigned repeat = 0; repeat < 6; ++repeat) test_values(tested, n, random);
    for (unsigned repeat = 0; repeat < 6; ++repeat) test_offsets(tested, n, random);
    for (unsigned repeat = 0; repeat < 6; ++repeat) test_lines(tested, random);
  }
  test_values(tested, 3001, random);
  for (const size_t n : {511u, 512u, 513u, 1024u, 3001u}) test_offsets(tested, n, random);
  test_offsets_of_strange_values(tested);
  for (const Formula formula : {Formula::sum, Formula::rounded_sum, Formula::difference}) {
    test_offsets_there_and_back(tested, formula);
  }
}

}  // namespace bf16codecs::test
