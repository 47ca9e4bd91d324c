#pragma once

// The usual block of differences, in one pass: 16-bit items that are coded whole, in the order of
// floating-point numbers, by four groups of lanes.

#include "cuda/delta.h"
#include "cuda/strips.h"
#include "cuda/two_planes.h"
#include "cuda/window.h"

namespace bf16codecs::cuda {

// An entry of a class: byte 0 is q, bits 8-19 are the frequency, and bits 20-31 the first slot.
// Entries that no slot has, behind all others, are kNoEntry.
inline constexpr unsigned kFrequencyAt = 8, kStartAt = 20;
inline constexpr uint32_t kNoEntry = ~0u;
// In the numbers of escapes, above the bits of an item.
inline constexpr uint32_t kDeltaEscaped = 1u << 31;

inline constexpr unsigned kDeltaItems = kMaxGroups * kThreads;  // of a step
inline constexpr unsigned kClassBytes = 4 * kDeltaEntries;      // of the entries of a class

struct FusedDeltaMemory {
  Shared<kDeltaClasses * kClassBytes> entries;
  Shared<kDeltaClasses * kClassBytes> numbers;  // the least number of each entry
  Shared<2 * kDeltaPlaces> class_at;            // where the entries of a place's class begin
  Window::Memory words, bases;
  RowMemory<kDeltaItems> rows;
  Shared<kStripBytes> strip;
};

BF16CODECS_DEVICE void load_tables(const Warp& warp, const Section& section,
                                   FusedDeltaMemory& memory) {
  warp.each([&](unsigned t) {
    for (unsigned i = t; i < kDeltaClasses * kDeltaEntries; i += kThreads) {
      const uint32_t start = section.start[i], q = section.coder[i] >> 12;
      const uint32_t frequency = section.coder[i] & 4095;
      const uint32_t entry = start << kStartAt | frequency << kFrequencyAt | q;
      memory.entries.store(4 * i, start < kDeltaSlots ? entry : kNoEntry);
      const unsigned e = i % kDeltaEntries;
      const uint32_t number = unsigned{kDeltaBase[e]} << section.raw[i / kDeltaEntries];
      memory.numbers.store(4 * i, number | (e == kDeltaEscape ? kDeltaEscaped : 0));
    }
    for (unsigned i = t; i < kDeltaPlaces; i += kThreads) {
      memory.class_at.store(2 * i, static_cast<uint16_t>(kClassBytes * section.class_of[i]));
    }
  });
  warp.sync();
}

class FusedDelta {
 public:
  BF16CODECS_DEVICE FusedDelta(const Warp& warp, FusedDeltaMemory& memory, const Job& job,
                               const Section& section, const DeltaPayload& parts)
      : warp_(warp),
        memory_(memory),
        checks_base_((job.flags & kJobBaseChecked) != 0),
        shape_(warp, section),
        parts_(parts),
        scales_(warp, memory.rows, section, parts.rows, parts.rows_size, job.first),
        lanes_(warp, memory.words, RegisterStates<kGroups>(), parts.words, parts.end),
        bases_(warp, memory.bases, bytes_at(job.base), bytes_at(job.base) + 2 * job.n),
        base_sum_(warp),
        strips_(warp, memory.strip, reinterpret_cast<uint8_t*>(job.items)),
        escape_(parts.escapes) {
    read_short_states(warp, parts, lanes_.states);
  }

  BF16CODECS_DEVICE Verdict run(const Job& job) {
    for (uint32_t first = 0; first < parts_.coded; first += kDeltaItems) step(first);
    const unsigned rest = job.n - parts_.coded;
    const bool is_other_base = checks_base_ && base_checksum(job) != job.base_checksum;
    pass_rest(2 * rest);  // perhaps to where the base is
    const bool is_finished = lanes_.is_finished(static_cast<uint32_t>(parts_.end - parts_.words));
    const bool is_sound =
        scales_.finish(rest) && is_finished && !overrun_ && escape_ == parts_.rest;
    if (is_other_base) return Verdict::other_base;
    if (!is_sound) return Verdict::corrupt;
    if ((job.flags & kJobChecked) == 0) return Verdict::done;
    return strips_.checksum() == job.checksum ? Verdict::done : Verdict::corrupt;
  }

