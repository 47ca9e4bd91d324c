// The wide mode (docs/format.md, "rANS plane, wide"): tables, payloads and steps. There are no
// vector kernels for it: it decodes several times slower than the pairs mode.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "format/errors.h"
#include "format/little_endian.h"
#include "rans/frequencies.h"
#include "rans/rans.h"

namespace bf16codecs {
namespace {

constexpr uint32_t kSlots = 1u << kWideBits;
constexpr size_t kBitmapSize = 32;

// The symbols that occur, in ascending order, with their counts and frequencies.
struct Alphabet {
  size_t n = 0;
  uint8_t symbol[256];
  uint32_t count[256];
  uint16_t frequency[256];
};

Alphabet make_alphabet(const uint32_t counts[256]) {
  Alphabet alphabet;
  for (unsigned s = 0; s < 256; ++s) {
    if (counts[s] == 0) continue;
    alphabet.symbol[alphabet.n] = static_cast<uint8_t>(s);
    alphabet.count[alphabet.n++] = counts[s];
  }
  const uint64_t total = std::accumulate(counts, counts + 256, uint64_t{0});
  normalize(alphabet.count, alphabet.n, total, kWideBits, alphabet.frequency);
  return alphabet;
}

size_t head_size(const Alphabet& alphabet, unsigned groups) {
  size_t size = 1 + kBitmapSize + 4 + 4 * kLanesPerGroup * groups;
  for (size_t i = 0; i < alphabet.n; ++i) size += alphabet.frequency[i] > 128 ? 2 : 1;
  return size;
}

uint8_t* write_table(const Alphabet& alphabet, unsigned log2_groups, uint8_t* out) {
  *out++ = static_cast<uint8_t>(log2_groups);
  std::fill_n(out, kBitmapSize, uint8_t{0});
  for (size_t i = 0; i < alphabet.n; ++i) {
    uint8_t& byte = out[alphabet.symbol[i] / 8];
    byte = static_cast<uint8_t>(byte | 1u << alphabet.symbol[i] % 8);
  }
  out += kBitmapSize;
  for (size_t i = 0; i < alphabet.n; ++i) {
    const unsigned less1 = alphabet.frequency[i] - 1u;
    if (less1 >= 128) {
      *out++ = static_cast<uint8_t>(128 + less1 % 128);
      *out++ = static_cast<uint8_t>(less1 / 128);
    } else {
      *out++ = static_cast<uint8_t>(less1);
    }
  }
  return out;
}

struct EncoderSymbol {
  uint32_t frequency, start;
};

// Writes the words of all steps downwards from `words`; returns where they begin. Once there is
// room, a state is below f 2^20, so that the quotient is below 2^20 and the new state below 2^32.
uint8_t* encode_steps(const Alphabet& alphabet, const uint8_t* plane, size_t steps, unsigned groups,
                      uint32_t* x, uint8_t* words) {
  EncoderSymbol table[256] = {};
  uint32_t start = 0;
  for (size_t i = 0; i < alphabet.n; ++i) {
    table[alphabet.symbol[i]] = {alphabet.frequency[i], start};
    start += alphabet.frequency[i];
  }
  for (size_t group = steps * groups; group-- != 0;) {
    const uint8_t* symbols = plane + kLanesPerGroup * group;
    uint32_t* lanes = x + kLanesPerGroup * (group % groups);
    for (unsigned lane = kLanesPerGroup; lane-- != 0;) {
      const EncoderSymbol s = table[symbols[lane_place(lane)]];
      uint32_t state = lanes[lane];
      if (state >> (32 - kWideBits) >= s.frequency) {
        words -= 2;
        store_le(words, static_cast<uint16_t>(state));
        state >>= 16;
      }
      lanes[lane] = (state / s.frequency << kWideBits) + s.start + state % s.frequency;
    }
  }
  return words;
}

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string("wide rANS plane: ") + what);
}

// A slot's decoding step: x = frequency * (x div 4096) + offset, with offset below the frequency.
// As x div 4096 is 16 ... 2^20 - 1, the new x is below 2^32 and at least 16: one word is enough.
struct Slot {
  uint16_t frequency, offset;
};

struct SlotTable {
  Slot slot[kSlots];
  uint8_t symbol[kSlots];
};

// Reads bitmap and frequencies; returns what follows them.
const uint8_t* read_table(const uint8_t* p, const uint8_t* end, SlotTable& table) {
  if (static_cast<size_t>(end - p) < kBitmapSize) corrupt("shorter than its table");
  const uint8_t* const bitmap = p;
  p += kBitmapSize;
  uint32_t start = 0;
  unsigned distinct = 0;
  for (unsigned s = 0; s < 256; ++s) {
    if ((bitmap[s / 8] >> s % 8 & 1) == 0) continue;
    ++distinct;
    if (p == end) corrupt("shorter than its table");
    uint32_t frequency = *p++ + 1u;
    if (frequency > 128) {
      if (p == end) corrupt("shorter than its table");
      frequency = frequency - 128 + 128u * *p++;
      if (frequency <= 128) corrupt("a frequency in two bytes that fits in one");
    }
    if (frequency > kSlots - start) corrupt("frequencies of more than 4096 in all");
    for (uint32_t i = 0; i < frequency; ++i) {
      table.slot[start + i] = {static_cast<uint16_t>(frequency), static_cast<uint16_t>(i)};
      table.symbol[start + i] = static_cast<uint8_t>(s);
    }
    start += frequency;
  }
  if (start != kSlots || distinct < 2) corrupt("frequencies that do not sum to 4096");
  return p;
}

