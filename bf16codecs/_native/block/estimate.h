#pragma once

// Estimates of how many bytes items take as planes. Samples make them rather too small.

#include <cstddef>
#include <cstdint>

#include "format/layout.h"

namespace bf16codecs {

// The approximate size of the first planes if each is coded alone: constant, stored, or by its
// order-0 entropy and the lanes' states. It is found by so many samples, or by all items if
// `samples` is 0 or they are few. The planes have room for n symbols each.
size_t size_alone(const Layout& layout, const uint8_t* items, size_t n, size_t first_planes,
                  size_t samples, uint8_t* const planes[]);

// About the size of all planes if those after plane 0 have no symbols for its zeros; 0 if there are
// few zeros.
size_t size_sparse(const Layout& layout, const uint8_t* items, size_t n, uint8_t* const planes[]);

}  // namespace bf16codecs
