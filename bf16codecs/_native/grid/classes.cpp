// The choice of classes by their cost: the bits that items lose by a class that is not quite their
// scale, and the bits of the class itself, by how often all classes are used.

#include "grid/classes.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <functional>

#include "grid/fixed_point.h"
#include "grid/grid.h"
#include "grid/log2_table.h"

namespace bf16codecs::grid {
namespace {

// The loss, in 4096ths of a bit an item, where a Gaussian's scale is taken as larger than it is by
// `excess` 4096ths of an octave: log2 of the factor, and (1 / factor^2 - 1) log2(e) / 2. Distances
// are rounded to kStep.
class Mismatch {
 public:
  constexpr Mismatch() {
    for (int i = 0; i < kSize; ++i) {
      const int excess = (i - kSize / 2) * kStep;
      const auto square = static_cast<int64_t>(exp2_floor(16 * kOctave - 2 * excess) >> 4);
      const int64_t loss = excess + (((square - kOctave) * kHalfLog2E) >> 12);
      loss_[i] = loss < 0 ? 0 : static_cast<uint32_t>(loss);
    }
  }

  uint64_t operator()(int excess) const {
    return loss_[std::clamp((excess + kStep / 2) / kStep + kSize / 2, 0, kSize - 1)];
  }

  // One value for all distances from which every class loses the same.
  static int typical(int distance) {
    const int above = kStep / 2 - distance;
    return kStep / 2 - (above & -kStep) - (above % kStep != 0);
  }

  static constexpr int kStep = kOctave / 64;

 private:
  static constexpr int kSize = 16 * 64;
  uint32_t loss_[kSize] = {};
};
constexpr Mismatch mismatch;

}  // namespace

int mean_log_scale(const Scales& scales) {
  int64_t sum = 0, count = 0;
  for (size_t i = 0; i < scales.count.size(); ++i) {
    sum += scales.log_scale[i] * static_cast<int64_t>(scales.count[i]);
    count += static_cast<int64_t>(scales.count[i]);
  }
  return count ? static_cast<int>(sum / count) : 0;
}

uint64_t cost_of_one(const Scales& scales, int center) {
  uint64_t cost = 0;
  for (size_t i = 0; i < scales.count.size(); ++i) {
    cost += scales.count[i] * mismatch(center - scales.log_scale[i]);
  }
  return cost;
}

namespace {

constexpr int kReach = 3;  // how far a class may be from the class nearest to the scale

// Scales with the same count that lose the same bits in every class, and so get the same one. All
// columns have the same count; 4096 of them make some 250 groups.
struct Group {
  uint64_t count;
  int distance, nearest;  // from the center; the nearest class
  uint32_t scales;
  int16_t chosen;
};

struct Groups {
  std::vector<Group> groups;
  std::vector<uint32_t> of_scale;