struct Words {
  const uint8_t* next;
  const uint8_t* end;
};

void decode_lanes(const SlotTable& table, uint32_t* x, uint8_t* symbols) {
  for (unsigned lane = 0; lane < kLanesPerGroup; ++lane) {
    const uint32_t slot = x[lane] % kSlots;
    symbols[lane_place(lane)] = table.symbol[slot];
    x[lane] = table.slot[slot].frequency * (x[lane] / kSlots) + table.slot[slot].offset;
  }
}

// Gives the next words to the lanes below 2^16, without branches. It loads a word for each lane,
// used or not, and so up to one word past the last that it uses.
void renormalize(uint32_t* x, unsigned lanes, Words& words) {
  for (unsigned lane = 0; lane < lanes; ++lane) {
    const bool low = x[lane] < kLowestState;
    const uint32_t refilled = x[lane] << 16 | load_le<uint16_t>(words.next);
    x[lane] = low ? refilled : x[lane];
    words.next += low ? 2 : 0;
  }
}

// Does the same for the last steps, where there may be fewer words than lanes.
void renormalize_last(uint32_t* x, unsigned lanes, Words& words) {
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if (x[lane] >= kLowestState) continue;
    if (words.next == words.end) corrupt("more words used than it has");
    x[lane] = x[lane] << 16 | load_le<uint16_t>(words.next);
    words.next += 2;
  }
}

}  // namespace

size_t wide_encode(const uint8_t* plane, size_t n, const uint32_t counts[256], uint8_t* out,
                   size_t capacity, Scratch& scratch) {
  const Alphabet alphabet = make_alphabet(counts);
  const unsigned log2_groups = groups_log2(n), groups = 1u << log2_groups;
  const unsigned lanes = kLanesPerGroup * groups;
  const size_t steps = n / lanes, rest = n % lanes;

  uint8_t* const words_end = scratch.at_least(2 * n) + 2 * n;  // a symbol gives at most one word
  uint32_t x[kMaxLanes];
  std::fill_n(x, lanes, kLowestState);
  const uint8_t* const words = encode_steps(alphabet, plane, steps, groups, x, words_end);

  const size_t word_bytes = static_cast<size_t>(words_end - words);
  const size_t size = head_size(alphabet, groups) + word_bytes + rest;
  if (size > capacity) return 0;
  uint8_t* p = write_table(alphabet, log2_groups, out);
  store_le(p, static_cast<uint32_t>(word_bytes / 2));
  p += 4;
  for (unsigned lane = 0; lane < lanes; ++lane, p += 4) store_le(p, x[lane]);
  p = std::copy_n(words, word_bytes, p);
  std::copy_n(plane + n - rest, rest, p);
  return size;
}

void wide_decode(const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
  const uint8_t* const end = payload + size;
  if (size < 1 || payload[0] > 2) corrupt("an unknown head");
  const unsigned lanes = kLanesPerGroup << payload[0];
  const size_t steps = n / lanes, rest = n % lanes;
  SlotTable table;
  const uint8_t* p = read_table(payload + 1, end, table);

  if (static_cast<size_t>(end - p) < 4 + 4 * lanes + rest) corrupt("shorter than its head");
  const uint64_t word_count = load_le<uint32_t>(p);
  p += 4;
  uint32_t x[kMaxLanes];
  for (unsigned lane = 0; lane < lanes; ++lane, p += 4) {
    x[lane] = load_le<uint32_t>(p);
    if (x[lane] < kLowestState) corrupt("a state below 65536");
  }
  if (static_cast<size_t>(end - p) != 2 * word_count + rest) corrupt("a wrong number of words");

  Words words{p, end - rest};
  for (size_t step = 0; step < steps; ++step, plane += lanes) {
    for (unsigned lane = 0; lane < lanes; lane += kLanesPerGroup) {
      decode_lanes(table, x + lane, plane + lane);
    }
    // A word for each lane, and the one past the last that is used.
    if (static_cast<size_t>(words.end - words.next) >= 2 * lanes + 2) {
      renormalize(x, lanes, words);
    } else {
      renormalize_last(x, lanes, words);
    }
  }
  std::copy_n(end - rest, rest, plane);
  if (words.next != words.end) corrupt("words left over");
  if (!std::all_of(x, x + lanes, [](uint32_t state) { return state == kLowestState; })) {
    corrupt("a last state other than 65536");
  }
}

}  // namespace bf16codecs
