// The pairs mode (docs/format.md, "rANS plane, pairs"): the choice of entries, payloads, and tables
// for the kernels, which do the steps.

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

constexpr unsigned kPairBits = 8;
constexpr unsigned kSlots = 1u << kPairBits;
constexpr unsigned kMaxEntries = 16;
constexpr unsigned kBucket = 16;  // slots in a bucket
constexpr uint8_t kNoEscape = 255;
constexpr uint8_t kEscapeFlag = 0x40;

// Whether the entries keep the rule by which one threshold a bucket finds the entry of any slot: in
// each bucket but the last, at most one entry begins after the first slot.
bool fits_buckets(const PairsEntries& entries) {
  unsigned begins[kSlots / kBucket] = {};
  unsigned start = 0;
  for (unsigned i = 0; i < entries.n; ++i) {
    if (start % kBucket != 0) ++begins[start / kBucket];
    start += entries.frequency[i];
  }
  return std::all_of(begins, begins + kSlots / kBucket - 1, [](unsigned b) { return b <= 1; });
}

// Finds an order of the entries that keeps the rule: an entry that begins inside of a bucket must
// reach the bucket's end. In the order of their frequencies they often break it, because all rare
// ones are together; this search puts some of them between frequent ones. The escape stays last. On
// matrices with row and column scales, a fifth of the blocks had no table without it
// (docs/design_codecs.md, "Two symbols in one step").
class Arrangement {
 public:
  explicit Arrangement(const PairsEntries& entries)
      : entries_(entries), named_(entries.n - (entries.has_escape ? 1 : 0)) {}

  bool find() { return place(0, 0); }

  PairsEntries arranged() const {
    PairsEntries result = entries_;
    for (unsigned i = 0; i < named_; ++i) {
      result.frequency[i] = entries_.frequency[order_[i]];
      result.symbol[i] = entries_.symbol[order_[i]];
    }
    return result;
  }

 private:
  static bool may_begin(unsigned slot, unsigned frequency) {
    const unsigned inside = slot % kBucket;
    return inside == 0 || slot >= kSlots - kBucket || frequency >= kBucket - inside;
  }

  bool place(unsigned placed, unsigned slot) {
    if (placed == named_) {
      return !entries_.has_escape || may_begin(slot, entries_.frequency[named_]);
    }
    if (tries_ == 0) return false;
    --tries_;
    // The least frequent entry that may begin here, so that no rare ones are left for the end.
    for (unsigned i = named_; i-- != 0;) {
      if ((used_ >> i & 1) != 0 || !may_begin(slot, entries_.frequency[i])) continue;
      used_ |= 1u << i;
      order_[placed] = i;
      if (place(placed + 1, slot + entries_.frequency[i])) return true;
      used_ &= ~(1u << i);
    }
    return false;
  }

  const PairsEntries& entries_;
  unsigned named_;
  unsigned used_ = 0,
           tries_ = 1000;  // a bit for each entry that is placed; steps of the search left
  unsigned order_[kMaxEntries] = {};
};

// Entries for the `kept` most frequent symbols, and an escape if there are others. An escaped
// symbol costs 8 bits beside the escape's entry.
PairsChoice entries_for(const uint32_t counts[256], const uint8_t by_count[256], unsigned kept,
                        uint64_t total, bool force_escape) {
  PairsChoice choice;
  PairsEntries& entries = choice.entries;
  uint32_t entry_counts[kMaxEntries];
  uint64_t others = total;
  for (unsigned i = 0; i < kept; ++i) {
    entries.symbol[i] = by_count[i];
    entry_counts[i] = counts[by_count[i]];
    others -= entry_counts[i];
  }
  entries.n = kept;
  entries.has_escape = force_escape || others != 0;
  if (entries.has_escape) {
    entry_counts[entries.n++] = static_cast<uint32_t>(std::max<uint64_t>(others, 1));
  }
  if (entries.n < 2) return choice;
  normalize(entry_counts, entries.n, total, kPairBits, entries.frequency);
  choice.size =
      coded_size(entry_counts, entries.frequency, entries.n, kPairBits) + (others * 8 << 16);
  return choice;
}

