#include "delta_models.h"

namespace bf16codecs::test {
namespace {

uint8_t up_to(unsigned most, Random& random) {
  return static_cast<uint8_t>(random.below(most + 1));
}

// Frequencies of powers of two: 4096 in random halves, each with an entry that may have so few.
// Without weights where one has none.
delta::ClassCode powers_code(Random& random) {
  delta::ClassCode code{up_to(kMaxDeltaRaw, random), {}};
  std::vector<unsigned> exponents = {11, 11};
  for (unsigned halves = random.below(kDeltaEntries - 1); halves != 0; --halves) {
    unsigned& half = exponents[random.below(exponents.size())];
    if (half == 0) continue;
    exponents.push_back(--half);
  }
  for (size_t i = 0; i < exponents.size(); ++i) {
    unsigned j = i == 0 ? kDeltaEscape : random.below(kDeltaEscape), tries = kDeltaEntries;
    const auto fits = [&] {
      return code.weights[j] == 0 &&
             delta::frequency_unit(delta::raw_bits(code, j)) <= 1u << exponents[i];
    };
    for (; !fits() && tries != 0; --tries) j = (j + 1) % kDeltaEscape;
    if (tries == 0) return {};
    code.weights[j] = static_cast<uint8_t>(1 + 8 * exponents[i]);
  }
  return code;
}

delta::ClassCode any_code(DeltaSpread spread, Random& random) {
  if (spread == DeltaSpread::powers) return powers_code(random);
  delta::ClassCode code{up_to(kMaxDeltaRaw, random), {}};
  const unsigned largest =
      spread == DeltaSpread::escape ? kDeltaEscape : random.below(kDeltaEscape);
  const unsigned slope = 1 + random.below(6);
  for (unsigned j = 0; j < kDeltaEntries; ++j) {
    uint8_t& g = code.weights[j];
    switch (spread) {
      case DeltaSpread::any:
        g = up_to(delta::kMaxWeight, random);
        break;
      case DeltaSpread::falling:
        g = static_cast<uint8_t>(delta::kMaxWeight - slope * j);
        break;
      case DeltaSpread::few:
        g = random.below(4) == 0 ? up_to(delta::kMaxWeight, random) : 0;
        break;
      default:
        g = j == largest ? delta::kMaxWeight : up_to(1, random);
    }
  }
  if (code.weights[kDeltaEscape] == 0) code.weights[kDeltaEscape] = 1;
  return code;
}

}  // namespace

delta::ClassCode random_code(DeltaSpread spread, Random& random) {
  for (;;) {
    const delta::ClassCode code = any_code(spread, random);
    delta::Frequencies frequencies;
    if (delta::make_frequencies(code, frequencies)) return code;
  }
}

uint16_t DeltaModel::number_of(unsigned c, unsigned entry, Random& random) const {
  const unsigned r = tables().raw[c];
  if (entry == kDeltaEscape) {
    const unsigned first = (kMaxDeltaValue + 1) << r;
    return static_cast<uint16_t>(first + random.below(65536 - first));
  }
  const unsigned raw = random.below(1u << (kDeltaBits[entry] + r));
  return static_cast<uint16_t>((unsigned{kDeltaBase[entry]} << r) + raw);
}

uint16_t DeltaModel::likely_number(unsigned c, Random& random) const {
  const uint16_t* const start = tables().start + kDeltaEntries * c;
  const unsigned a = random.below(delta::kTotal);
  unsigned entry = kDeltaEscape;
  while (start[entry] > a) --entry;
  return number_of(c, entry, random);
}

uint16_t DeltaModel::any_number(unsigned c, Random& random) const {
  return number_of(c, random.below(kDeltaEntries), random);
}

DeltaModel random_delta_model(unsigned classes, DeltaSpread spread, Random& random) {
  std::vector<delta::ClassCode> codes;
  while (codes.size() < classes) codes.push_back(random_code(spread, random));
  return DeltaModel(codes);
}

}  // namespace bf16codecs::test
