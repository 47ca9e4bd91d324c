// The portable kernels of sparse planes: the definition. Which item is a zero is as good as random,
// so that nothing here branches on it: mispredicted branches took ten times as long. Symbols are
// selected by masks, since compilers make branches of conditions.

#include "kernels/sparse.h"

namespace bf16codecs {
namespace {

template <bool kHasSigns>
void expand_symbols(SparseDecoder& d, const uint8_t* first, size_t n, uint8_t* plane) {
  const uint8_t zero = d.zero, value = d.value, *const signs = d.signs, *symbols = d.symbols;
  size_t sign = d.sign;
  for (size_t i = 0; i < n; ++i) {
    const unsigned is_zero = first[i] == zero, mask = 0 - is_zero;
    unsigned of_zero = value;
    if constexpr (kHasSigns) {
      of_zero |= static_cast<unsigned>(signs[sign / 8] >> (sign % 8)) & 1;
      sign += is_zero;
    }
    plane[i] = static_cast<uint8_t>((of_zero & mask) | (*symbols & ~mask));
    symbols += 1 - is_zero;
  }
  d.symbols = symbols;
  d.sign = sign;
}

void expand(SparseDecoder& d, const uint8_t* first, size_t n, uint8_t* plane) {
  return d.has_signs ? expand_symbols<true>(d, first, n, plane)
                     : expand_symbols<false>(d, first, n, plane);
}

size_t pack(SparseEncoder& e, const uint8_t* first, const uint8_t* plane, size_t n) {
  const uint8_t zero = e.zero, value = e.value;
  uint8_t *symbols = e.symbols, *const signs = e.signs;
  size_t sign = e.sign, others = 0;
  for (size_t i = 0; i < n; ++i) {
    const unsigned is_zero = first[i] == zero;
    const unsigned difference = static_cast<unsigned>(plane[i] ^ value);
    *symbols = plane[i];
    symbols += 1 - is_zero;
    const unsigned bit = is_zero & static_cast<unsigned>(difference == 1);
    signs[sign / 8] = static_cast<uint8_t>(signs[sign / 8] | bit << sign % 8);
    sign += is_zero;
    others += is_zero & static_cast<unsigned>(difference > 1);
  }
  e.symbols = symbols;
  e.sign = sign;
  return others;
}

}  // namespace

const SparseKernels kScalarSparseKernels = {.expand = expand, .pack = pack};

}  // namespace bf16codecs
