#include "model_numbers.h"

#include <algorithm>

namespace bf16codecs::fuzz {

void NumberWriter::put(grid::AdaptiveInteger& model, int value, int least, int most) {
  const int reduced = least + static_cast<int>(static_cast<unsigned>(value - least) %
                                               static_cast<unsigned>(most - least + 1));
  put_or(model, reduced, value);
}

void NumberWriter::put_or(grid::AdaptiveInteger& model, int value, int wild) {
  model.put(coder_, wild_-- == 1 ? wild : value);
}

uint32_t NumberWriter::put_grid_head() {
  put_length(in_.u16());
  const uint32_t period = read_period();
  put_length(period);
  put(integers_.base, in_.u16(), 0, max_scale_);
  put(integers_.steps, in_.u8(), 0, 3);
  put(integers_.steps, in_.u8(), 0, 3);
  return period;
}

// A few numbers again and again: the changes to them, section by section, may add up to too much.
void NumberWriter::put_columns(uint32_t period) {
  if (period == 0) return;
  const bool change = in_.u8() % 4 == 0;
  put(integers_.steps, change, 0, 1);
  int16_t some[8];
  for (int16_t& number : some) number = static_cast<int16_t>(in_.u16());
  for (size_t i = 0; i < period; ++i) {
    put(integers_.column, some[i % std::size(some)], -grid::kMaxClass, grid::kMaxClass);
  }
}

// Seldom a long one, which takes most of an input's time.
uint32_t NumberWriter::read_period() {
  const uint8_t kind = in_.u8();
  return kind % 2 != 0 ? 0 : kind < 248 ? in_.u16() % 512 : in_.u16();
}

// Below 16 there is none but 0.
void NumberWriter::put_length(uint32_t length) {
  if (length < 16 && wild_ != 1) length = 0;
  put(integers_.lengths, static_cast<int>(length >> 15), 0, 0x7FFF);
  put(integers_.lengths, static_cast<int>(length & 0x7FFF), 0, 0x7FFF);
}

grid::RowScales read_rows(Reader& in, unsigned shift, bool has_offset, size_t n) {
  grid::RowScales scales;
  scales.offset = has_offset ? static_cast<int16_t>(in.u16()) : 0;
  const int most = 2 * (grid::kMaxClass >> shift);
  test::Random random(in.u16());
  scales.rows.resize(n);
  for (int16_t& row : scales.rows) {
    row = static_cast<int16_t>(static_cast<int>(random.below(unsigned(most) + 1)) - most / 2);
  }
  return scales;
}

void damage(Bytes& payload, unsigned n, test::Random& random) {
  constexpr size_t kFields = 96;
  for (; n != 0 && !payload.empty(); --n) {
    const size_t size = payload.size();
    const size_t near = random.below(2) == 0 ? std::min(kFields, size) : size;
    const unsigned kind = random.below(16);
    if (kind == 0) {
      payload.resize(size - random.below(std::min<size_t>(size, 40)));
    } else if (kind == 1) {
      payload.resize(size + 1 + random.below(80), random.byte());
    } else if (kind == 2) {
      payload[random.below(near)] = random.byte();
    } else {
      payload[random.below(near)] ^= static_cast<uint8_t>(1 << random.below(8));
    }
  }
}

}  // namespace bf16codecs::fuzz
