// Reading and writing of difference models (docs/format_differences.md, "The difference model").

#include "delta/model.h"

#include <algorithm>
#include <string>

#include "format/errors.h"
#include "grid/keys.h"
#include "kernels/kernels.h"

namespace bf16codecs::delta {
namespace {

using grid::AdaptiveBit;
using grid::AdaptiveInteger;
using grid::get_within;
using grid::SideDecoder;
using grid::SideEncoder;

constexpr int kMaxOrigin = 16383;
constexpr int kMaxShift = 4;

[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(std::string("difference model: ") + what);
}

// The adaptive integers and bits of a section's numbers, beside those of its grid. They last from
// section to section.
struct Learnt {
  AdaptiveInteger range, place, raw, frequency;
  AdaptiveBit next;
};

class Writer {
 public:
  void put(const Section& section, const Section& before) {
    grids_.put_head(coder_, section);
    grids_.put_columns(coder_, section, before);
    put(learnt_.range, static_cast<unsigned>(section.relation));
    put(learnt_.range, section.low);
    put(learnt_.range, section.shape.shift);
    learnt_.place.put(coder_, section.shape.origin);
    put(learnt_.range, section.shape.places - 1);
    const uint8_t* const class_of = section.shape.class_of;
    for (unsigned i = 1; i < section.shape.places; ++i) {
      coder_.put(learnt_.next, class_of[i] != class_of[i - 1]);
    }
    put(learnt_.range, section.shape.near);
    put_codes(section);
  }
  std::vector<uint8_t> finish() { return coder_.finish(); }

 private:
  void put(AdaptiveInteger& integer, unsigned number) {
    integer.put(coder_, static_cast<int>(number));
  }

  void put_codes(const Section& section) {
    int raw = 0, first = 0;
    for (unsigned c = 0; c < section.classes.size(); ++c) {
      const ClassCode& code = section.classes[c];
      if (c < section.shape.near) {
        learnt_.raw.put(coder_, code.raw - raw);
        raw = code.raw;
      }
      int before = first;
      for (const uint8_t weight : code.weights) {
        learnt_.frequency.put(coder_, weight - before);
        before = weight;
      }
      first = code.weights[0];
    }
  }

  SideEncoder coder_;
  grid::GridWriter grids_;
  Learnt learnt_;
};

class SectionReader {
 public:
  SectionReader(const Layout& layout, const uint8_t* bytes, size_t size)
      : layout_(layout), coder_(bytes, size), grids_(size, grid::KeyFormat(layout).max_scale()) {}

  Section get(const Section& before, uint64_t items) {
    Section section;
    grids_.get_head(coder_, items, section);
    grids_.get_columns(coder_, before, section);
    section.relation = Relation{static_cast<uint8_t>(number(0, 2))};
    section.low = number(0, static_cast<int>(layout_.planes()) - 1);
    DeltaShape& shape = section.shape;
    shape.fraction = fraction_bits(layout_);
    shape.near_raw = near_raw_bits(layout_, section.low);
    shape.shift = number(0, kMaxShift);
    shape.origin = get_within(learnt_.place, coder_, -kMaxOrigin, kMaxOrigin);
    shape.places = 1 + number(0, kDeltaPlaces - 1);
    unsigned c = 0;
    for (unsigned i = 1; i < shape.places; ++i) {
      c += coder_.get(learnt_.next);
      if (c == kDeltaClasses) corrupt("more than 16 classes");
      shape.class_of[i] = static_cast<uint8_t>(c);
    }
    const unsigned classes = c + 1;
    shape.near = number(0, static_cast<int>(classes));
    if (section.relation != Relation::ordered && shape.near != classes) {
      corrupt("near classes of numbers without signs");
    }
    get_codes(classes, section);
    return section;
  }

 private:
  unsigned number(int least, int most) {
    return static_cast<unsigned>(get_within(learnt_.range, coder_, least, most));
  }

  void get_codes(unsigned classes, Section& section) {
    int raw = 0, first = 0;
    for (unsigned c = 0; c < classes; ++c) {
      ClassCode& code = section.classes.emplace_back();
      code.raw = static_cast<uint8_t>(section.shape.near_raw);
      if (c < section.shape.near) {
        raw += learnt_.raw.get(coder_);
        if (raw < 0 || raw > static_cast<int>(kMaxDeltaRaw)) corrupt("raw bits out of range");
        code.raw = static_cast<uint8_t>(raw);
      }
      int weight = first;
      for (uint8_t& of : code.weights) {
        weight += learnt_.frequency.get(coder_);
        if (weight < 0 || weight > static_cast<int>(kMaxWeight)) corrupt("a weight out of range");
        of = static_cast<uint8_t>(weight);
      }
      first = code.weights[0];
      Frequencies frequencies;
      if (code.weights[kDeltaEscape] == 0) corrupt("a class without escapes");
      if (!make_frequencies(code, frequencies)) corrupt("weights that make no frequencies");
    }
  }

  const Layout layout_;
  SideDecoder coder_;
  grid::GridReader grids_;
  Learnt learnt_;
};

}  // namespace

unsigned fraction_bits(const Layout& layout) {
  const grid::KeyFormat format(layout);
  return static_cast<unsigned>(8 * layout.planes()) - (format.bits - format.fraction);
}

unsigned near_raw_bits(const Layout& layout, unsigned low) {
  const int bits = static_cast<int>(fraction_bits(layout)) - 1 - 8 * static_cast<int>(low);
  return static_cast<unsigned>(std::clamp(bits, 0, static_cast<int>(kMaxDeltaRaw)));
}

std::vector<uint8_t> Model::write() const {
  Writer writer;
  const Section none;
  for (size_t i = 0; i < sections_.size(); ++i) {
    writer.put(sections_[i], i ? sections_[i - 1] : none);
  }
  return writer.finish();
}

Model Model::read(const Layout& layout, const uint8_t* bytes, size_t size, uint64_t n,
                  uint64_t first, uint64_t last) {
  Model model;
  model.layout_ = layout;
  model.first_section_ = first / grid::kSectionItems;
  SectionReader reader(layout, bytes, size);
  // Sections before those that are wanted are read and dropped: a section may be changes to the one
  // before.
  Section section;
  for (uint64_t begin = 0; begin < last; begin += grid::kSectionItems) {
    section = reader.get(section, std::min<uint64_t>(grid::kSectionItems, n - begin));
    if (begin / grid::kSectionItems < model.first_section_) continue;
    model.sections_.push_back(section);
    model.tables_.emplace_back(section.classes, *kernels().delta);
  }
  return model;
}

}  // namespace bf16codecs::delta
