#pragma once

// Inside the encoder of the difference mode: how a section's classes and tables are found.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "delta/model.h"
#include "grid/grid.h"
#include "grid/item_scales.h"

namespace bf16codecs::delta {

// Some items of a section, from all over it: their bytes one after the other, and their scales
// where a grid gives them.
struct Sample {
  std::vector<uint8_t> base, items;
  std::vector<uint16_t> scales;

  size_t size() const { return scales.size(); }
};

// Chooses relation, low bytes, and without a grid the one scale of the sample's items.
void fit_scale(const Layout& layout, Sample& sample, bool has_scales, Section& section);

// Chooses classes: at most `most` of them, of places as large as section.shape.shift says.
void fit_classes(const Layout& layout, const Sample& sample, unsigned most, Section& section);

// Chooses the raw bits of far classes.
void fit_raw_bits(const Layout& layout, const Sample& sample, Section& section);

// Chooses the classes' weights; returns nearly how many bits the sample takes with them.
uint64_t fit_weights(const Layout& layout, const Sample& sample, Section& section);

// The same from one of so many parts of n items with these scales.
void fit_weights(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                 size_t stride, const grid::ItemScales& scales, Section& section);

}  // namespace bf16codecs::delta