size_t head_size(const PairsEntries& entries, unsigned groups) {
  return 1 + 2 * entries.n + 4 + 4 * kLanesPerGroup * groups;
}

uint8_t* write_table(const PairsEntries& entries, unsigned log2_groups, uint8_t* out) {
  *out++ = static_cast<uint8_t>((entries.n - 1) | log2_groups << 4 |
                                (entries.has_escape ? kEscapeFlag : 0u));
  for (unsigned i = 0; i < entries.n; ++i) *out++ = static_cast<uint8_t>(entries.frequency[i]);
  return std::copy_n(entries.symbol, entries.n, out);
}

void prepare_encoder(const PairsEntries& entries, unsigned groups, PairsEncoder& e) {
  e.groups = groups;
  e.escape = entries.has_escape ? static_cast<uint8_t>(entries.n - 1) : kNoEscape;
  e.rows = 0;
  std::fill_n(e.entry_of, 256, e.escape);
  uint32_t start = 0;
  for (unsigned i = 0; i < kMaxEntries; ++i) {
    const uint32_t frequency = i < entries.n ? entries.frequency[i] : 1;
    e.entry[i] = frequency | start << 16;
    e.reciprocal[i] = 1.0f / static_cast<float>(frequency) * (1.0f - kReciprocalBias);
    start += frequency;
    if (i >= entries.n || i == e.escape) continue;
    e.entry_of[entries.symbol[i]] = static_cast<uint8_t>(i);
    e.rows = static_cast<uint16_t>(e.rows | 1u << entries.symbol[i] / 16);
  }
  std::fill_n(e.x, kLanesPerGroup * groups, kLowestState);
}

void repeat16(const uint8_t values[kMaxEntries], uint8_t table[64]) {
  for (unsigned i = 0; i < 64; i += kMaxEntries) std::copy_n(values, kMaxEntries, table + i);
}

void fill_buckets(const uint8_t slot_entry[kSlots], PairsTable& table) {
  uint8_t base[kMaxEntries], threshold[kMaxEntries];
  for (unsigned bucket = 0; bucket < kMaxEntries; ++bucket) {
    const uint8_t* slots = slot_entry + kBucket * bucket;
    const unsigned same = static_cast<unsigned>(
        std::find_if(slots, slots + kBucket, [&](uint8_t e) { return e != slots[0]; }) - slots);
    base[bucket] = slots[0];
    // Where the whole bucket belongs to one entry, no slot may reach the threshold. Only the last
    // slot would reach 255, and the last bucket does not use its threshold.
    threshold[bucket] = static_cast<uint8_t>(same < kBucket ? kBucket * bucket + same : kSlots - 1);
  }
  repeat16(base, table.base);
  repeat16(threshold, table.threshold);
  repeat16(slot_entry + kSlots - kBucket, table.last);
}

void build_table(const PairsEntries& entries, PairsTable& table) {
  uint8_t frequency[kMaxEntries] = {}, start[kMaxEntries] = {};
  unsigned slot = 0;
  for (unsigned i = 0; i < entries.n; ++i) {
    frequency[i] = static_cast<uint8_t>(entries.frequency[i]);
    start[i] = static_cast<uint8_t>(slot);
    std::fill_n(table.slot_entry + slot, entries.frequency[i], static_cast<uint8_t>(i));
    slot += entries.frequency[i];
  }
  fill_buckets(table.slot_entry, table);
  repeat16(frequency, table.frequency);
  repeat16(start, table.start);
  repeat16(entries.symbol, table.symbol);
  table.escape = entries.has_escape ? static_cast<uint8_t>(entries.n - 1) : kNoEscape;
}

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string("rANS plane: ") + what);
}

