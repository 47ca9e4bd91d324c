#pragma once

// The difference mode (docs/format_differences.md, "Coding").

#include "cuda/delta_items.h"
#include "cuda/delta_states.h"
#include "cuda/job.h"
#include "cuda/merge.h"
#include "cuda/scales.h"
#include "cuda/strips.h"

namespace bf16codecs::cuda {

struct DeltaMemory {
  Shared<2 * kDeltaClasses * kDeltaEntries> start, coder;
  Shared<kDeltaPlaces> class_of;
  Shared<kDeltaClasses> raw;
  Window::Memory words;
  SharedStates::Memory states;
  RowMemory<kThreads> rows;
};

BF16CODECS_DEVICE void load_tables(const Warp& warp, const Section& section, DeltaMemory& memory) {
  warp.each([&](unsigned t) {
    for (unsigned i = t; i < kDeltaClasses * kDeltaEntries; i += kThreads) {
      memory.start.store(2 * i, section.start[i]);
      memory.coder.store(2 * i, section.coder[i]);
    }
    for (unsigned i = t; i < kDeltaPlaces; i += kThreads) {
      memory.class_of.store(i, section.class_of[i]);
    }
    if (t < kDeltaClasses) memory.raw.store(t, section.raw[t]);
  });
  warp.sync();
}

// The number of lanes in a ballot whose items, of a step of 32, precede the item of lane t.
BF16CODECS_DEVICE unsigned count_items_before(uint32_t lanes, unsigned t) {
  const uint32_t even = lanes & 0xFFFF, odd = lanes >> 16, pair = t % 16;
  // Lanes 0-15 have the even items, lanes 16-31 the odd ones, so an even item precedes the odd item
  // of its pair.
  return count_bits(even & ((2u << pair) - (t < 16 ? (1u << pair) : 0) - 1)) +
         count_bits(odd & ((1u << pair) - 1));
}

// Loads the number of `width` bytes at p.
template <typename T>
BF16CODECS_DEVICE T load_item(const uint8_t* p, unsigned width) {
  if constexpr (sizeof(T) == 8) return load_any<T>(p);
  return width == 1 ? *p : width == 2 ? load_any<uint16_t>(p) : load_any<uint32_t>(p);
}

// Decodes the items of a block, of at most sizeof(T) bytes each.
template <typename T>
class DeltaReader {
 public:
  BF16CODECS_DEVICE DeltaReader(const Warp& warp, DeltaMemory& memory, const Job& job,
                                const Section& section, const DeltaPayload& parts)
      : warp_(warp),
        memory_(memory),
        job_(job),
        shape_(warp, section),
        parts_(parts),
        base_(reinterpret_cast<const uint8_t*>(job.base)),
        scales_(warp, memory.rows, section, parts.rows, parts.rows_size, job.first),
        lanes_(warp, memory.words, SharedStates(memory.states, parts.groups), parts.words,
               parts.end),
        escape_(parts.escapes) {
    read_short_states(warp, parts, lanes_.states);
  }

  // Decodes all items; returns whether the payload is valid. The last planes are the low bytes of
  // the numbers.
  BF16CODECS_DEVICE bool run(const Planes& planes, Strips& strips) {
    const unsigned step_bytes = kThreads * job_.width;
    unsigned full = 0;  // bytes of the strip
    for (uint32_t first = 0; first < parts_.coded; first += kThreads) {
      const unsigned g = first / kThreads % parts_.groups;
      lanes_.prepare(1);
      decode(g, planes, first, strips.strip(), full);
      lanes_.renormalize(g);
      full += step_bytes;
      if (full != kStripBytes) continue;
      strips.pass(full);
      full = 0;
    }
    const unsigned rest = job_.n - parts_.coded;
    pass_rest(full, rest * job_.width, strips);
    const bool is_finished = lanes_.is_finished(static_cast<uint32_t>(parts_.end - parts_.words));
    return scales_.finish(rest) && is_finished && !overrun_ && escape_ == parts_.rest;
  }

