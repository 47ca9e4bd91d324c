#include "tile_payloads.h"

#include <algorithm>

#include "format/little_endian.h"
#include "grid/item_scales.h"
#include "grid/keys.h"
#include "kernels/kernels.h"
#include "rans/states.h"
#include "tiles/payload.h"


namespace bf16codecs::fuzz {
namespace {

using tiles::Counts;

// Codes the tiles of a block one by one, in memory that has no more than what kernels may touch.
class PayloadWriter {
 public:
  PayloadWriter(const tiles::Model& model, const TileBlock& block)
      : block_(block),
        section_(model.section(block.first)),
        format_(model.layout()),
        raw_bits_(tiles::raw_bits(format_)),
        counts_(block.keys.size(), 1u << block.groups_log2, raw_bits_),
        scales_(scales_of(model, block)),
        symbols_(counts_.coded + kTileSlack),
        classes_(counts_.coded / kStepItems),
        records_(counts_.records),
        escapes_(counts_.coded) {}

  Bytes write() {
    if (counts_.coded == 0) return {};
    for (size_t t = 0; t < counts_.tiles; ++t) arrange(t);
    encode();
    return joined();
  }

 private:
  void arrange(size_t t) {
    const size_t at = counts_.tile_begin(t), n = counts_.tile_size(t);
    const auto part = [&](const Words& words) {
      const auto begin = words.begin() + static_cast<ptrdiff_t>(at);
      return Words(begin, begin + static_cast<ptrdiff_t>(n));
    };
    const Words keys = part(block_.keys), scales = part(scales_);
    TileOrder order{};
    if (section_.classes != 1) {
      kernels().tiles->order(scales.data(), n, order);
      tiles::step_classes(order, n / kStepItems, classes_.data() + at / kStepItems);
    }
    TileShape shape{section_.classes,
                    raw_bits_,
                    format_.mask(),
                    static_cast<uint16_t>(section_.first),
                    static_cast<uint16_t>(section_.end),
                    false};
    if (block_.has_more_escapes && shape.end - shape.first > 1) ++shape.first;
    Words escapes(n);
    uint16_t* const end = kernels().tiles->arrange(
        shape, order, keys.data(), scales.data(), n, symbols_.data() + at,
        records_.data() + at / kRecordItems * record_size(raw_bits_), escapes.data());
    std::copy(escapes.data(), end, escapes_.data() + n_escapes_);
    n_escapes_ += static_cast<size_t>(end - escapes.data());
  }

  void encode() {
    std::vector<TileCodeTable> tables;
    for (unsigned c = 0; c < section_.classes; ++c) {
      tables.push_back(tiles::make_code_table(section_.intervals[c], section_.escape_frequency,
                                              kernels().tiles->reads_code_slots));
    }
    const uint8_t* const seeds = records_.data() + counts_.records - counts_.in_states;
    for (size_t lane = 0; lane < counts_.lanes; ++lane) {
      encoder_.x[lane] = kLowestState;
      if (counts_.in_states != 0) encoder_.x[lane] |= load_le<uint16_t>(seeds + 2 * lane);
    }
    words_.resize(2 * counts_.coded + kEncodeMargin);
    encoder_.groups = 1u << block_.groups_log2;
    encoder_.words = words_.data() + words_.size();
    kernels().tiles->encode(encoder_, tables.data(), classes_.data(), classes_.size(),
                            symbols_.data());
  }

  Bytes joined() const {
    Bytes payload(2);
    const auto append = [&](const uint8_t* begin, size_t size) {
      payload.insert(payload.end(), begin, begin + size);
    };
    const Bytes rows = grid::write_rows(block_.rows);
    store_le(payload.data(), static_cast<uint16_t>(rows.size()));
    append(rows.data(), rows.size());
    payload.push_back(static_cast<uint8_t>(block_.groups_log2));
    uint8_t field[4];
    store_le(field, static_cast<uint32_t>(n_escapes_));
    append(field, sizeof field);
    uint8_t states[5 * kMaxLanes];
    append(states, static_cast<size_t>(
                       write_states(encoder_.x, counts_.lanes, states) - states));
    append(records_.data(), counts_.records - counts_.in_states);
    append_keys(escapes_.data(), n_escapes_, payload);
    append_keys(block_.keys.data() + counts_.coded, counts_.rest, payload);
    append(encoder_.words,
           static_cast<size_t>(words_.data() + words_.size() - encoder_.words));
    return payload;
  }

  void append_keys(const uint16_t* keys, size_t n, Bytes& payload) const {
    for (size_t i = 0; i < n; ++i) {
      payload.push_back(static_cast<uint8_t>(keys[i]));
      if (format_.bits == 16) payload.push_back(static_cast<uint8_t>(keys[i] >> 8));
    }
  }

  const TileBlock& block_;
  const tiles::Section& section_;
  grid::KeyFormat format_;
  unsigned raw_bits_;
  Counts counts_;
  Words scales_;
  Bytes symbols_, classes_, records_, words_;
  Words escapes_;
  size_t n_escapes_ = 0;
  TileEncoder encoder_;
};

}  // namespace

Words scales_of(const tiles::Model& model, const TileBlock& block) {
  const grid::KeyFormat format(model.layout());
  Words scales(block.keys.size());
  grid::ItemScales(format, model.section(block.first), block.rows, block.first)
      .fill(0, scales.size(), scales.data());
  return scales;
}

Bytes tile_payload(const tiles::Model& model, const TileBlock& block) {
  return PayloadWriter(model, block).write();
}

}  // namespace bf16codecs::fuzz
