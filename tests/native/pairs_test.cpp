// pairs_decode, pairs_decode16 and pairs_encode against the scalar ones: on what encoders write,
// on noise, on states at the edges of the encoder's divisions, and where words or escapes end.

#include <algorithm>
#include <cstring>

#include "check.h"
#include "kernels_test.h"
#include "pairs_tables.h"
#include "states.h"

namespace bf16codecs::test {
namespace {

constexpr size_t kMaxSteps = 48;
constexpr size_t kMost = 2 * kPairSymbols * kMaxGroups * kMaxSteps + kWordMargin;

struct Arenas {
  Arena words{kMost}, escapes{kMost}, plane{kMost}, low{kMost};
};

Arenas& arenas() {
  static Arenas all;
  return all;
}

States lowest_states() {
  States states;
  std::fill_n(states.x, kMaxLanes, 1u << 16);
  return states;
}

struct Encoded {
  Bytes words, escapes;
  States states;
  bool operator==(const Encoded&) const = default;
};

Encoded encode(const Kernels& kernels, const PairsEncoder& start, const States& states,
               const Bytes& plane, Against side) {
  PairsEncoder e = start;
  const size_t steps = plane.size() / (kPairSymbols * e.groups);
  std::copy_n(states.x, kMaxLanes, e.x);
  uint8_t* const words_end =
      arenas().words.room(kEncodeMargin + plane.size(), side) + kEncodeMargin + plane.size();
  uint8_t* const escapes_end = arenas().escapes.room(plane.size(), side) + plane.size();
  e.words = words_end, e.escapes = escapes_end;
  kernels.pairs_encode(e, arenas().plane.holding(plane, side), steps);
  Encoded result{{e.words, words_end}, {e.escapes, escapes_end}, {}};
  std::copy_n(e.x, kLanesPerGroup * e.groups, result.states.x);
  std::fill(result.states.x + kLanesPerGroup * e.groups, result.states.x + kMaxLanes, 0u);
  return result;
}

// Encodes with both, compares, and returns what they gave.
Encoded encode_alike(const Kernels& kernels, const PairsEncoder& e, const States& states,
                     const Bytes& plane) {
  const Encoded expected = encode(kScalarKernels, e, states, plane, Against::back);
  for (const Against side : kBothSides) {
    CHECK(encode(kernels, e, states, plane, side) == expected);
  }
  return expected;
}

struct Decoded {
  size_t steps_left, words, escapes;
  bool escapes_overrun;
  States states;
  Bytes out;
  bool operator==(const Decoded&) const = default;
};

struct Source {
  const PairsTable* table;
  unsigned groups;
  States states;
  Bytes words, escapes;  // words with kWordMargin after the limit
  ptrdiff_t limit;       // offset in words
};

// Decodes a plane, or 16-bit items if there is a low plane.
Decoded decode(const Kernels& kernels, const Source& source, size_t steps, const Bytes* low,
               Against side) {
  const uint8_t* const words = arenas().words.holding(source.words, side);
  const uint8_t* const escapes = arenas().escapes.holding(source.escapes, side);
  PairsDecoder d{
      source.table, source.groups, words, escapes, escapes + source.escapes.size(), false, {}};
  std::copy_n(source.states.x, kMaxLanes, d.x);
  const size_t symbols = steps * kPairSymbols * source.groups;
  const size_t size = low == nullptr ? symbols : 2 * symbols;
  uint8_t* const out = arenas().plane.room(size, side);
  std::fill_n(out, size, uint8_t{0xA5});
  const uint8_t* const limit = words + source.limit;
  Decoded result;
  if (low == nullptr) {
    result.steps_left = kernels.pairs_decode(d, limit, out, steps);
  } else {
    result.steps_left =
        kernels.pairs_decode16(d, limit, arenas().low.holding(*low, side), out, steps);
  }
  result.words = static_cast<size_t>(d.words - words);
  result.escapes = static_cast<size_t>(d.escapes - escapes);
  result.escapes_overrun = d.escapes_overrun;
  std::copy_n(d.x, kMaxLanes, result.states.x);
  result.out.assign(out, out + size);
  return result;
}

Decoded decode_alike(const Kernels& kernels, const Source& source, size_t steps, Random& random) {
  const Bytes low = random.bytes(steps * kPairSymbols * source.groups);
  const Decoded plane = decode(kScalarKernels, source, steps, nullptr, Against::back);
  const Decoded items = decode(kScalarKernels, source, steps, &low, Against::back);
  for (const Against side : kBothSides) {
    CHECK(decode(kernels, source, steps, nullptr, side) == plane);
    CHECK(decode(kernels, source, steps, &low, side) == items);
  }
  return plane;
}

uint8_t escaped_symbol(const Entries& entries, Random& random) {
  for (;;) {
    const uint8_t s = random.byte();
    if (!entries.has(s)) return s;
  }
}

// A symbol by its entry.
uint8_t symbol_of(const Entries& entries, unsigned i, Random& random) {
  return i < entries.named() ? entries.symbol[i] : escaped_symbol(entries, random);
}

enum class Content { by_frequency, any_entry, rarest, most_frequent };
constexpr Content kContents[] = {Content::by_frequency, Content::any_entry, Content::rarest,
                                 Content::most_frequent};

Bytes random_plane(const Entries& entries, size_t n, Content content, Random& random) {
  const unsigned* const f = entries.frequency;
  const auto rarest = static_cast<unsigned>(std::min_element(f, f + entries.n) - f);
  const auto most = static_cast<unsigned>(std::max_element(f, f + entries.n) - f);
  Bytes plane(n);
  for (uint8_t& s : plane) {
    unsigned i = content == Content::rarest ? rarest : most;
    if (content == Content::any_entry) i = random.below(entries.n);
    if (content == Content::by_frequency) {
      const unsigned slot = random.below(256);
      for (i = entries.n - 1; entries.start[i] > slot;) --i;
    }
    s = symbol_of(entries, i, random);
  }
  return plane;
}

// What was encoded comes back; also if the words end on the way, where a caller moves the rest.
void test_round_trip(const Kernels& kernels, const Entries& entries, unsigned groups, size_t steps,
                     Content content, Random& random) {
  const PairsTable table = decoder_table(entries, random);
  const Bytes plane = random_plane(entries, steps * kPairSymbols * groups, content, random);
  const Encoded encoded =
      encode_alike(kernels, encoder_for(entries, groups), lowest_states(), plane);
  Source source{&table,        groups,          encoded.states,
                encoded.words, encoded.escapes, static_cast<ptrdiff_t>(encoded.words.size())};
  const Bytes margin = random.bytes(kWordMargin);
  source.words.insert(source.words.end(), margin.begin(), margin.end());
  const Decoded whole = decode_alike(kernels, source, steps, random);
  CHECK(whole.steps_left == 0 && !whole.escapes_overrun && whole.out == plane);
  CHECK(whole.words == encoded.words.size() && whole.escapes == encoded.escapes.size());
  CHECK(std::equal(whole.states.x, whole.states.x + kLanesPerGroup * groups, lowest_states().x));

  if (encoded.words.empty()) return;
  Source cut = source;
  cut.limit = static_cast<ptrdiff_t>(2 * random.below(encoded.words.size() / 2));
  cut.words.resize(static_cast<size_t>(cut.limit) + kWordMargin);
  const Decoded first = decode_alike(kernels, cut, steps, random);
  const size_t done = (steps - first.steps_left) * kPairSymbols * groups;
  CHECK(std::equal(plane.begin(), plane.begin() + static_cast<ptrdiff_t>(done), first.out.begin()));
  source.states = first.states;
  source.words.erase(source.words.begin(),
                     source.words.begin() + static_cast<ptrdiff_t>(first.words));
  source.escapes.erase(source.escapes.begin(),
                       source.escapes.begin() + static_cast<ptrdiff_t>(first.escapes));
  source.limit -= static_cast<ptrdiff_t>(first.words);
  const Decoded second = decode_alike(kernels, source, first.steps_left, random);
  CHECK(second.steps_left == 0);
  CHECK(std::equal(second.out.begin(), second.out.end(),
                   plane.begin() + static_cast<ptrdiff_t>(done)));
}

// Noise as words, states and escapes; the escapes may be too few.
void test_noise(const Kernels& kernels, const Entries& entries, unsigned groups, size_t steps,
                Random& random) {
  const PairsTable table = decoder_table(entries, random);
  const size_t symbols = steps * kPairSymbols * groups;
  const size_t limit = 2 * random.below(symbols / 2 + 1);
  Source source{&table,
                groups,
                random_states(random),
                random.bytes(limit + kWordMargin),
                random.bytes(random.below(symbols / 4 + 1)),
                static_cast<ptrdiff_t>(limit)};
  decode_alike(kernels, source, steps, random);
  source.escapes.clear();
  decode_alike(kernels, source, steps, random);
}

// States around the multiples of each product of frequencies, halfway between them, where quotients
// are rounded up or down, and around where a word is emitted.
void test_divisions(const Kernels& kernels, const Entries& entries, Random& random) {
  const PairsEncoder encoder = encoder_for(entries, 1);
  const Bytes plane = random_plane(entries, kPairSymbols, Content::any_entry, random);
  States states = random_states(random);
  for (unsigned lane = 0; lane < kLanesPerGroup; ++lane) {
    const unsigned p = lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
    const auto frequency = [&](uint8_t s) {
      const uint8_t i = encoder.entry_of[s];
      return entries.frequency[i];
    };
    const uint64_t f = uint64_t{frequency(plane[p])} * frequency(plane[p + 32]);
    // The largest quotient that needs no word is 2^16 - 1.
    const uint64_t q = random.below(2) == 0 ? 0x10000 - random.below(4) : random.below(0x10000);
    const uint64_t x = q * f + (random.below(2) == 0 ? 0 : f / 2) + random.below(3) - 1;
    if (x >= 1u << 16 && x <= UINT32_MAX) states.x[lane] = static_cast<uint32_t>(x);
  }
  encode_alike(kernels, encoder, states, plane);
}

void test_entries(const Kernels& kernels, const Entries& entries, Random& random) {
  for (const unsigned groups : {1u, 2u, 4u}) {
    for (const size_t steps : {size_t{0}, size_t{1}, size_t{2}, size_t{7}}) {
      for (const Content content : kContents) {
        test_round_trip(kernels, entries, groups, steps, content, random);
      }
      test_noise(kernels, entries, groups, steps, random);
    }
  }
  for (unsigned i = 0; i < 50; ++i) test_divisions(kernels, entries, random);
}

}  // namespace

void test_pairs(const Kernels& kernels) {
  Random random(2);
  for (unsigned n = 2; n <= 16; ++n) {
    for (const bool has_escape : {false, true}) {
      for (const Symbols symbols : {Symbols::window, Symbols::anywhere}) {
        test_entries(kernels, random_entries(n, has_escape, symbols, random), random);
      }
      if (n != 2 && n != 16) continue;
      // All entries but one are in the last bucket; or in the first, where two alone may be.
      test_entries(kernels, lopsided_entries(n, has_escape, true, random), random);
      if (n == 2) test_entries(kernels, lopsided_entries(n, has_escape, false, random), random);
    }
  }
  const Entries entries = random_entries(16, true, Symbols::window, random);
  for (const unsigned groups : {1u, 2u, 4u}) {
    test_round_trip(kernels, entries, groups, kMaxSteps, Content::by_frequency, random);
    test_noise(kernels, entries, groups, kMaxSteps, random);
  }
}

}  // namespace bf16codecs::test
