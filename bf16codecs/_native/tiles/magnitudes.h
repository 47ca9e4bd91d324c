#pragma once

// The encoder's estimates of scales, by sums of magnitudes. Every magnitude is rounded to an
// integer before it is added, so that the sums, and the encoder's bytes, are the same on every
// platform.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grid/keys.h"
#include "kernels/magnitudes.h"

namespace bf16codecs::tiles {

// Estimates the exponent of the standard deviation of keys that are Gaussian: one below the largest
// exponent that is not rare.
int typical_exponent(const grid::KeyFormat& format, const uint16_t* keys, size_t n);

// |x| as a number, for keys near an exponent. Far smaller ones are 0, and far larger ones saturate,
// so that one of them, or an infinity, does not hide all others.
class Magnitudes {
 public:
  Magnitudes(const grid::KeyFormat& format, int exponent);

  // Sums n magnitudes, each times its weight if there are weights, and counts keys that are not
  // zero.
  MagnitudeSum sum(const uint16_t* keys, size_t n, const float* weights) const;
  // Adds n magnitudes, each times the weight, to n sums. These hold kMaxAdded additions: 2^31.
  void add_to(const uint16_t* keys, size_t n, float weight, uint32_t* sums) const;
  static constexpr size_t kMaxAdded = 128;
  static constexpr float kUnit = 1 << 16;  // a magnitude of 1 at the exponent

  // log2 of a Gaussian's standard deviation, in 4096ths of an octave, from a sum of magnitudes.
  int log_scale(uint64_t sum, uint64_t count) const;

 private:
  const MagnitudeKernels* kernels_;
  int exponent_;
  MagnitudeShape shape_;
};

// The scale of keys that are not all zero, but so faint beside the others that their magnitudes
// are.
int faint_scale(const grid::KeyFormat& format, const std::vector<uint16_t>& keys);

// log2 of a weight above 2^-16, in 4096ths of an octave.
int log_weight(float weight);

// The weights that make magnitudes of scales with these classes alike: 2^(-scale / 16), where a
// class is worth 2^step 16ths of an octave, within 32 octaves. Magnitudes further away are not
// distinguished.
std::vector<float> inverse_scales(const std::vector<int16_t>& classes, unsigned step);

// Chooses log2 of the step of classes for scales that were estimated from `count` items each: finer
// classes would cost more than the estimates are worth.
uint8_t class_step(size_t count);

}  // namespace bf16codecs::tiles