 private:
  static constexpr unsigned kGroups = kMaxGroups;
  static constexpr int kMagnitude = 0x7FFF;

  BF16CODECS_DEVICE void step(uint32_t first) {
    lanes_.prepare(kGroups);
    bases_.reach(bases_.begin() + 2 * first, 2 * kDeltaItems);
    const unsigned base_at = (bases_.begin() + 2 * first) % Window::kBytes;
    if (checks_base_) {
      BF16CODECS_UNROLLED
      for (unsigned i = 0; i < 2 * kDeltaItems; i += kStripeBytes) add_base(base_at + i);
    }
    scales_.next_step();
    PerThread<int> scales[kGroups];
    BF16CODECS_UNROLLED
    for (unsigned g = 0; g < kGroups; ++g) {
      scales[g] = scales_.next(kThreads * g, [](unsigned t) { return lane_place(t); });
    }
    PerThread<uint32_t> items[kGroups];
    BF16CODECS_UNROLLED
    for (unsigned g = 0; g < kGroups; ++g) {
      items[g] = decode(g, base_at + 2 * kThreads * g, scales[g]);
    }
    replace_escapes(items);
    BF16CODECS_UNROLLED
    for (unsigned g = 0; g < kGroups; ++g) lanes_.renormalize(g);
    BF16CODECS_UNROLLED
    for (unsigned g = 0; g < kGroups; g += 2) pass(items[g], items[g + 1]);
  }

  // Decodes the items of a group, in bits 0-15; the highest bit is set for escapes.
  BF16CODECS_DEVICE PerThread<uint32_t> decode(unsigned g, unsigned base_at,
                                               const PerThread<int>& scales) {
    PerThread<int> bases;
    PerThread<uint32_t> numbers, items;
    const uint32_t near = warp_.ballot([&](unsigned t) {
      bases[t] = static_cast<int16_t>(bases_.load16(base_at + 2 * lane_place(t)));
      const unsigned class_at = find_class(bases[t], scales[t]);
      numbers[t] = decode_number(g, t, class_at);
      items[t] = far_item(bases[t], numbers[t]);
      return class_at >= kClassBytes * shape_.near;
    });
    if (near != 0) {
      warp_.each([&](unsigned t) {
        const uint32_t is_near = 0 - (near >> t & 1);  // a branch would part the threads
        items[t] = pick_by(is_near, near_item(bases[t], numbers[t], scales[t]), items[t]);
      });
    }
    warp_.each([&](unsigned t) { items[t] = (items[t] & 0xFFFF) | (numbers[t] & kDeltaEscaped); });
    return items;
  }

  // Returns where the entries of an item's class begin.
  BF16CODECS_DEVICE unsigned find_class(int base, int scale) const {
    const int exponent = (base & kMagnitude) >> (shape_.fraction - 1);
    const int place = (scale + shape_.origin - 16 * exponent) >> shape_.shift;
    return memory_.class_at.load<uint16_t>(2 *
                                           clamp(place, 0, static_cast<int>(shape_.places) - 1));
  }

