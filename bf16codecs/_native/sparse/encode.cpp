#include <algorithm>

#include "format/little_endian.h"
#include "histogram.h"
#include "rans/frequencies.h"
#include "scattered.h"
#include "sparse/payload.h"
#include "sparse/sparse.h"

namespace bf16codecs::sparse {
namespace {

// What is looked at of a plane: of 262,144 symbols a 32nd, which is enough to see whether a
// sixteenth of them are zero. All planes are looked at in the same places, so that what they would
// take is compared for the same items: where whole rows are zero, samples differ by more than zeros
// save.
constexpr size_t kSamples = 128, kSampleSymbols = 64;

// By what a plane has to be smaller: 1/32 of it, as other planes are coded for.
constexpr size_t kLeastSaving = 32;

// More exceptions than one of so many items take more than zeros save.
constexpr size_t kItemsPerException = 64;

// Symbols that are packed before exceptions among them are looked for.
constexpr size_t kStrip = 4096;

// Calls function(symbols, length) for each sample of a plane, or for the whole plane if it is
// small; returns the number of symbols.
template <typename Function>
size_t look_at(const uint8_t* plane, size_t n, Function function) {
  if (n <= 2 * kSamples * kSampleSymbols) {
    function(plane, n);
    return n;
  }
  for_each_sample(plane, n, kSamples, kSampleSymbols, function);
  return kSamples * kSampleSymbols;
}

// The size of a plane that is stored, or in a code of its own, by a sample.
size_t size_alone(const uint8_t* plane, size_t n) {
  uint32_t counts[256] = {};
  const size_t counted = look_at(plane, n, [&](const uint8_t* symbols, size_t count) {
    for (size_t i = 0; i < count; ++i) ++counts[symbols[i]];
  });
  return std::min(n, static_cast<size_t>(entropy_size(counts) / counted * n >> 19));
}

// Sums of bytes, of which the compiler makes vectors: std::count() took 18 % of the time of
// encoding 8,192 values.
size_t zeros_among(const uint8_t* symbols, size_t n) {
  constexpr size_t kMost = 128;  // so that a byte has room for the sum
  size_t zeros = 0;
  for (size_t begin = 0; begin < n; begin += kMost) {
    uint8_t sum = 0;
    for (size_t i = begin; i < std::min(n, begin + kMost); ++i) {
      sum = static_cast<uint8_t>(sum + (symbols[i] == 0 ? 1 : 0));
    }
    zeros += sum;
  }
  return zeros;
}

bool is_exception(uint8_t first, uint8_t symbol) {
  return first == 0 && symbol > 1;
}

// Adds the exceptions among n items, the first of which has the number `at`; returns their end.
uint8_t* add_exceptions(const uint8_t* first, const uint8_t* plane, size_t n, size_t at,
                        uint8_t* out) {
  constexpr size_t kGroup = 64;
  for (size_t begin = 0; begin < n; begin += kGroup) {
    const size_t end = std::min(n, begin + kGroup);
    // A loop without branches, of which the compiler makes vectors: nearly all groups have none.
    bool is_any = false;
    for (size_t i = begin; i < end; ++i) is_any |= is_exception(first[i], plane[i]);
    if (!is_any) continue;
    for (size_t i = begin; i < end; ++i) {
      if (!is_exception(first[i], plane[i])) continue;
      store_le(out, static_cast<uint32_t>(at + i));
      out[4] = plane[i];
      out += kException;
    }
  }
  return out;
}

}  // namespace

Encoder::Encoder(const uint8_t* first, size_t n) : first_(first), n_(n) {
  counted_ = look_at(first, n, [&](const uint8_t* symbols, size_t count) {
    zeros_ += zeros_among(symbols, count);
  });
}

size_t Encoder::encode(const uint8_t* plane, uint8_t* out, Scratch& scratch) const {
  const size_t alone = size_alone(plane, n_), saving = n_ / kLeastSaving;
  // Approximately, and without signs.
  const size_t expected = n_ - static_cast<size_t>(uint64_t{n_} * zeros_ / counted_);
  if (alone < expected + saving) return 0;

  const size_t sign_room = n_ / 8 + kSparseMargin, most = n_ / kItemsPerException;
  uint8_t* const signs = scratch.at_least(sign_room + kException * most);
  uint8_t* const exceptions = signs + sign_room;
  std::fill_n(signs, sign_room, uint8_t{0});
  SparseEncoder state{0, 0, out + kHead, signs, 0};
  uint8_t* exceptions_end = exceptions;
  size_t found = 0;
  for (size_t i = 0; i < n_; i += kStrip) {
    const size_t strip = std::min(kStrip, n_ - i);
    const size_t others = kernels().sparse->pack(state, first_ + i, plane + i, strip);
    found += others;
    if (found > most) return 0;
    if (others == 0) continue;
    exceptions_end = add_exceptions(first_ + i, plane + i, strip, i, exceptions_end);
  }
  const size_t sign_bytes = (state.sign + 7) / 8;
  const bool has_signs = std::any_of(signs, signs + sign_bytes, [](uint8_t b) { return b != 0; });
  const size_t size =
      static_cast<size_t>(state.symbols - out) + (has_signs ? sign_bytes : 0) + kException * found;
  if (state.sign == 0 || alone < size + saving) return 0;

  out[kZeroAt] = out[kValueAt] = 0;
  out[kFlagsAt] = has_signs ? kSignFlag : 0;
  store_le(out + kZerosAt, static_cast<uint32_t>(state.sign));
  store_le(out + kExceptionsAt, static_cast<uint32_t>(found));
  uint8_t* const end = std::copy_n(signs, has_signs ? sign_bytes : 0, state.symbols);
  std::copy(exceptions, exceptions_end, end);
  return size;
}

}  // namespace bf16codecs::sparse
