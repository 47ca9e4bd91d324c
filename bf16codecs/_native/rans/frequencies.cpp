#include "rans/frequencies.h"

#include <algorithm>

namespace bf16codecs {
namespace {

// Each squaring of the mantissa doubles the logarithm, and so gives its next bit. The mantissa is
// in [1, 2) with 31 fraction bits: its square is below 2^64, and 2 or more if it reaches 2^32 after
// the shift.
constexpr uint32_t log2_by_squaring(uint32_t x) {
  const unsigned whole = static_cast<unsigned>(std::bit_width(x)) - 1;
  uint64_t mantissa = static_cast<uint64_t>(x) << (31 - whole);  // in [1, 2), 31 fraction bits
  uint32_t result = whole;
  for (unsigned bit = 0; bit < 16; ++bit) {
    mantissa = mantissa * mantissa >> 31;
    const bool carry = mantissa >= uint64_t{1} << 32;
    result = result << 1 | (carry ? 1u : 0u);
    if (carry) mantissa >>= 1;
  }
  return result;
}

constexpr LogTable make_log_table() {
  LogTable table{};
  for (uint32_t x = 1; x < table.size(); ++x) table[x] = log2_by_squaring(x);
  return table;
}

// The cost in 2^-16 bits of a frequency that is one more, or one less; negative if that saves bits.
int64_t step_cost(uint32_t count, uint32_t frequency, int direction) {
  const uint32_t next = frequency + static_cast<uint32_t>(direction);
  return static_cast<int64_t>(count) *
         (static_cast<int64_t>(log2_fixed(frequency)) - static_cast<int64_t>(log2_fixed(next)));
}

}  // namespace

// The compiler computes this table. Encoding a small plane spends half of its time with it, and a
// table that is made at first use would cost a check every time.
constexpr LogTable kLogTable = make_log_table();

void normalize(const uint32_t* counts, size_t n, uint64_t total, unsigned bits,
               uint16_t* frequencies) {
  const int64_t target = int64_t{1} << bits;
  int64_t sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t rounded =
        (static_cast<uint64_t>(counts[i]) * static_cast<uint64_t>(target) + total / 2) / total;
    const uint64_t most = static_cast<uint64_t>(target) - (n - 1);
    frequencies[i] = static_cast<uint16_t>(std::clamp<uint64_t>(rounded, 1, most));
    sum += frequencies[i];
  }
  // The sum of the rounded frequencies may differ from the target. Each round changes one frequency
  // by 1, the one where that costs least.
  for (; sum != target; sum += sum < target ? 1 : -1) {
    const int direction = sum < target ? 1 : -1;
    size_t best = n;
    int64_t best_cost = 0;
    for (size_t i = 0; i < n; ++i) {
      if (direction < 0 && frequencies[i] == 1) continue;
      const int64_t cost = step_cost(counts[i], frequencies[i], direction);
      if (best == n || cost < best_cost) best = i, best_cost = cost;
    }
    frequencies[best] = static_cast<uint16_t>(frequencies[best] + direction);
  }
}

uint64_t entropy_size(std::span<const uint32_t> counts) {
  uint64_t total = 0, known = 0;
  for (const uint32_t count : counts) {
    total += count;  // without a branch for 0, whose logarithm is 0 in the table
    known += static_cast<uint64_t>(count) * log2_fixed(count);
  }
  return total == 0 ? 0 : total * log2_fixed(static_cast<uint32_t>(total)) - known;
}

uint64_t coded_size(const uint32_t* counts, const uint16_t* frequencies, size_t n, unsigned bits) {
  uint64_t size = 0;
  for (size_t i = 0; i < n; ++i) {
    size += counts[i] * static_cast<uint64_t>((bits << 16) - log2_fixed(frequencies[i]));
  }
  return size;
}

}  // namespace bf16codecs
