// Reading and writing of scale models (docs/format_scale.md, "The scale model").

#include "scale/model.h"

#include <algorithm>

#include "format/errors.h"
#include "grid/adaptive_coder.h"
#include "grid/grid.h"
#include "grid/keys.h"

namespace bf16codecs::scale {

using grid::AdaptiveInteger;
using grid::get_within;
using grid::GridReader;
using grid::GridWriter;
using grid::SideDecoder;
using grid::SideEncoder;

namespace {

constexpr int kMaxFrequencies = 4032;  // of the zero symbol and the escape together
constexpr int kMaxCurve = 255;

// One adaptive integer for each kind of number. They last from section to section.
struct SideModels {
  AdaptiveInteger frequencies, curve;
};

void put_section(SideModels& models, GridWriter& grids, SideEncoder& coder, const Section& section,
                 const Section& before) {
  grids.put_head(coder, section);
  models.frequencies.put(coder, section.zero_frequency);
  models.frequencies.put(coder, section.escape_frequency - 1);
  int previous = 0;
  for (const int height : section.curve) {
    models.curve.put(coder, height - previous);
    previous = height;
  }
  grids.put_columns(coder, section, before);
}

Section get_section(SideModels& models, GridReader& grids, SideDecoder& coder,
                    const Section& before, uint64_t items) {
  Section section;
  grids.get_head(coder, items, section);
  const int zero = get_within(models.frequencies, coder, 0, kMaxFrequencies - 1);
  const int escape = get_within(models.frequencies, coder, 0, kMaxFrequencies - 1 - zero) + 1;
  section.zero_frequency = static_cast<uint16_t>(zero);
  section.escape_frequency = static_cast<uint16_t>(escape);
  int height = 0;
  for (auto& node : section.curve) {
    height += get_within(models.curve, coder, -2 * kMaxCurve, 2 * kMaxCurve);
    if (height < -kMaxCurve || height > kMaxCurve) {
      throw CorruptDataError("scale model: curve out of range");
    }
    node = static_cast<int16_t>(height);
  }
  grids.get_columns(coder, before, section);
  return section;
}

}  // namespace

std::vector<uint8_t> Model::write() const {
  SideEncoder coder;
  GridWriter grids;
  SideModels models;
  const Section none;
  for (size_t i = 0; i < sections_.size(); ++i) {
    put_section(models, grids, coder, sections_[i], i ? sections_[i - 1] : none);
  }
  return coder.finish();
}

Model Model::read(const Layout& layout, const uint8_t* bytes, size_t size, uint64_t n,
                  uint64_t first, uint64_t last) {
  Model model;
  model.layout_ = layout;
  model.first_section_ = first / grid::kSectionItems;
  std::vector<Section>& sections = model.sections_;
  SideDecoder coder(bytes, size);
  GridReader grids(size, grid::KeyFormat(layout).max_scale());
  SideModels models;
  Section skipped;  // the last section before those that are wanted; the next may be changes to it
  for (uint64_t begin = 0; begin < last; begin += grid::kSectionItems) {
    const uint64_t items = std::min<uint64_t>(grid::kSectionItems, n - begin);
    const Section& before = sections.empty() ? skipped : sections.back();
    Section section = get_section(models, grids, coder, before, items);
    if (begin / grid::kSectionItems < model.first_section_) {
      skipped = std::move(section);
    } else {
      sections.push_back(std::move(section));
    }
  }
  return model;
}

}  // namespace bf16codecs::scale