  // Decodes the number of thread t in a group, less than 2^15; for escapes, it is any with
  // kDeltaEscaped.
  BF16CODECS_DEVICE uint32_t decode_number(unsigned g, unsigned t, unsigned class_at) {
    const uint32_t x = lanes_.states.get(g, t);
    const uint32_t wanted = (x << kStartAt) + ((1u << kStartAt) - 2);  // below kNoEntry
    unsigned at = class_at;
    BF16CODECS_UNROLLED
    for (unsigned half = kClassBytes / 2; half >= 4; half /= 2) {
      if (memory_.entries.load<uint32_t>(at + half) <= wanted) at += half;
    }
    const auto entry = memory_.entries.load<uint32_t>(at);
    const uint32_t frequency = entry >> kFrequencyAt & 4095;
    const uint32_t state = frequency * (x / kDeltaSlots) + x % kDeltaSlots - (entry >> kStartAt);
    const uint32_t left = pick_bits(state, 0, entry);  // state >> q
    lanes_.states.set(g, t, left);
    return memory_.numbers.load<uint32_t>(at) + state - shift_left(0, left, entry);
  }

  // The formulas of DeltaItem for 16 bits, all of them coded, whose base is extended by its sign.
  // Bits of the result above these are undefined.
  BF16CODECS_DEVICE static uint32_t far_item(int base, uint32_t z) {
    const int sign = base >> 15;
    const uint32_t d = z >> 1 ^ (0 - (z & 1)) ^ static_cast<uint32_t>(sign);
    const uint32_t ordered =
        static_cast<uint32_t>(base ^ (sign & kMagnitude)) + d - static_cast<uint32_t>(sign);
    const int sign_after = static_cast<int16_t>(ordered) >> 15;
    return ordered ^ static_cast<uint32_t>(sign_after & kMagnitude);
  }
  BF16CODECS_DEVICE uint32_t near_item(int base, uint32_t number, int scale) const {
    const unsigned r = shape_.near_raw;
    const int magnitude = base & kMagnitude;
    const uint32_t y = number >> (r + 1) << r | (number & ((1u << r) - 1));
    const int of_scale = scale >> 4 << (shape_.fraction - 1) & 0xFFFF;
    const int anchor = magnitude < of_scale ? of_scale : magnitude;
    const uint32_t x = static_cast<uint32_t>(anchor) + (y >> 1 ^ (0 - (y & 1)));
    const uint32_t sign = static_cast<uint32_t>(base) ^ number << (15 - r);
    return (x & kMagnitude) | (sign & ~uint32_t{kMagnitude});
  }

  BF16CODECS_DEVICE void replace_escapes(PerThread<uint32_t> (&items)[kGroups]) {
    const uint32_t any = warp_.ballot([&](unsigned t) {
      uint32_t all = 0;
      BF16CODECS_UNROLLED
      for (unsigned g = 0; g < kGroups; ++g) all |= items[g][t];
      return (all & kDeltaEscaped) != 0;
    });
    if (any == 0) return;
    BF16CODECS_UNROLLED
    for (unsigned g = 0; g < kGroups; ++g) {
      const uint32_t those =
          warp_.ballot([&](unsigned t) { return (items[g][t] & kDeltaEscaped) != 0; });
      if (those == 0) continue;
      const unsigned n = count_bits(those);
      const auto left = static_cast<unsigned>(parts_.rest - escape_) / 2;
      warp_.each([&](unsigned t) {
        const unsigned at = count_items_before(those, t);
        if ((those >> t & 1) != 0 && at < left) items[g][t] = load_any<uint16_t>(escape_ + 2 * at);
      });
      overrun_ |= n > left;
      escape_ += 2 * least(n, left);
    }
  }

  // Passes on the 64 items of two groups: each thread writes two of them.
  BF16CODECS_DEVICE void pass(const PerThread<uint32_t>& a, const PerThread<uint32_t>& b) {
    // Thread t < 16 has items 2 t of both groups, and thread 16 + t items 2 t + 1.
    PerThread<uint32_t> sent, words;
    warp_.each([&](unsigned t) { sent[t] = t < 16 ? b[t] : a[t]; });
    const PerThread<uint32_t> other = warp_.shuffle(sent, [](unsigned t) { return t ^ 16; });
    warp_.each([&](unsigned t) {
      words[t] = pick_bytes(t < 16 ? a[t] : other[t], t < 16 ? other[t] : b[t], 0x5410);
    });
    strips_.pass_words(words);
  }

