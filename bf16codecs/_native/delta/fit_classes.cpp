// Classes of a section, from a sample of its items.

#include <algorithm>

#include "delta/fit.h"
#include "delta/numbers.h"
#include "grid/keys.h"

namespace bf16codecs::delta {
namespace {

// Neighbouring places that become a class.
struct Group {
  uint64_t count = 0;
  unsigned places = 0;
  bool is_near = false;
};

// Counts the sample's items in each place.
std::vector<Group> count_places(const Layout& layout, const Sample& sample, Section section) {
  std::vector<Group> groups(section.shape.places);
  for (unsigned i = 0; i < section.shape.places; ++i)
    section.shape.class_of[i] = static_cast<uint8_t>(i);
  std::vector<uint8_t> classes(sample.size());
  Numbers(layout, section)
      .classify(sample.base.data(), sample.scales.data(), sample.size(), classes.data());
  for (const uint8_t c : classes) ++groups[c].count;
  for (Group& group : groups) group.places = 1;
  return groups;
}

// Joins group i with its smaller neighbour of the same kind, near or not; returns false if there is
// none.
bool join(std::vector<Group>& groups, size_t i) {
  const auto is_possible = [&](size_t a, size_t b) {
    return b < groups.size() && groups[a].is_near == groups[b].is_near;
  };
  const bool with_next = is_possible(i, i + 1), with_last = i != 0 && is_possible(i - 1, i);
  if (!with_next && !with_last) return false;
  const size_t at =
      with_last && (!with_next || groups[i - 1].count <= groups[i + 1].count) ? i - 1 : i;
  groups[at].count += groups[at + 1].count;
  groups[at].places += groups[at + 1].places;
  groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  return true;
}

// Joins groups until each has enough items for a table, and there are at most `most`.
void join_small(std::vector<Group>& groups, size_t items, unsigned most) {
  constexpr size_t kLeastShare = 128;
  for (;;) {
    size_t smallest = groups.size();
    for (size_t i = 0; i < groups.size(); ++i) {
      if (smallest == groups.size() || groups[i].count < groups[smallest].count) smallest = i;
    }
    if (groups.size() <= most && groups[smallest].count * kLeastShare >= items) return;
    if (join(groups, smallest)) continue;
    // The smallest group is the only one of its kind: there are no near classes then.
    if (groups.size() == 1) return;
    for (Group& group : groups) group.is_near = false;
  }
}

}  // namespace

void fit_classes(const Layout& layout, const Sample& sample, unsigned most, Section& section) {
  DeltaShape& shape = section.shape;
  shape.places = 1, shape.near = 1;
  if (section.relation != Relation::ordered || sample.size() == 0) return section.classes.resize(1);
  // Places go from scales at which one item in 2000 changes to differences that are larger than the
  // base's items.
  constexpr int kLowest = -12, kHighest = 3;
  const int fraction = static_cast<int>(shape.fraction);
  const int lowest = std::max(kLowest, -fraction - 4) - (fraction > 11 ? fraction - 8 : 0);
  const int in_octave = static_cast<int>(grid::kScaleSteps >> shape.shift);
  shape.origin = -lowest * static_cast<int>(grid::kScaleSteps);
  shape.places = static_cast<unsigned>(
      std::min((kHighest - lowest) * in_octave, static_cast<int>(kDeltaPlaces)));
  std::vector<Group> groups = count_places(layout, sample, section);
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].is_near = static_cast<int>(i) >= -lowest * in_octave;
  join_small(groups, sample.size(), most);
  unsigned place = 0;
  shape.near = static_cast<unsigned>(groups.size());
  for (unsigned c = 0; c < groups.size(); ++c) {
    if (groups[c].is_near) shape.near = std::min(shape.near, c);
    for (unsigned i = 0; i < groups[c].places; ++i)
      shape.class_of[place++] = static_cast<uint8_t>(c);
  }
  section.classes.resize(groups.size());
}

}  // namespace bf16codecs::delta
