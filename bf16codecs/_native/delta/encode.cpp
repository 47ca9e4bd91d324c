// Encoding of a block of differences (docs/format_differences.md, "Coding" and "Payload of a
// block").

#include <algorithm>
#include <bit>
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

// More lanes hide more latency, and each costs 20 bits: 0.01 bits per item where 32 more of them
// code 64 K items, which then decode at 4.3 GB/s instead of 2.8.
unsigned groups_log2_for(size_t n, bool is_best) {
  const size_t shift = is_best ? 2 : 0;
  return n < size_t{1} << (15 + shift) ? 0 : n < size_t{1} << (16 + shift) ? 1 : 2;
}

// Memory in which the parts of a block are collected before their sizes are known. An item gives at
// most one word.
struct Parts {
  uint32_t* escapes;  // a mask for each step
  uint8_t* words_end;

  Parts(const Counts& counts, Scratch& scratch) {
    constexpr size_t kAlign = alignof(uint32_t);
    const size_t masks_size = sizeof(uint32_t) * counts.steps;
    const size_t words_size = 2 * counts.coded + kEncodeMargin;
    size_t room = masks_size + words_size + kAlign;
    void* base = scratch.at_least(room);
    auto* const bytes =
        static_cast<uint8_t*>(std::align(kAlign, masks_size + words_size, base, room));
    escapes = reinterpret_cast<uint32_t*>(bytes);
    words_end = bytes + masks_size + words_size;
  }
};

// Encodes one block.
class BlockEncoder {
 public:
  BlockEncoder(const Model& model, const uint8_t* base, const uint8_t* items, uint64_t first,
               size_t n, unsigned groups, Scratch& scratch)
      : model_(model),
        section_(model.section(first)),
        width_(model.layout().planes()),
        base_(base),
        items_(items),
        first_(first),
        counts_(n, groups),
        parts_(counts_, scratch) {
    encoder_.groups = groups;
  }

  // Codes strip after strip, from the last one to the first. Classes and numbers of a strip stay in
  // the first-level cache from one pass over it to the next.
  void code(const grid::RowScales& rows, uint8_t* const low[]) {
    const grid::ItemScales scales(grid::KeyFormat(model_.layout()), section_, rows, first_);
    const Numbers numbers(model_.layout(), section_);
    std::fill_n(encoder_.x, counts_.lanes, kLowestState);
    encoder_.words = parts_.words_end;
    for (unsigned k = 0; k < section_.low; ++k) {
      std::fill_n(low[k] + counts_.coded, counts_.rest, 0);
    }
    scales.fill(0, std::min(kStrip, counts_.coded), strip_scales_);
    const size_t strips = (counts_.coded + kStrip - 1) / kStrip;
    for (size_t strip = strips; strip-- != 0;) code_strip(strip * kStrip, scales, numbers, low);
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

 private:
  void code_strip(size_t at, const grid::ItemScales& scales, const Numbers& numbers,
                  uint8_t* const low[]) {
    alignas(64) uint16_t coded[kStrip];
    alignas(64) uint8_t classes[kStrip];
    const size_t n = std::min(kStrip, counts_.coded - at), steps = n / kDeltaStep;
    const uint8_t* const base = base_ + width_ * at;
    uint8_t* low_at[kMaxItemSize] = {};
    for (unsigned k = 0; k < section_.low; ++k) low_at[k] = low[k] + at;
    if (!section_.has_one_scale()) scales.fill(at, n, strip_scales_);
    numbers.classify(base, strip_scales_, n, classes);
    numbers.subtract(base, items_ + width_ * at, strip_scales_, classes, n, coded, low_at);
    uint32_t* const escapes = parts_.escapes + at / kDeltaStep;
    kernels().delta->encode(encoder_, model_.tables(first_), classes, coded, steps, escapes);
    count_escapes(escapes, steps, low_at);
  }

  // Counts the escapes, and sets their low bytes, which a decoder ignores, to 0: zeros are coded
  // best.
  void count_escapes(const uint32_t* escapes, size_t steps, uint8_t* const low[]) {
    for (size_t step = 0; step < steps; ++step) {
      for (uint32_t mask = escapes[step]; mask != 0; mask &= mask - 1, ++escapes_) {
        const size_t i = kDeltaStep * step + static_cast<size_t>(std::countr_zero(mask));
        for (unsigned k = 0; k < section_.low; ++k) low[k][i] = 0;
      }
    }
  }

  const Model& model_;
  const Section& section_;
  const size_t width_;
  const uint8_t *base_, *items_;
  const uint64_t first_;
  const Counts counts_;
  const Parts parts_;
  DeltaEncoder encoder_;
  size_t escapes_ = 0;
  alignas(64) uint16_t strip_scales_[kStrip];
};

}  // namespace

size_t encode(const Model& model, const uint8_t* base, const uint8_t* items, uint64_t first,
              size_t n, bool is_best, Scratch& scratch, uint8_t* const low[], uint8_t* out,
              size_t capacity) {
  const unsigned groups_log2 = groups_log2_for(n, is_best);
  if (Counts(n, 1u << groups_log2).coded == 0) return 0;
  return encode_block(model, {model.fit_rows(base, items, first, n), groups_log2}, base, items,
                      first, n, scratch, low, out, capacity);
}

size_t encode_block(const Model& model, const BlockChoices& choices, const uint8_t* base,
                    const uint8_t* items, uint64_t first, size_t n, Scratch& scratch,
                    uint8_t* const low[], uint8_t* out, size_t capacity) {
  const auto& [rows, groups_log2] = choices;
  if (Counts(n, 1u << groups_log2).coded == 0) return 0;
  BlockEncoder block(model, base, items, first, n, 1u << groups_log2, scratch);
  block.code(rows, low);
  return block.write(grid::write_rows(rows), out, capacity);
}

}  // namespace bf16codecs::delta
