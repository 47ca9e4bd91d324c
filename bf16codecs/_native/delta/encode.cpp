#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "delta/model.h"
#include "delta/numbers.h"
#include "delta/payload.h"
#include "format/little_endian.h"
#include "grid/item_scales.h"
#include "grid/keys.h"
#include "kernels/kernels.h"
#include "rans/states.h"

namespace bf16codecs::delta {
namespace {

// More lanes hide more latency, and each costs 20 bits: 0.01 bits an item where 32 more of them
// code 64 K items, which then decode at 4.3 GB/s instead of 2.8.
unsigned groups_log2_for(size_t n, bool is_best) {
  const size_t shift = is_best ? 2 : 0;
  return n < size_t{1} << (15 + shift) ? 0 : n < size_t{1} << (16 + shift) ? 1 : 2;
}

// Where the parts of a block are collected before their sizes are known.
struct Parts {
  uint16_t* numbers;
  uint32_t* escapes;  // masks
  uint8_t *classes, *words_end;

  Parts(const Counts& counts, Scratch& scratch) {
    constexpr size_t kAlign = 64;
    size_t total = 0;
    const auto reserve = [&](size_t size) {
      const size_t at = total;
      total += (size + kAlign - 1) / kAlign * kAlign;
      return at;
    };
    const size_t numbers_at = reserve(2 * counts.coded);
    const size_t escapes_at = reserve(sizeof(uint32_t) * counts.steps);
    const size_t classes_at = reserve(counts.coded);
    const size_t words_at = reserve(2 * counts.coded + kEncodeMargin);
    size_t room = total + kAlign;
    void* base = scratch.at_least(room);
    auto* const bytes = static_cast<uint8_t*>(std::align(kAlign, total, base, room));
    numbers = reinterpret_cast<uint16_t*>(bytes + numbers_at);
    escapes = reinterpret_cast<uint32_t*>(bytes + escapes_at);
    classes = bytes + classes_at;
    words_end = bytes + words_at + 2 * counts.coded + kEncodeMargin;
  }
};

// One block on its way to a payload.
class BlockEncoder {
 public:
  BlockEncoder(const Model& model, const uint8_t* base, const uint8_t* items, uint64_t first,
               size_t n, unsigned groups, Scratch& scratch)
      : model_(model),
        width_(model.layout().planes()),
        base_(base),
        items_(items),
        first_(first),
        counts_(n, groups),
        parts_(counts_, scratch) {
    encoder_.groups = groups;
  }

  void count_numbers(const grid::RowScales& rows, uint8_t* const low[]) {
    const Section& section = model_.section(first_);
    const grid::ItemScales scales(grid::KeyFormat(model_.layout()), section, rows, first_);
    const Numbers numbers(model_.layout(), section);
    uint16_t strip_scales[kStrip];
    for (size_t at = 0; at < counts_.coded; at += kStrip) {
      const size_t n = std::min(kStrip, counts_.coded - at);
      const uint8_t* const base = base_ + width_ * at;
      uint8_t* low_at[kMaxItemSize];
      for (unsigned k = 0; k < section.low; ++k) low_at[k] = low[k] + at;
      if (at == 0 || section.run != 0 || section.period != 0) scales.fill(at, n, strip_scales);
      numbers.classify(base, strip_scales, n, parts_.classes + at);
      numbers.subtract(base, items_ + width_ * at, strip_scales, parts_.classes + at, n,
                       parts_.numbers + at, low_at);
    }
    for (unsigned k = 0; k < section.low; ++k) std::fill_n(low[k] + counts_.coded, counts_.rest, 0);
  }

  void encode_numbers() {
    std::fill_n(encoder_.x, counts_.lanes, kLowestState);
    encoder_.words = parts_.words_end;
    kernels().delta->encode(encoder_, model_.tables(first_), parts_.classes, parts_.numbers,
                            counts_.steps, parts_.escapes);
    for (size_t step = 0; step < counts_.steps; ++step) {
      // Nearly all are 0, which need no call where the processor's own count is not built for.
      if (const uint32_t mask = parts_.escapes[step]; mask != 0) {
        escapes_ += static_cast<size_t>(std::popcount(mask));
      }
    }
  }

  size_t write(const std::vector<uint8_t>& rows, uint8_t* out, size_t capacity) const {
    const auto words_size = static_cast<size_t>(parts_.words_end - encoder_.words);
    const size_t most =
        7 + rows.size() + 5 * counts_.lanes + (escapes_ + counts_.rest) * width_ + words_size;
    if (most > capacity || rows.size() > UINT16_MAX) return 0;
    store_le(out, static_cast<uint16_t>(rows.size()));
    uint8_t* next = std::copy(rows.begin(), rows.end(), out + 2);
    *next++ = static_cast<uint8_t>(std::countr_zero(encoder_.groups));
    store_le(next, static_cast<uint32_t>(escapes_));
    next = write_states(encoder_.x, counts_.lanes, next + 4);
    for (size_t step = 0; step < counts_.steps; ++step) {
      for (uint32_t mask = parts_.escapes[step]; mask != 0; mask &= mask - 1) {
        const size_t i = kDeltaStep * step + static_cast<size_t>(std::countr_zero(mask));
        next = std::copy_n(items_ + width_ * i, width_, next);
      }
    }
    next = std::copy_n(items_ + width_ * counts_.coded, width_ * counts_.rest, next);
    next = std::copy_n(encoder_.words, words_size, next);
    return static_cast<size_t>(next - out);
  }

  // The low bytes of escapes are noise: zeros are coded best, where they are coded.
  void clear_low_of_escapes(uint8_t* const low[]) const {
    const unsigned planes = model_.section(first_).low;
    if (planes == 0 || escapes_ == 0) return;
    for (size_t step = 0; step < counts_.steps; ++step) {
      for (uint32_t mask = parts_.escapes[step]; mask != 0; mask &= mask - 1) {
        const size_t i = kDeltaStep * step + static_cast<size_t>(std::countr_zero(mask));
        for (unsigned k = 0; k < planes; ++k) low[k][i] = 0;
      }
    }
  }

 private:
  const Model& model_;
  const size_t width_;
  const uint8_t *base_, *items_;
  const uint64_t first_;
  const Counts counts_;
  const Parts parts_;
  DeltaEncoder encoder_;
  size_t escapes_ = 0;
};

}  // namespace

size_t encode(const Model& model, const uint8_t* base, const uint8_t* items, uint64_t first,
              size_t n, bool is_best, Scratch& scratch, uint8_t* const low[], uint8_t* out,
              size_t capacity) {
  const unsigned groups = 1u << groups_log2_for(n, is_best);
  if (Counts(n, groups).coded == 0) return 0;
  const grid::RowScales rows = model.fit_rows(base, items, first, n);
  BlockEncoder block(model, base, items, first, n, groups, scratch);
  block.count_numbers(rows, low);
  block.encode_numbers();
  block.clear_low_of_escapes(low);
  return block.write(grid::write_rows(rows), out, capacity);
}

}  // namespace bf16codecs::delta
