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

constexpr int kHalfLog2E = 2955;  // log2(e) / 2 in 4096ths

// Bits lost an item, in 4096ths, where a Gaussian's scale is taken too large or too small.
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

  // One of all distances to which every class loses the same.
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

constexpr int kReach = 3;  // how far a class may be from the one that is nearest to the scale

// Prices of classes by how often each is used, in 4096ths of a bit.
class Prices {
 public:
  // Of classes that are near these, and of 0.
  explicit Prices(const std::vector<int16_t>& nearest) {
    const auto [least, most] = std::minmax_element(nearest.begin(), nearest.end());
    first_ = prices_ + kMaxClass + std::min(*least - kReach, 0);
    end_ = prices_ + kMaxClass + std::max(*most + kReach, 0) + 1;
  }

  // Finds them, where these are the classes that are used.
  void learn(const std::vector<int16_t>& classes) {
    std::fill(first_, end_, 0);
    for (const int16_t c : classes) ++prices_[c + kMaxClass];
    const int log_total = log2_floor_quickly(classes.size());
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
  // What an adaptive coder pays to learn them.
  uint64_t to_learn() const { return to_learn_; }

 private:
  static constexpr int kNew = 4 * kOctave;

  int prices_[2 * kMaxClass + 1];  // [class + kMaxClass]
  int *first_, *end_;              // those that are set
  int cheapest_;
  uint64_t to_learn_;
};

// A scale's class, and what it and the bits that it loses cost.
struct Choice {
  uint64_t cost;
  int16_t chosen;
};

// The best class of one scale.
class Search : public Choice {
 public:
  Search(const Prices& prices, uint64_t count, int distance, int unit)
      : prices_(prices), count_(count), distance_(distance), unit_(unit) {}

  // Looks around the class nearest to the scale, `middle`. Of classes that cost the same, the least
  // is taken, but 0 only if it costs less than those around `middle`.
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

 private:
  int excess(int c) const { return c * unit_ - distance_; }

  void take(int c, uint64_t price) {
    cost = price;
    chosen = static_cast<int16_t>(c);
  }

  // Returns whether classes that lose more than c may still cost less than the best one so far.
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

// The best classes of many scales. Columns have the same count, and there may be thousands of them:
// what was found for one is kept for those that lose the same bits.
class Searches {
 public:
  Searches(const Prices& prices, int unit) : prices_(prices), unit_(unit) {}

  Choice of(uint64_t count, int distance, int middle) {
    const int typical = Mismatch::typical(distance);
    const int place = typical / (Mismatch::kStep / 2) + (middle & 1);
    Found& found = found_[static_cast<unsigned>(place) % std::size(found_)];
    if (found.middle != middle || found.distance != typical || found.count != count) {
      Search search(prices_, count, typical, unit_);
      search.run(middle);
      found = {search, count, typical, middle};
    }
    return found.choice;
  }

 private:
  struct Found {
    Choice choice;
    uint64_t count;
    int distance, middle = 2 * kMaxClass;  // which is none
  };

  const Prices& prices_;
  const int unit_;
  Found found_[256];
};

// What is nearest to each scale, within limits.
std::vector<int16_t> nearest_classes(const Scales& scales, int center, int unit) {
  const int log_unit = std::countr_zero(static_cast<unsigned>(unit));
  std::vector<int16_t> classes(scales.count.size());
  for (size_t i = 0; i < classes.size(); ++i) {
    if (scales.count[i] == 0) continue;
    const int away = scales.log_scale[i] - center;
    const int steps = (std::abs(away) + unit / 2) >> log_unit;
    classes[i] = static_cast<int16_t>(
        std::clamp(away < 0 ? -steps : steps, kReach - kMaxClass, kMaxClass - kReach));
  }
  return classes;
}

}  // namespace

uint64_t choose_classes(const Scales& scales, int center, int unit, std::vector<int16_t>& classes) {
  constexpr int kRounds = 2;
  const std::vector<int16_t> nearest = nearest_classes(scales, center, unit);
  Prices prices(nearest);
  classes = nearest;
  uint64_t cost = 0;
  bool is_new = true;
  for (int round = 0; round < kRounds && is_new; ++round) {
    prices.learn(classes);
    cost = prices.to_learn();
    is_new = false;
    Searches searches(prices, unit);
    for (size_t i = 0; i < classes.size(); ++i) {
      const Choice best = searches.of(scales.count[i], scales.log_scale[i] - center, nearest[i]);
      cost += best.cost;
      is_new |= classes[i] != best.chosen;
      classes[i] = best.chosen;
    }
  }
  return cost;
}

uint32_t choose_run(size_t row) {
  constexpr size_t kShort = 128, kLong = 8192, kDefault = 1024;
  if (row == 0) return kDefault;
  if (row < kShort) return static_cast<uint32_t>((kShort + row - 1) / row * row);
  return static_cast<uint32_t>(row <= kLong ? row : kDefault);
}

}  // namespace bf16codecs::grid