 private:
  BF16CODECS_DEVICE void decode(unsigned g, const Planes& planes, uint32_t first,
                                Shared<kStripBytes>& strip, unsigned strip_at) {
    scales_.next_step();
    const PerThread<int> scales = scales_.next(0, [](unsigned t) { return lane_place(t); });
    PerThread<uint32_t> is_escape;
    warp_.each([&](unsigned t) {
      const uint32_t i = first + lane_place(t);
      const DeltaItem<T> item(shape_, 8 * job_.width,
                              load_item<T>(base_ + uint64_t{job_.width} * i, job_.width),
                              scales[t]);
      const unsigned c = memory_.class_of.load<uint8_t>(item.place());
      const uint32_t x = lanes_.states.get(g, t), slot = x & 4095;
      unsigned entry = 0;
      BF16CODECS_UNROLLED
      for (unsigned half = kDeltaEntries / 2; half != 0; half /= 2) {
        const unsigned at = kDeltaEntries * c + entry + half;
        if (memory_.start.load<uint16_t>(2 * at) <= slot) entry += half;
      }
      const unsigned at = 2 * (kDeltaEntries * c + entry);
      const unsigned coder = memory_.coder.load<uint16_t>(at), q = coder >> 12;
      const uint32_t state = (coder & 4095) * (x >> 12) + slot - memory_.start.load<uint16_t>(at);
      lanes_.states.set(g, t, state >> q);
      is_escape[t] = entry == kDeltaEscape;
      const unsigned number =
          (unsigned{kDeltaBase[entry]} << memory_.raw.load<uint8_t>(c)) + (state & ((1u << q) - 1));
      put(strip, strip_at, t, item.add(number & 0xFFFF, c, low_bytes(planes, i)));
    });
    replace_escapes(is_escape, strip, strip_at);
  }

  // Writes thread t's item of a step to the strip.
  BF16CODECS_DEVICE void put(Shared<kStripBytes>& strip, unsigned step_at, unsigned t, T item) {
    const unsigned at = step_at + job_.width * lane_place(t);
    if constexpr (sizeof(T) == 8) return strip.store(at, item);
    if (job_.width == 1) return strip.store(at, static_cast<uint8_t>(item));
    if (job_.width == 2) return strip.store(at, static_cast<uint16_t>(item));
    strip.store(at, static_cast<uint32_t>(item));
  }

  BF16CODECS_DEVICE T low_bytes(const Planes& planes, uint32_t i) const {
    T bytes = 0;
    for (unsigned p = job_.width - shape_.low; p < job_.width; ++p) {
      bytes = bytes << 8 | static_cast<T>(some_symbols<1>(planes.get(p), i) & 255);
    }
    return bytes;
  }

  BF16CODECS_DEVICE void replace_escapes(const PerThread<uint32_t>& is_escape,
                                         Shared<kStripBytes>& strip, unsigned step_at) {
    const uint32_t those = warp_.ballot([&](unsigned t) { return is_escape[t] != 0; });
    if (those == 0) return;
    const unsigned n = count_bits(those);
    const auto left = static_cast<unsigned>(parts_.rest - escape_) / job_.width;
    warp_.each([&](unsigned t) {
      const unsigned at = count_items_before(those, t);
      if ((those >> t & 1) == 0 || at >= left) return;
      put(strip, step_at, t, load_item<T>(escape_ + job_.width * at, job_.width));
    });
    overrun_ |= n > left;
    escape_ += job_.width * least(n, left);
  }

  // Passes on the items after the last step, at most 127, behind `full` bytes of the strip.
  BF16CODECS_DEVICE void pass_rest(unsigned full, unsigned size, Strips& strips) {
    for (unsigned done = 0; full != 0 || done < size; full = 0) {
      const unsigned count = least(size - done, kStripBytes - full);
      warp_.each([&](unsigned t) {
        // The same bound for all threads: with a bound that varies by thread, the compiler no
        // longer proves that they go in lockstep.
        BF16CODECS_UNROLLED
        for (unsigned k = 0; k < kStripBytes; k += kThreads) {
          const unsigned i = k + t;
          if (i >= count) continue;
          strips.strip().store(full + i, load_any<uint8_t>(parts_.rest + done + i));
        }
      });
      strips.pass(full + count);
      done += count;
    }
  }

  const Warp& warp_;
  DeltaMemory& memory_;
  const Job& job_;
  const DeltaShape shape_;
  const DeltaPayload& parts_;
  const uint8_t* const base_;
  Scales<kThreads> scales_;
  Lanes<SharedStates> lanes_;
  const uint8_t* escape_;  // the next escape
  bool overrun_ = false;
};

// Decodes a block of differences, whose planes of low bytes are decoded already. Returns false if
// the payload is invalid.
template <typename T>
BF16CODECS_DEVICE bool decode_differences(const Warp& warp, DeltaMemory& memory, const Job& job,
                                          const uint8_t* payload, uint32_t size,
                                          const Planes& planes, Strips& strips) {
  const Section& section = *reinterpret_cast<const Section*>(job.section);
  DeltaPayload parts;
  if (!find_parts(warp, payload, size, job.n, job.width, parts)) return false;
  load_tables(warp, section, memory);
  DeltaReader<T> reader(warp, memory, job, section, parts);
  return reader.run(planes, strips);
}

}  // namespace bf16codecs::cuda