PairsEntries read_entries(const uint8_t* payload, size_t size) {
  PairsEntries entries;
  entries.n = (payload[0] & 15u) + 1;
  entries.has_escape = (payload[0] & kEscapeFlag) != 0;
  if (entries.n < 2) corrupt("a table of one entry");
  if (size < 1 + 2 * entries.n) corrupt("shorter than its table");
  const uint8_t* frequencies = payload + 1;
  std::copy_n(frequencies, entries.n, entries.frequency);
  std::copy_n(frequencies + entries.n, entries.n, entries.symbol);
  if (std::count(frequencies, frequencies + entries.n, uint8_t{0}) != 0) {
    corrupt("a frequency of 0");
  }
  if (std::accumulate(frequencies, frequencies + entries.n, 0u) != kSlots) {
    corrupt("frequencies that do not sum to 256");
  }
  const unsigned named = entries.n - (entries.has_escape ? 1 : 0);
  if (entries.has_escape && entries.symbol[named] != 0) corrupt("an escape with a symbol");
  for (unsigned i = 0; i < named; ++i) {
    if (std::count(entries.symbol, entries.symbol + named, entries.symbol[i]) != 1) {
      corrupt("a symbol with two entries");
    }
  }
  if (!fits_buckets(entries)) corrupt("two entries that begin inside one bucket");
  return entries;
}

}  // namespace

unsigned groups_log2(size_t n) {
  return n < size_t{1} << 15 ? 0 : n < size_t{1} << 17 ? 1 : 2;
}