  // Adds a stripe of the base to its checksum.
  BF16CODECS_DEVICE void add_base(unsigned at) {
    warp_.each([&](unsigned t) {
      const unsigned of_lane = at + t / 2 * 8;
      const uint32_t low = bases_.load32(of_lane), high = bases_.load32(of_lane + 4);
      base_sum_.add(t, uint64_t{high} << 32 | low);
    });
  }

  // The checksum of the base, whose items after the last step are added first.
  BF16CODECS_DEVICE uint32_t base_checksum(const Job& job) {
    const unsigned size = 2 * (job.n - parts_.coded);
    const uint8_t* const rest = bytes_at(job.base) + 2 * parts_.coded;
    BF16CODECS_ROLLED
    for (unsigned at = 0; at < size; at += kStripeBytes) {
      warp_.each([&](unsigned t) {
        uint64_t number = 0;
        BF16CODECS_UNROLLED
        for (unsigned i = 0; i < 8; ++i) {
          const unsigned of_byte = at + t / 2 * 8 + i;
          if (of_byte < size) number |= uint64_t{rest[of_byte]} << 8 * i;
        }
        base_sum_.add(t, number);
      });
    }
    return base_sum_.value(warp_, 2 * uint64_t{job.n});
  }

  // Passes on the items after the last step, fewer than a step. With pass_all(), the compiler no
  // longer proves for compute capability 9.0 that threads go in lockstep.
  BF16CODECS_DEVICE void pass_rest(unsigned size) {
    if (size == 0) return;
    warp_.each([&](unsigned t) {
      // The same bound for all threads: see Strips.
      BF16CODECS_UNROLLED
      for (unsigned k = 0; k < 2 * kDeltaItems; k += kThreads) {
        if (k + t >= size) continue;
        strips_.strip().store(k + t, load_any<uint8_t>(parts_.rest + k + t));
      }
    });
    strips_.pass(size);
  }

  const Warp& warp_;
  FusedDeltaMemory& memory_;
  const bool checks_base_;
  const DeltaShape shape_;
  const DeltaPayload& parts_;
  Scales<kDeltaItems> scales_;
  Lanes<RegisterStates<kGroups>> lanes_;
  Window bases_;
  Sum base_sum_;
  Strips strips_;
  const uint8_t* escape_;  // the next escape
  bool overrun_ = false;
};

// Decodes a usual block of differences. Others stay pending.
BF16CODECS_DEVICE Verdict decode_fused_delta(const Warp& warp, FusedDeltaMemory& memory,
                                             const Job& job) {
  if (job.width != 2 || job.items % 4 != 0 || job.base == 0 || job.section == 0 ||
      (job.flags & kJobGrid) != 0) {
    return Verdict::pending;
  }
  if (job.size > kMostPayload || job.size < kUsualHead) return Verdict::pending;
  const uint8_t* const block = bytes_at(job.payload);
  if (warp.same(block[0]) != uint8_t(Mode::difference)) return Verdict::pending;
  const Section& section = *reinterpret_cast<const Section*>(job.section);
  if (warp.same(section.low) != 0 || warp.same(section.relation) != kOrdered) {
    return Verdict::pending;
  }
  const uint32_t size = job.size - kUsualHead;
  DeltaPayload parts;
  if (warp.same(block[1]) != uint8_t(Mode::joined) ||
      warp.same(load_any<uint32_t>(block + 2)) != size ||
      !find_parts(warp, block + kUsualHead, size, job.n, job.width, parts)) {
    return Verdict::corrupt;
  }
  if (parts.groups != kMaxGroups) return Verdict::pending;
  load_tables(warp, section, memory);
  return FusedDelta(warp, memory, job, section, parts).run(job);
}

}  // namespace bf16codecs::cuda
