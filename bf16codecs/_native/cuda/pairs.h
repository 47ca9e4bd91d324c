#pragma once

// The pairs mode (docs/format.md, "rANS plane, pairs").

#include "cuda/lanes.h"
#include "cuda/strips.h"
#include "cuda/warp.h"
#include "cuda/window.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kPairSlots = 256;
inline constexpr unsigned kPairBucket = 16;  // slots

// A slot: byte 0 is its entry's frequency, byte 1 its rank in the entry, byte 2 the symbol; the
// highest bit is set for an escape.
inline constexpr unsigned kRankAt = 8, kSymbolAt = 16;
inline constexpr uint32_t kIsEscape = 1u << 31;

struct PairsMemory {
  Shared<4 * kPairSlots> slots;
  Window::Memory words;
  SharedStates::Memory states;  // unless the states are in registers
};

// The parts of a payload, checked to lie within it.
struct PairsPayload {
  unsigned entries, groups;
  bool has_escape;
  const uint8_t *states, *words, *escapes, *rest, *end;
  unsigned steps, rest_size;
};

// Finds the parts of a payload of n symbols; returns false if it is invalid.
BF16CODECS_DEVICE bool find_parts(const Warp& warp, const uint8_t* payload, uint32_t size,
                                  uint32_t n, PairsPayload& parts) {
  if (size < 1) return false;
  const unsigned head = warp.same(payload[0]), log2_groups = head >> 4 & 3;
  if ((head & 0x80) != 0 || log2_groups > 2) return false;
  parts.entries = (head & 15) + 1;
  parts.has_escape = (head & 0x40) != 0;
  parts.groups = 1u << log2_groups;
  if (parts.entries < 2) return false;
  parts.steps = n / (kPairSymbols * parts.groups);
  parts.rest_size = n % (kPairSymbols * parts.groups);
  const unsigned table = 1 + 2 * parts.entries;
  const unsigned before = table + 4 + 4 * kLanesPerGroup * parts.groups;
  if (size < before + parts.rest_size) return false;
  const uint32_t words = warp.same(load_any<uint32_t>(payload + table));
  if (words > (size - before - parts.rest_size) / 2) return false;
  parts.states = payload + table + 4;
  parts.words = payload + before;
  parts.escapes = parts.words + 2 * words;
  parts.end = payload + size;
  parts.rest = parts.end - parts.rest_size;
  return true;
}

// Expands the table into slots; thread i has entry i. Returns false if the table is invalid.
BF16CODECS_DEVICE bool read_slots(const Warp& warp, const PairsPayload& parts,
                                  const uint8_t* payload, Shared<4 * kPairSlots>& slots) {
  const unsigned named = parts.entries - (parts.has_escape ? 1 : 0);
  PerThread<uint32_t> frequency, symbol;
  warp.each([&](unsigned t) {
    const bool is_entry = t < parts.entries;
    frequency[t] = is_entry ? payload[1 + t] : 0;
    symbol[t] = is_entry ? payload[1 + parts.entries + t] : 0;
  });
  uint32_t total;
  const PerThread<uint32_t> start = warp.sums_before(frequency, total);
  uint32_t bad = warp.ballot([&](unsigned t) { return t < parts.entries && frequency[t] == 0; });
  if (total != kPairSlots || bad != 0) return false;
  if (parts.has_escape && warp.of(symbol, named) != 0) return false;
  for (unsigned i = 0; i < parts.entries; ++i) {
    const uint32_t other = warp.of(symbol, i), begin = warp.of(start, i);
    bad |= warp.ballot([&](unsigned t) {
      if (t >= i) return false;  // each pair once
      const bool both_inside = start[t] % kPairBucket != 0 && begin % kPairBucket != 0;
      const uint32_t bucket = begin / kPairBucket;
      return (i < named && symbol[t] == other) ||
             (both_inside && start[t] / kPairBucket == bucket &&
              bucket != kPairSlots / kPairBucket - 1);
    });
    const uint32_t f = warp.of(frequency, i);
    const uint32_t what = f | other << kSymbolAt | (i < named ? 0 : kIsEscape);
    warp.each([&](unsigned t) {
      for (uint32_t rank = t; rank < f; rank += kThreads) {
        slots.store(4 * (begin + rank), what | rank << kRankAt);
      }
    });
  }
  warp.sync();
  return bad == 0;
}

// 64 consecutive symbols of a plane: thread t has symbols 2 t and 2 t + 1 in bytes 0 and 1; the
// highest bits of bytes 2 and 3 are set for escapes.
using Symbols = PerThread<uint32_t>;
inline constexpr uint32_t kEvenEscape = 1u << 23, kOddEscape = 1u << 31;

template <typename States>
class PairsReader {
 public:
  BF16CODECS_DEVICE PairsReader(const Warp& warp, PairsMemory& memory, const States& states,
                                const PairsPayload& parts)
      : warp_(warp),
        slots_(memory.slots),
        parts_(parts),
        escape_(parts.escapes),
        lanes_(warp, memory.words, states, parts.words, parts.rest) {}

