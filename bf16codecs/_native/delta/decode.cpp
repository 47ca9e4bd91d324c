// Decoding of a block of differences, strip by strip (docs/format_differences.md, "Coding" and
// "Payload of a block").

#include <algorithm>
#include <bit>
#include <string>

#include "delta/model.h"
#include "delta/numbers.h"
#include "delta/payload.h"
#include "format/errors.h"
#include "grid/item_scales.h"
#include "grid/keys.h"
#include "kernels/kernels.h"
#include "rans/payload.h"
#include "rans/states.h"

namespace bf16codecs::delta {
namespace {

constexpr char kMode[] = "difference";

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string(kMode) + ": " + what);
}

unsigned read_groups(Fields& fields) {
  const auto head = fields.number<uint8_t>();
  if (head > 2) corrupt("an unknown head");
  return 1u << head;
}

}  // namespace

struct Reader::State {
  State(const Model& model, const uint8_t* base_items, Fields& fields, uint64_t first, size_t n,
        grid::RowScales row_scales, unsigned groups)
      : width(model.layout().planes()),
        rows(std::move(row_scales)),
        scales(grid::KeyFormat(model.layout()), model.section(first), rows, first),
        numbers(model.layout(), model.section(first)),
        has_one_scale(model.section(first).has_one_scale()),
        tables(model.tables(first)),
        counts(n, groups),
        base(base_items) {
    decoder.groups = groups;
    if (counts.coded == 0) corrupt("a block with fewer items than lanes");
    const auto n_escapes = fields.number<uint32_t>();
    if (n_escapes > counts.coded) corrupt("more escapes than items");
    fields.next = read_states(fields.next, fields.end(), counts.lanes, decoder.x);
    if (fields.next == nullptr) corrupt("first states that are cut off or have unused bits");
    escapes = fields.take(n_escapes * width);
    escapes_end = fields.next;
    rest = fields.take(counts.rest * width);
    if (fields.left() % 2 != 0) corrupt("an odd number of bytes of words");
    words.reset(fields.next, fields.end());
  }

  // Decodes n items, whole steps, from item `at` on.
  void decode(size_t n, const uint8_t* const low[], uint8_t* items) {
    const size_t steps = n / kDeltaStep;
    // If there is one scale, the first strip has filled it in.
    if (at == 0 || !has_one_scale) scales.fill(at, n, strip_scales);
    numbers.classify(base, strip_scales, n, classes);
    words.prepare(kStepBytes * steps);
    decoder.words = words.next;
    kernels().delta->decode(decoder, tables, classes, steps, coded, masks);
    words.next = decoder.words;
    if (words.overrun()) corrupt("words that run out");
    numbers.add(base, coded, strip_scales, classes, low, n, items);
    for (size_t step = 0; step < steps; ++step) {
      for (uint32_t mask = masks[step]; mask != 0; mask &= mask - 1) {
        if (escapes == escapes_end) corrupt("fewer escapes than its items have");
        const size_t i = kDeltaStep * step + static_cast<size_t>(std::countr_zero(mask));
        std::copy_n(escapes, width, items + width * i);
        escapes += width;
      }
    }
    at += n;
    base += width * n;
  }

  void finish() const {
    if (words.left() != 0) corrupt("words that are left over");
    if (escapes != escapes_end) corrupt("escapes that are left over");
    if (!std::all_of(decoder.x, decoder.x + counts.lanes,
                     [](uint32_t x) { return x == kLowestState; })) {
      corrupt("a wrong last state");
    }
  }

  // Bytes of words that a kernel may read for a step.
  static constexpr size_t kStepBytes = 2 * kDeltaStep;

  const size_t width;
  const grid::RowScales rows;
  const grid::ItemScales scales;
  const Numbers numbers;
  const bool has_one_scale;
  const DeltaTables& tables;
  const Counts counts;
  const uint8_t* base;
  size_t at = 0;
  DeltaDecoder decoder;
  Words words{kStepBytes * kStripSteps};
  const uint8_t *escapes = nullptr, *escapes_end = nullptr, *rest = nullptr;

  alignas(64) uint16_t strip_scales[kStrip], coded[kStrip];
  alignas(64) uint8_t classes[kStrip];
  uint32_t masks[kStripSteps];
};

Reader::Reader(const Model& model, const uint8_t* base, const uint8_t* payload, size_t size,
               uint64_t first, size_t n) {
  Fields fields(kMode, payload, size);
  const auto rows_size = fields.number<uint16_t>();
  const uint8_t* const row_bytes = fields.take(rows_size);
  grid::RowScales rows = grid::read_rows(model.section(first), row_bytes, rows_size, first, n);
  const unsigned groups = read_groups(fields);
  state_ = std::make_unique<State>(model, base, fields, first, n, std::move(rows), groups);
}

Reader::~Reader() = default;

size_t Reader::next() const {
  const Counts& counts = state_->counts;
  const size_t left = counts.coded - state_->at;
  return left > kStrip ? kStrip : left == 0 ? 0 : left + counts.rest;
}

void Reader::decode(const uint8_t* const low[], uint8_t* items) {
  State& s = *state_;
  const size_t n = std::min(kStrip, s.counts.coded - s.at);
  s.decode(n, low, items);
  if (s.at != s.counts.coded) return;
  s.finish();
  std::copy_n(s.rest, s.width * s.counts.rest, items + s.width * n);
}

}  // namespace bf16codecs::delta
