#pragma once

// Items of 16 bits by runs of one scale, for the instruction sets whose registers have no room for
// the products of 32 levels as words: these look up bytes. quantized_*.cpp includes this behind the
// classes that it needs:
//
//   SymbolProducts     of codes without low bits, for any formula and precision
//   FloatProducts      of floats as bfloat16
//   IntegerProducts    of integers as bfloat16, multiplied; a scale for each item, too
//   MagnitudeProducts  of integers without low bits as bfloat16, by scales that are not 0
//
// Each of them has `kStep`, the number of items at a time, `kParts`, the parts of low bits, and
// start(runs, r), what makes items of a run.

#include "kernels/quantized_levels.h"

namespace bf16codecs {
namespace {

// Calls items(codes, i, out) for n items from item i on: for all steps, and for the last items by
// way of memory that has room for a step.
template <typename Of, typename Items>
BF16CODECS_INLINE void for_steps(const Codes& codes, size_t n, uint8_t* out, Items items) {
  constexpr size_t kStep = Of::kStep;
  size_t i = 0;
  for (; i + kStep <= n; i += kStep) items(codes.from(i), i, out + 2 * i);
  if (i == n) return;
  uint8_t symbols[kStep] = {}, packed[2][kStep] = {}, last[2 * kStep];
  for (size_t k = 0; i + k < n; ++k) {
    symbols[k] = codes.symbols[i + k];
    for (unsigned p = 0; p < Of::kParts; ++p) packed[p][k] = codes.packed[p][i + k];
  }
  items(Codes{symbols, {packed[0], packed[1]}}, i, last);
  for (size_t k = 0; k < 2 * (n - i); ++k) out[2 * i + k] = last[k];
}

template <typename Of>
BF16CODECS_INLINE void multiply_equal(const Of& of, const Codes& codes, const ScaleRuns& runs,
                                      uint8_t* items) {
  for (size_t r = 0; r < runs.count; ++r) {
    const auto of_run = of.start(runs, r);
    for_steps<Of>(codes.from(r * runs.length), runs.length, items + 2 * r * runs.length,
                  [&](const Codes& at, size_t, uint8_t* out) { of_run.items(at, out); });
  }
}

// In groups: runs of one step without an inner loop and, where a step has 32 items, two runs of 16
// at a time.
template <typename Of>
BF16CODECS_INLINE void multiply_grouped(const Of& of, const Codes& codes, const ScaleRuns& runs,
                                        uint8_t* items) {
  if (runs.length == Of::kStep) {
    for (size_t r = 0; r < runs.count; ++r) {
      of.start(runs, r).items(codes.from(Of::kStep * r), items + 2 * Of::kStep * r);
    }
    return;
  }
  if constexpr (Of::kStep == 32) {
    if (runs.length == 16) {
      size_t r = 0;
      for (; r + 2 <= runs.count; r += 2) {
        of.start_two(runs, r).items(codes.from(16 * r), items + 32 * r);
      }
      if (r == runs.count) return;
      const auto last = of.start(runs, r);
      return for_steps<Of>(codes.from(16 * r), 16, items + 32 * r,
                           [&](const Codes& at, size_t, uint8_t* out) { last.items(at, out); });
    }
  }
  multiply_equal(of, codes, runs, items);
}

// Of a scale for each item.
template <typename Of>
BF16CODECS_INLINE void multiply_each(const Of& of, const Codes& codes, const ScaleRuns& runs,
                                     uint8_t* items) {
  size_t i = 0;
  for (; i + Of::kStep <= runs.count; i += Of::kStep) {
    of.items(codes.from(i), Of::load_each(runs, i), items + 2 * i);
  }
  if (i == runs.count) return;
  float scales[Of::kStep] = {}, offsets[Of::kStep] = {};
  for (size_t k = 0; i + k < runs.count; ++k) {
    scales[k] = runs.scales[i + k];
    if (runs.offsets != nullptr) offsets[k] = runs.offsets[i + k];
  }
  const auto last = Of::load_each({scales, offsets, 1, Of::kStep}, 0);
  for_steps<Of>(codes.from(i), runs.count - i, items + 2 * i,
                [&](const Codes& at, size_t, uint8_t* out) { of.items(at, last, out); });
}

// The runs of a call, and their items.
struct Call {
  const ScaleRuns* runs;
  size_t n_runs;
  Codes codes;
  uint8_t* items;

