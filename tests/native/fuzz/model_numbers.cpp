#include "model_numbers.h"

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

}  // namespace bf16codecs::fuzz
