#include <algorithm>
#include <bit>

#include "delta/numbers.h"
#include "delta/payload.h"
#include "difference_models.h"
#include "format/little_endian.h"
#include "grid/item_scales.h"
#include "grid/keys.h"
#include "kernels/kernels.h"
#include "rans/states.h"

namespace bf16codecs::fuzz {
namespace {

using delta::Counts;

// Codes a block at once, in memory that has no more than what kernels may touch.
class PayloadWriter {
 public:
  PayloadWriter(const delta::Model& model, const DifferenceBlock& block)
      : model_(model),
        block_(block),
        section_(model.section(block.first)),
        width_(model.layout().planes()),
        counts_(block.items.size() / width_, 1u << block.groups_log2),
        numbers_(counts_.coded),
        classes_(counts_.coded),
        escapes_(counts_.steps) {}

  Bytes write(std::vector<Bytes>& low) {
    low.assign(section_.low, Bytes(block_.items.size() / width_));
    if (counts_.coded == 0) return {};
    subtract(low);
    encode();
    return joined();
  }

 private:
  void subtract(std::vector<Bytes>& low) {
    std::vector<uint16_t> scales(counts_.coded);
    grid::ItemScales(grid::KeyFormat(model_.layout()), section_, block_.rows, block_.first)
        .fill(0, scales.size(), scales.data());
    const delta::Numbers numbers(model_.layout(), section_);
    numbers.classify(block_.base.data(), scales.data(), counts_.coded, classes_.data());
    uint8_t* at[kMaxItemSize];
    for (unsigned k = 0; k < section_.low; ++k) at[k] = low[k].data();
    numbers.subtract(block_.base.data(), block_.items.data(), scales.data(), classes_.data(),
                     counts_.coded, numbers_.data(), at);
  }

  void encode() {
    std::fill_n(encoder_.x, counts_.lanes, kLowestState);
    words_.resize(2 * counts_.coded + kEncodeMargin);
    encoder_.groups = 1u << block_.groups_log2;
    encoder_.words = words_.data() + words_.size();
    kernels().delta->encode(encoder_, model_.tables(block_.first), classes_.data(), numbers_.data(),
                            counts_.steps, escapes_.data());
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
    size_t n_escapes = 0;
    for (const uint32_t mask : escapes_) n_escapes += static_cast<size_t>(std::popcount(mask));
    uint8_t field[4];
    store_le(field, static_cast<uint32_t>(n_escapes));
    append(field, sizeof field);
    uint8_t states[5 * kMaxLanes];
    append(states, static_cast<size_t>(write_states(encoder_.x, counts_.lanes, states) - states));
    for (size_t i = 0; i < counts_.coded; ++i) {
      const bool is_escape = (escapes_[i / kDeltaStep] >> i % kDeltaStep & 1) != 0;
      if (is_escape) append(block_.items.data() + width_ * i, width_);
    }
    append(block_.items.data() + width_ * counts_.coded, width_ * counts_.rest);
    append(encoder_.words, static_cast<size_t>(words_.data() + words_.size() - encoder_.words));
    return payload;
  }

  const delta::Model& model_;
  const DifferenceBlock& block_;
  const delta::Section& section_;
  const size_t width_;
  const Counts counts_;
  std::vector<uint16_t> numbers_;
  Bytes classes_, words_;
  std::vector<uint32_t> escapes_;
  DeltaEncoder encoder_;
};

}  // namespace

Bytes difference_payload(const delta::Model& model, const DifferenceBlock& block,
                         std::vector<Bytes>& low) {
  return PayloadWriter(model, block).write(low);
}

}  // namespace bf16codecs::fuzz
