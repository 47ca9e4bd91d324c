#include "kernels/sparse_tables.h"

namespace bf16codecs {
namespace {

constexpr SparseTables make_tables() {
  SparseTables tables{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned rank = 0;
    for (unsigned i = 0; i < 8; ++i) {
      if ((mask >> i & 1) == 0) {
        tables.expand[mask] |= uint64_t{128} << 8 * i;
      } else {
        tables.expand[mask] |= uint64_t{rank} << 8 * i;
        tables.pack[mask] |= uint64_t{i} << 8 * rank;
        ++rank;
      }
    }
  }
  return tables;
}

}  // namespace

constexpr SparseTables kSparseTables = make_tables();

}  // namespace bf16codecs
