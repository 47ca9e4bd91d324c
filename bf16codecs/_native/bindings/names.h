#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>

#include "format/names.h"

namespace bf16codecs {

// The member of `names` with this number. Throws std::invalid_argument for an unknown number.
template <typename Number, size_t n>
Number number_from(const char* what, const Named<Number> (&names)[n], int number) {
  if (const auto found = find_number(names, number)) return *found;
  throw std::invalid_argument(std::string(what) + " is " + std::to_string(number) +
                              ", and must be " + listed(names));
}

// Publishes the names and numbers of format/names.h, and constants of the format, as attributes of
// the module. bf16codecs/_core.pyi declares them.
void publish_names(nanobind::module_& module);

}  // namespace bf16codecs
