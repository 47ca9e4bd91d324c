#include "grid/lags.h"

#include <algorithm>

namespace bf16codecs::grid {

int64_t root_up(int64_t x) {
  int64_t root = 1;
  while (root * root < x) ++root;
  return root;
}

size_t first_outstanding(const std::vector<int64_t>& agreements, int64_t least) {
  std::vector<int64_t> sorted(agreements);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const int64_t usual = *middle;
  const int64_t most = *std::max_element(agreements.begin(), agreements.end()) - usual;
  if (most <= least) return 0;
  for (size_t i = 0; i < agreements.size(); ++i) {
    // Four fifths of the most are enough: a multiple of the length may agree a little more than the
    // length itself.
    if ((agreements[i] - usual) * 5 >= most * 4) return (i + 1) * kLagUnit;
  }
  return 0;
}

}  // namespace bf16codecs::grid