  // Decodes all steps. Calls prepare(at, n) before each step of n symbols, and put(at, symbols) for
  // each 64 symbols, `at` being the index of the first. Returns whether the payload is valid.
  template <typename Prepare, typename Put>
  BF16CODECS_DEVICE bool run(Prepare prepare, Put put) {
    constexpr unsigned kTogether = States::kUnrolled;
    if (!lanes_.read_states(parts_.states)) return false;
    const unsigned groups = lanes_.states.groups();
    for (unsigned step = 0; step < parts_.steps; ++step) {
      const unsigned at = kPairSymbols * groups * step;
      lanes_.prepare(groups);
      prepare(at, kPairSymbols * groups);
      for (unsigned first = 0; first < groups; first += kTogether) {
        Symbols symbols[kTogether];
        BF16CODECS_UNROLLED
        for (unsigned i = 0; i < kTogether; ++i) symbols[i] = decode(first + i);
        if (parts_.has_escape) replace_escapes(symbols);
        BF16CODECS_UNROLLED
        for (unsigned i = 0; i < kTogether; ++i) put(at + kPairSymbols * (first + i), symbols[i]);
      }
      BF16CODECS_UNROLLED_BY(kTogether)
      for (unsigned g = 0; g < groups; ++g) lanes_.renormalize(g);
    }
    return !overrun_ && escape_ == parts_.rest &&
           lanes_.is_finished(static_cast<uint32_t>(parts_.escapes - parts_.words));
  }

 private:
  BF16CODECS_DEVICE Symbols decode(unsigned g) {
    Symbols decoded;
    warp_.each([&](unsigned t) {
      const uint32_t x = lanes_.states.get(g, t);
      const auto a = slots_.template load<uint32_t>(4 * (x & 255));
      const auto b = slots_.template load<uint32_t>(4 * (x >> 8 & 255));
      // The frequency of b times the upper half of x, plus the rank.
      const uint32_t of_b = dot_product(pick_bytes(x, 1, 0x5432), b);
      lanes_.states.set(g, t, (a & 255) * of_b + pick_bytes(a, 0, 0x4441));
      decoded[t] = pick_bytes(a, b, 0x7632);
    });
    // Lanes 0-15 already have the symbols 2 t of the group's 64 as their first, and lanes 16-31 the
    // symbols 2 t + 1 as their second. The symbols that they lack are 16 lanes away.
    const Symbols other = warp_.shuffle(decoded, [](unsigned t) { return t ^ 16; });
    Symbols symbols;
    warp_.each([&](unsigned t) {
      symbols[t] = pick_bytes(decoded[t], other[t], t < 16 ? 0x5140 : 0x3726);
    });
    return symbols;
  }

  template <unsigned n>
  BF16CODECS_DEVICE void replace_escapes(Symbols (&symbols)[n]) {
    const uint32_t any = warp_.ballot([&](unsigned t) {
      uint32_t all = 0;
      BF16CODECS_UNROLLED
      for (unsigned i = 0; i < n; ++i) all |= symbols[i][t];
      return (all & (kEvenEscape | kOddEscape)) != 0;
    });
    if (any == 0) return;
    BF16CODECS_UNROLLED
    for (unsigned i = 0; i < n; ++i) replace_escapes(symbols[i]);
  }

  BF16CODECS_DEVICE void replace_escapes(Symbols& symbols) {
    const uint32_t even = warp_.ballot([&](unsigned t) { return (symbols[t] & kEvenEscape) != 0; });
    const uint32_t odd = warp_.ballot([&](unsigned t) { return (symbols[t] & kOddEscape) != 0; });
    const auto left = static_cast<unsigned>(parts_.rest - escape_);
    warp_.each([&](unsigned t) {
      const uint32_t before = threads_before(t), is_even = even >> t & 1;
      const unsigned at = count_bits(even & before) + count_bits(odd & before);
      if (is_even != 0) symbols[t] = pick_bytes(symbols[t], escape_at(at, left), 0x3214);
      if ((odd >> t & 1) != 0) {
        symbols[t] = pick_bytes(symbols[t], escape_at(at + is_even, left), 0x3240);
      }
    });
    const unsigned n = count_bits(even) + count_bits(odd);
    overrun_ |= n > left;
    escape_ += least(n, left);
  }

  BF16CODECS_DEVICE uint32_t escape_at(unsigned at, unsigned left) const {
    return at < left ? load_any<uint8_t>(escape_ + at) : 0;
  }

  const Warp& warp_;
  Shared<4 * kPairSlots>& slots_;
  const PairsPayload parts_;
  const uint8_t* escape_;  // the next escape
  bool overrun_ = false;
  Lanes<States> lanes_;
};

// Decodes a payload to a plane of n symbols; returns false if it is invalid.
BF16CODECS_DEVICE bool decode_pairs(const Warp& warp, PairsMemory& memory, const uint8_t* payload,
                                    uint32_t size, uint8_t* plane, uint32_t n) {
  PairsPayload parts;
  if (!find_parts(warp, payload, size, n, parts)) return false;
  if (!read_slots(warp, parts, payload, memory.slots)) return false;
  const bool is_even = reinterpret_cast<uintptr_t>(plane) % 2 == 0;
  PairsReader reader(warp, memory, SharedStates(memory.states, parts.groups), parts);
  const auto nothing = [](unsigned, unsigned) {};
  const bool is_sound = reader.run(nothing, [&](unsigned at, const Symbols& symbols) {
    warp.each([&](unsigned t) {
      uint8_t* const out = plane + at + 2 * t;
      const uint32_t both = symbols[t];
      if (is_even) {
        store_aligned(out, static_cast<uint16_t>(both));
      } else {
        out[0] = static_cast<uint8_t>(both);
        out[1] = static_cast<uint8_t>(both >> 8);
      }
    });
  });
  uint8_t* const rest = plane + (n - parts.rest_size);
  warp.each([&](unsigned t) {
    for (unsigned i = t; i < parts.rest_size; i += kThreads) rest[i] = parts.rest[i];
  });
  return is_sound;
}

}  // namespace bf16codecs::cuda
