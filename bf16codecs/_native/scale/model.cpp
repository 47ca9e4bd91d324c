// The scale model's side information, as it stands in a frame (docs/format.md).

#include <algorithm>

#include "format/errors.h"
#include "scale/tables.h"

namespace bf16codecs::scale {
namespace {

// One integer model for each kind of number; they go on learning from section to section.
struct SideModels {
  AdaptiveInteger lengths, base, steps, frequencies, column, curve;
};

constexpr int kMaxFrequencies = 4032;  // of the zero symbol and the escape together
constexpr int kMaxCurve = 255;
constexpr uint32_t kMinLength = 16;         // of runs and rows, where there are any
constexpr uint64_t kColumnsPerByte = 1024;  // more cannot be coded: see AdaptiveBit

// Lengths reach 2^40 and more only in theory: 30 bits in two numbers.
void put_length(SideModels& models, SideEncoder& coder, uint32_t length) {
  models.lengths.put(coder, static_cast<int>(length >> 15));
  models.lengths.put(coder, static_cast<int>(length & 0x7FFF));
}

int get_within(AdaptiveInteger& model, SideDecoder& coder, int least, int most) {
  const int value = model.get(coder);
  if (value < least || value > most) throw CorruptDataError("scale model: number out of range");
  return value;
}

uint32_t get_length(SideModels& models, SideDecoder& coder) {
  const int high = get_within(models.lengths, coder, 0, 0x7FFF);
  const int low = get_within(models.lengths, coder, 0, 0x7FFF);
  const auto length = static_cast<uint32_t>(high << 15 | low);
  if (length != 0 && length < kMinLength) throw CorruptDataError("scale model: row is too short");
  return length;
}

void put_section(SideModels& models, SideEncoder& coder, const Section& section,
                 const Section& before) {
  put_length(models, coder, section.run);
  put_length(models, coder, section.period);
  models.base.put(coder, section.base);
  models.steps.put(coder, section.row_step);
  models.steps.put(coder, section.column_step);
  models.frequencies.put(coder, section.zero_frequency);
  models.frequencies.put(coder, section.escape_frequency - 1);
  int previous = 0;
  for (const int height : section.curve) {
    models.curve.put(coder, height - previous);
    previous = height;
  }
  if (section.period == 0) return;
  models.steps.put(coder, section.columns_change);
  for (size_t i = 0; i < section.period; ++i) {
    models.column.put(coder, section.columns[i] - (section.columns_change ? before.columns[i] : 0));
  }
}

Section get_section(SideModels& models, SideDecoder& coder, const Section& before,
                    int max_scale, uint64_t items, uint64_t& columns_left) {
  Section section;
  section.run = get_length(models, coder);
  section.period = get_length(models, coder);
  if (section.period > items) throw CorruptDataError("scale model: more columns than items");
  if (section.period > columns_left) throw CorruptDataError("scale model: too many columns");
  columns_left -= section.period;
  section.base = static_cast<uint16_t>(get_within(models.base, coder, 0, max_scale));
  section.row_step = static_cast<uint8_t>(get_within(models.steps, coder, 0, 3));
  section.column_step = static_cast<uint8_t>(get_within(models.steps, coder, 0, 3));
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
  if (section.period == 0) return section;
  section.columns_change = get_within(models.steps, coder, 0, 1);
  if (section.columns_change && before.period != section.period) {
    throw CorruptDataError("scale model: changes of columns that the section before does not have");
  }
  section.columns.resize(section.period);
  for (size_t i = 0; i < section.period; ++i) {
    const int from = section.columns_change ? before.columns[i] : 0;
    const int column = from + models.column.get(coder);
    if (column < -kMaxClass || column > kMaxClass) {
      throw CorruptDataError("scale model: column scale out of range");
    }
    section.columns[i] = static_cast<int16_t>(column);
  }
  return section;
}

}  // namespace

std::vector<uint8_t> Model::write() const {
  SideEncoder coder;
  SideModels models;
  const Section none;
  for (size_t i = 0; i < sections_.size(); ++i) {
    put_section(models, coder, sections_[i], i ? sections_[i - 1] : none);
  }
  return coder.finish();
}

Model Model::read(const Layout& layout, const uint8_t* bytes, size_t size, uint64_t n,
                  uint64_t first, uint64_t last) {
  Model model;
  model.layout_ = layout;
  std::vector<Section>& sections = model.sections_;
  const int max_scale = KeyFormat(layout).max_scale();
  SideDecoder coder(bytes, size);
  SideModels models;
  const Section none;
  uint64_t columns_left = kColumnsPerByte * (size + 4);
  for (uint64_t begin = 0; begin < last; begin += kSectionItems) {
    const uint64_t items = std::min<uint64_t>(kSectionItems, n - begin);
    const Section& before = begin ? sections.back() : none;
    sections.push_back(get_section(models, coder, before, max_scale, items, columns_left));
    if (begin != 0 && begin <= first) sections[sections.size() - 2].columns = {};
  }
  return model;
}

}  // namespace bf16codecs::scale