  Groups(const Scales& scales, int center, int unit) : of_scale(scales.count.size()) {
    const int log_unit = std::countr_zero(static_cast<unsigned>(unit));
    std::fill(std::begin(last_), std::end(last_), kNone);
    for (size_t i = 0; i < of_scale.size(); ++i) {
      const uint64_t count = scales.count[i];
      const int away = count == 0 ? 0 : scales.log_scale[i] - center;
      const int steps = (std::abs(away) + unit / 2) >> log_unit;
      const int nearest =
          std::clamp(away < 0 ? -steps : steps, kReach - kMaxClass, kMaxClass - kReach);
      const uint32_t group = find(count, Mismatch::typical(away), nearest);
      of_scale[i] = group;
      ++groups[group].scales;
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Finds a group by a small hash table that remembers the last one of each hash, or begins a
  // group. A group that was forgotten there is begun again, which costs time alone.
  uint32_t find(uint64_t count, int distance, int nearest) {
    const int hash = distance / (Mismatch::kStep / 2) + (nearest & 1);
    uint32_t& last = last_[static_cast<unsigned>(hash) % std::size(last_)];
    if (last != kNone) {
      const Group& group = groups[last];
      if (group.distance == distance && group.nearest == nearest && group.count == count) {
        return last;
      }
    }
    last = static_cast<uint32_t>(groups.size());
    groups.push_back({count, distance, nearest, 0, static_cast<int16_t>(nearest)});
    return last;
  }

  uint32_t last_[256];
};

// Prices of classes by how often each is used, in 4096ths of a bit.
class Prices {
 public:
  // For classes within kReach of the groups' nearest ones, and for 0.
  explicit Prices(const std::vector<Group>& groups) {
    int least = 0, most = 0;
    for (const Group& group : groups) {
      least = std::min(least, group.nearest - kReach);
      most = std::max(most, group.nearest + kReach);
    }
    first_ = prices_ + kMaxClass + least;
    end_ = prices_ + kMaxClass + most + 1;
  }

  // Sets the prices by the classes that the groups have now; `scales` is the number of all scales.
  void learn(const std::vector<Group>& groups, size_t scales) {
    std::fill(first_, end_, 0);
    for (const Group& group : groups) {
      prices_[group.chosen + kMaxClass] += static_cast<int>(group.scales);
    }
    const int log_total = log2_floor_quickly(scales);
    const int unused = log_total + kNew;
    cheapest_ = unused;
    to_learn_ = 0;
    for (int* price = first_; price < end_; ++price) {
      const auto uses = static_cast<uint64_t>(*price);
      *price = uses == 0 ? unused : log_total - log2_floor_quickly(uses);
      cheapest_ = std::min(cheapest_, *price);
      to_learn_ += uses == 0 ? 0 : kNew;
    }
  }

  uint64_t of(int c) const { return static_cast<uint64_t>(prices_[c + kMaxClass]); }
  uint64_t cheapest() const { return static_cast<uint64_t>(cheapest_); }
  // The cost for an adaptive coder of learning which classes are used.
  uint64_t to_learn() const { return to_learn_; }

 private:
  static constexpr int kNew = 4 * kOctave;

  int prices_[2 * kMaxClass + 1];  // [class + kMaxClass]
  int *first_, *end_;              // the range that is set
  int cheapest_;
  uint64_t to_learn_;
};

// Finds the best class of one scale.
class Search {
 public:
  Search(const Prices& prices, uint64_t count, int distance, int unit)
      : prices_(prices), count_(count), distance_(distance), unit_(unit) {}

  // Looks around `middle`, the class nearest to the scale. Of classes with the same cost it takes
  // the least, but 0 only if that costs less than all those around `middle`.
  void run(int middle) {
    take(middle, count_ * mismatch(excess(middle)) + prices_.of(middle));
    bool is_open = true;
    for (int c = middle - 1; is_open && c >= middle - kReach; --c) {
      is_open = consider(c, std::less_equal<>()) || excess(c) > 0;
    }
    const bool is_open_below = is_open;
    is_open = true;
    for (int c = middle + 1; is_open && c <= middle + kReach; ++c) {
      is_open = consider(c, std::less<>()) || excess(c) < 0;
    }
    if (middle > 0 ? is_open_below : is_open) consider(0, std::less<>());
  }

  uint64_t cost;
  int16_t chosen;

 private:
  int excess(int c) const { return c * unit_ - distance_; }

  void take(int c, uint64_t price) {
    cost = price;
    chosen = static_cast<int16_t>(c);
  }

  // Tries class c; returns whether classes that lose more may still cost less than the best one so
  // far.
  template <typename Order>
  bool consider(int c, Order order) {
    const uint64_t loss = count_ * mismatch(excess(c));
    if (loss + prices_.cheapest() > cost) return false;
    const uint64_t price = loss + prices_.of(c);
    if (order(price, cost)) take(c, price);
    return true;
  }

  const Prices& prices_;
  const uint64_t count_;
  const int distance_, unit_;
};

}  // namespace

uint64_t choose_classes(const Scales& scales, int center, int unit, std::vector<int16_t>& classes) {
  constexpr int kRounds = 2;
  Groups all(scales, center, unit);
  Prices prices(all.groups);
  uint64_t cost = 0;
  bool is_new = true;
  for (int round = 0; round < kRounds && is_new; ++round) {
    prices.learn(all.groups, all.of_scale.size());
    cost = prices.to_learn();
    is_new = false;
    for (Group& group : all.groups) {
      Search search(prices, group.count, group.distance, unit);
      search.run(group.nearest);
      cost += search.cost * group.scales;
      is_new |= group.chosen != search.chosen;
      group.chosen = search.chosen;
    }
  }
  classes.resize(all.of_scale.size());
  std::transform(all.of_scale.begin(), all.of_scale.end(), classes.begin(),
                 [&](uint32_t group) { return all.groups[group].chosen; });
  return cost;
}

uint32_t choose_row_length(size_t row) {
  constexpr size_t kShort = 128, kLong = 8192, kDefault = 1024;
  if (row == 0) return kDefault;
  if (row < kShort) return static_cast<uint32_t>((kShort + row - 1) / row * row);
  return static_cast<uint32_t>(row <= kLong ? row : kDefault);
}

}  // namespace bf16codecs::grid