PairsChoice choose_pairs(const uint32_t counts[256], bool is_sample) {
  uint8_t by_count[256];
  unsigned distinct = 0;
  uint64_t total = 0;
  for (unsigned s = 0; s < 256; ++s) {
    by_count[distinct] = static_cast<uint8_t>(s);
    distinct += counts[s] != 0 ? 1 : 0;
    total += counts[s];
  }
  std::partial_sort(
      by_count, by_count + std::min(distinct, kMaxEntries), by_count + distinct,
      [&](uint8_t a, uint8_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  const unsigned most = distinct > kMaxEntries || is_sample ? kMaxEntries - 1 : kMaxEntries;
  PairsChoice best;
  for (unsigned kept = 1; kept <= std::min(distinct, most); ++kept) {
    PairsChoice choice = entries_for(counts, by_count, kept, total, is_sample);
    if (choice.size >= best.size) continue;
    if (!fits_buckets(choice.entries)) {
      Arrangement arrangement(choice.entries);
      if (!arrangement.find()) continue;
      choice.entries = arrangement.arranged();
    }
    best = choice;
  }
  return best;
}

bool has_good_pairs(const uint32_t counts[256]) {
  const PairsChoice pairs = choose_pairs(counts, false);
  const uint64_t counted = std::accumulate(counts, counts + 256, uint64_t{0});
  return pairs.size != UINT64_MAX &&
         pairs.size <= entropy_size({counts, 256}) + kWideSaving * counted;
}

size_t pairs_encode(const uint8_t* plane, size_t n, const PairsEntries& entries,
                    unsigned log2_groups, uint8_t* out, size_t capacity, Scratch& words) {
  const unsigned groups = 1u << log2_groups;
  const size_t step = kPairSymbols * groups, steps = n / step, rest = n % step;

  // Two symbols give at most one word, 2 bytes, and each symbol at most one escape: n bytes for
  // either.
  uint8_t* const words_end = words.at_least(kEncodeMargin + 2 * n) + kEncodeMargin + n;
  uint8_t* const escapes_end = words_end + n;

  PairsEncoder e;
  prepare_encoder(entries, groups, e);
  e.words = words_end;
  e.escapes = escapes_end;
  kernels().pairs_encode(e, plane, steps);

  const size_t word_bytes = static_cast<size_t>(words_end - e.words);
  const size_t escapes = static_cast<size_t>(escapes_end - e.escapes);
  const size_t size = head_size(entries, groups) + word_bytes + escapes + rest;
  if (size > capacity) return 0;

  uint8_t* p = write_table(entries, log2_groups, out);
  store_le(p, static_cast<uint32_t>(word_bytes / 2));
  p += 4;
  for (unsigned lane = 0; lane < kLanesPerGroup * groups; ++lane, p += 4) store_le(p, e.x[lane]);
  p = std::copy_n(e.words, word_bytes, p);
  p = std::copy_n(e.escapes, escapes, p);
  std::copy_n(plane + n - rest, rest, p);
  return size;
}

PairsReader::PairsReader(const uint8_t* payload, size_t size, size_t n) {
  if (size < 1 || (payload[0] & 0x80) != 0 || (payload[0] >> 4 & 3) > 2) {
    corrupt("an unknown head");
  }
  const PairsEntries entries = read_entries(payload, size);
  build_table(entries, table_);
  state_.table = &table_;
  state_.groups = 1u << (payload[0] >> 4 & 3);
  steps_ = n / step_symbols();
  remainder_size_ = n % step_symbols();

  const size_t head = head_size(entries, state_.groups);
  if (size < head + remainder_size_) corrupt("shorter than its head");
  const unsigned lanes = kLanesPerGroup * state_.groups;
  const uint8_t* states = payload + head - 4 * lanes;
  const size_t words = load_le<uint32_t>(states - 4);
  if (words > (size - head - remainder_size_) / 2) corrupt("fewer words than it states");
  for (unsigned lane = 0; lane < lanes; ++lane) {
    state_.x[lane] = load_le<uint32_t>(states + 4 * lane);
    if (state_.x[lane] < kLowestState) corrupt("a state below 65536");
  }
  const uint8_t* const end = payload + size;
  state_.words = payload + head;
  words_end_ = state_.words + 2 * words;
  remainder_ = end - remainder_size_;
  state_.escapes = words_end_;
  state_.escapes_end = remainder_;
  state_.escapes_overrun = false;
  if (static_cast<size_t>(end - state_.words) < kWordMargin) {
    enter_tail();
  } else {
    limit_ = std::min<const uint8_t*>(words_end_, end - kWordMargin);
  }
}

// Moves the words that are left into a buffer with a margin after them.
//
// A kernel stops with steps left when its words are past limit_, the smaller one of words_end_ and
// kWordMargin bytes before the payload's end. If they are past words_end_, the data are damaged.
// Otherwise less than a margin is left of the payload, and so of the words, which fit into tail_.
// There, limit_ is the words' end: a step that begins at or before it reads at most a margin more,
// which is in tail_ too. A kernel that uses more words than there are stops after that step, and
// run() or finish() throws.
void PairsReader::enter_tail() {
  in_tail_ = true;
  if (state_.words > words_end_) corrupt("more words used than it has");
  const size_t left = static_cast<size_t>(words_end_ - state_.words);
  std::memset(tail_, 0, sizeof tail_);
  std::copy_n(state_.words, left, tail_);
  state_.words = tail_;
  words_end_ = limit_ = tail_ + left;
}

// Calls kernel(steps, done), which returns the steps left: on the payload, and then on the tail.
template <typename Run>
void PairsReader::run(size_t steps, Run kernel) {
  size_t left = kernel(steps, size_t{0});
  if (left != 0 && !in_tail_) {
    enter_tail();
    left = kernel(left, steps - left);
  }
  if (left != 0) corrupt("more words used than it has");
}

void PairsReader::decode(uint8_t* plane, size_t steps) {
  run(steps, [&](size_t left, size_t done) {
    return kernels().pairs_decode(state_, limit_, plane + done * step_symbols(), left);
  });
}

void PairsReader::decode16(const uint8_t* low, uint8_t* items, size_t steps) {
  run(steps, [&](size_t left, size_t done) {
    const size_t symbols = done * step_symbols();
    return kernels().pairs_decode16(state_, limit_, low + symbols, items + 2 * symbols, left);
  });
}

void PairsReader::finish() const {
  const unsigned lanes = kLanesPerGroup * state_.groups;
  if (state_.words != words_end_) corrupt("words left over");
  if (state_.escapes != state_.escapes_end || state_.escapes_overrun) {
    corrupt("escapes left over or missing");
  }
  if (!std::all_of(state_.x, state_.x + lanes, [](uint32_t x) { return x == kLowestState; })) {
    corrupt("a last state other than 65536");
  }
}

}  // namespace bf16codecs
