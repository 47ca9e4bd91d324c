#pragma once

// Inside the encoder of the difference mode: finding the classes and tables of a section. The
// format leaves these choices to the encoder (docs/format_differences.md, "The difference model").

#include <cstddef>
#include <cstdint>
#include <vector>

#include "delta/model.h"
#include "grid/grid.h"
#include "grid/item_scales.h"

namespace bf16codecs::delta {

// Items from all over a section: their bytes one after the other, and their scales, which are 0
// until a grid or fit_scale() gives them.
struct Sample {
  std::vector<uint8_t> base, items;
  std::vector<uint16_t> scales;

  size_t size() const { return scales.size(); }
};

// Chooses the relation and the low bytes, and if there is no grid the one scale of the sample's
// items.
void fit_scale(const Layout& layout, Sample& sample, bool has_scales, Section& section);

// Chooses at most `most` classes, from places of 2^shift 16ths of an octave, with
// section.shape.shift.
void fit_classes(const Layout& layout, const Sample& sample, unsigned most, Section& section);

// Chooses the raw bits of classes that are not near.
void fit_raw_bits(const Layout& layout, const Sample& sample, Section& section);

// Chooses the classes' weights; returns the approximate number of bits that the sample takes with
// them.
uint64_t fit_weights(const Layout& layout, const Sample& sample, Section& section);

// Chooses them by every stride-th part of n items with these scales.
void fit_weights(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                 size_t stride, const grid::ItemScales& scales, Section& section);

}  // namespace bf16codecs::delta
