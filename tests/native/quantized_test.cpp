// Kernels::quantized against the scalar ones: all levels, roundings and containers, with values on
// and off a grid, and numbers that are none.

#include <bit>
#include <cmath>

#include "check.h"
#include "kernels_test.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kMost = size_t{1} << 14;

struct Arenas {
  Arena symbols{kMost}, low{kMost}, scales{4 * kMost}, items{4 * kMost}, values{4 * kMost};
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
    {Precision::binary16, Container::float16},  {Precision::binary32, Container::float32},
    {Precision::binary16, Container::float32},  {Precision::bfloat16, Container::float32},
};

size_t size_of(Container container) {
  return container == Container::float32 ? 4 : 2;
}

Levels random_levels(Random& random) {
  Levels levels;
  levels.family = Family{static_cast<uint8_t>(random.below(3))};
  switch (levels.family) {
    case Family::integers:
      levels.low_bits = random.below(5);
      break;
    case Family::floats:
      levels.low_bits = 1 + random.below(4);
      levels.bias = static_cast<int>(random.below(16));
      break;
    case Family::table:
      levels.count = 2 + random.below(kMostLevels - 1);
      for (unsigned i = 0; i < levels.count; ++i) {
        levels.table[i] = (static_cast<float>(random.below(1000)) - 500) / 64;
      }
  }
  return levels;
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

// The same by runs of equal scales, some of them cut.
Bytes multiplied_by_runs(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
                         const Bytes& symbols, const Bytes& low, const LowBits parts[],
                         unsigned n_parts, const Floats& scales, Against side) {
  const size_t n = symbols.size();
  std::vector<ScaleRun> runs;
  for (const float scale : scales) {
    const bool is_cut = runs.empty() || runs.back().scale != scale || runs.back().length == 67;
    if (is_cut) runs.push_back({scale, 0});
    ++runs.back().length;
  }
  uint8_t* const packed = arenas().low.holding(low, side);
  LowBits placed[2];
  for (unsigned p = 0; p < n_parts; ++p) placed[p] = {packed, parts[p].from, parts[p].bits};
  const Output items(arenas().items, size_of(form.container) * n, 0, side);
  kernels.multiply_runs(levels, form.precision, form.container,
                        arenas().symbols.holding(symbols, side), placed, runs.data(), runs.size(),
                        items.data());
  return items.bytes();
}

// Items of random codes.
Bytes test_multiply(const QuantizedKernels& kernels, const Levels& levels, const Form& form,
                    const Floats& scales, Random& random) {
  const size_t n = scales.size();
  const Bytes symbols = random.bytes(n), low = random.bytes(n);
  LowBits parts[2];
  unsigned n_parts = 0;
  if (levels.low_bits == 3) {
    parts[n_parts++] = {nullptr, 2 * random.below(4), 2};
    parts[n_parts++] = {nullptr, random.below(8), 1};
  } else if (levels.low_bits != 0) {
    parts[n_parts++] = {nullptr, levels.low_bits * random.below(8 / levels.low_bits),
                        levels.low_bits};
  }
  const Bytes expected = multiplied(kScalarQuantizedKernels, levels, form, symbols, low, parts,
                                    n_parts, scales, Against::front);
  for (const Against side : kBothSides) {
    CHECK(multiplied(kernels, levels, form, symbols, low, parts, n_parts, scales, side) ==
          expected);
    if (kernels.takes_runs == nullptr) continue;
    if (!kernels.takes_runs(levels, form.precision, form.container)) continue;
    CHECK(multiplied_by_runs(kernels, levels, form, symbols, low, parts, n_parts, scales, side) ==
          expected);
  }
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

// What is found of groups, as bytes.
struct Searched {
  Bytes started, numbers, codes, symbols, low;
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
  const Bytes started = memory;
  for (size_t g = 0; g < groups; ++g) {
    numbers.low[g] = std::bit_cast<int32_t>(search.intervals[g].low);
    numbers.high[g] = std::bit_cast<int32_t>(search.intervals[g].high);
  }
  std::vector<uint32_t> codes(search.size);
  std::vector<float> levels(search.size);
  kernels.search(search.levels, search.precision, search.of, search.is_narrow, numbers,
                 {codes.data(), levels.data()});
  const auto* const bytes = reinterpret_cast<const uint8_t*>(codes.data());
  Searched found{started, memory, Bytes(bytes, bytes + sizeof(uint32_t) * codes.size()),
                 Bytes(codes.size()), Bytes(codes.size())};
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
  const Levels levels = random_levels(random);
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
  const size_t same = 1 + random.below(40);
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
    for (unsigned repeat = 0; repeat < 6; ++repeat) test_values(tested, n, random);
  }
  test_values(tested, 3001, random);
}

}  // namespace bf16codecs::test