  // Calls multiply(codes, runs, items) for all runs.
  template <typename Multiply>
  BF16CODECS_INLINE void for_runs(Multiply multiply) const {
    size_t at = 0;
    for (size_t i = 0; i < n_runs; ++i) {
      multiply(codes.from(at), runs[i], items + 2 * at);
      at += runs[i].length * runs[i].count;
    }
  }
};

template <typename Of>
void multiply_products(const Of& of, const Call& call) {
  call.for_runs([&](const Codes& codes, const ScaleRuns& runs, uint8_t* items) {
    multiply_equal(of, codes, runs, items);
  });
}

template <Formula kFormula, unsigned kParts>
void multiply_integers(const Levels& levels, const LowBits low[], const Call& call) {
  const IntegerProducts<kFormula, kParts> integers(levels, low);
  call.for_runs([&](const Codes& codes, const ScaleRuns& runs, uint8_t* items) {
    runs.length == 1 ? multiply_each(integers, codes, runs, items)
                     : multiply_grouped(integers, codes, runs, items);
  });
}

// Products as bfloat16. Groups of 32 took 0.10 ns a value when each item was multiplied.
void multiply_magnitudes(const Levels& levels, const LowBits low[], const Call& call) {
  const MagnitudeProducts products;
  const IntegerProducts<Formula::product, 0> integers(levels, low);
  call.for_runs([&](const Codes& codes, const ScaleRuns& runs, uint8_t* items) {
    runs.length == 1 ? multiply_each(integers, codes, runs, items)
                     : multiply_grouped(products, codes, runs, items);
  });
}

// Integers with offsets, as bfloat16. A run's numbers take as long to find as those of 50 items.
template <Formula kFormula>
void multiply_small_integers(const Levels& levels, const LowBits low[], const Call& call) {
  constexpr size_t kLongRun = 64;
  const SymbolProducts<kFormula, Precision::bfloat16, Container::bfloat16> products(levels, low);
  const IntegerProducts<kFormula, 0> integers(levels, low);
  call.for_runs([&](const Codes& codes, const ScaleRuns& runs, uint8_t* items) {
    runs.length == 1         ? multiply_each(integers, codes, runs, items)
    : runs.length < kLongRun ? multiply_grouped(integers, codes, runs, items)
                             : multiply_equal(products, codes, runs, items);
  });
}

size_t least_run(const Levels& levels, Precision precision, Container container) {
  constexpr size_t kOfProducts = 16;
  if (is_converted(precision)) return least_run(levels, Precision::bfloat16, Container::bfloat16);
  if (container == Container::float32) return kNoRuns;
  const bool is_bfloat16 = precision == Precision::bfloat16;
  if (levels.family == Family::integers && is_bfloat16) return 1;
  const bool is_looked_up =
      levels.low_bits == 0 || (levels.family == Family::floats && is_bfloat16);
  return is_looked_up ? kOfProducts : kNoRuns;
}

template <Formula kFormula>
void multiply_symbols(const Levels& levels, const LowBits low[], Precision precision,
                      Container container, const Call& call) {
  const auto multiply = [&]<Precision kPrecision, Container kContainer>() {
    multiply_products(SymbolProducts<kFormula, kPrecision, kContainer>(levels, low), call);
  };
  if (container == Container::float16) {
    multiply.template operator()<Precision::binary16, Container::float16>();
  } else if (precision == Precision::bfloat16) {
    multiply.template operator()<Precision::bfloat16, Container::bfloat16>();
  } else {
    multiply.template operator()<Precision::binary16_bfloat16, Container::bfloat16>();
  }
}

void multiply_runs(const Levels& levels, Precision precision, Container container,
                   const uint8_t* symbols, const LowBits low[], const ScaleRuns* runs,
                   size_t n_runs, uint8_t* items) {
  if (is_converted(precision)) {
    multiply_runs(levels, Precision::bfloat16, Container::bfloat16, symbols, low, runs, n_runs,
                  items);
    return convert_to_binary16(items_of_runs(runs, n_runs), items);
  }
  const unsigned parts = levels.low_bits == 3 ? 2 : levels.low_bits != 0 ? 1 : 0;
  Call call{runs, n_runs, {symbols, {symbols, symbols}}, items};
  for (unsigned p = 0; p < parts; ++p) call.codes.packed[p] = low[p].packed;
  if (levels.family == Family::floats) {
    return parts == 1 ? multiply_products(FloatProducts<1>(levels, low), call)
                      : multiply_products(FloatProducts<2>(levels, low), call);
  }
  with_formula(levels.formula, [&]<Formula kFormula>() {
    if (levels.family != Family::integers || precision != Precision::bfloat16) {
      return multiply_symbols<kFormula>(levels, low, precision, container, call);
    }
    if constexpr (kFormula == Formula::product) {
      if (parts == 0) return multiply_magnitudes(levels, low, call);
    } else {
      if (parts == 0) return multiply_small_integers<kFormula>(levels, low, call);
    }
    return parts == 1 ? multiply_integers<kFormula, 1>(levels, low, call)
                      : multiply_integers<kFormula, 2>(levels, low, call);
  });
}

}  // namespace
}  // namespace bf16codecs
