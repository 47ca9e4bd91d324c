// The kernels in use. In a file of its own, so that a test program can link another choice instead.

#include <cstdlib>
#include <string_view>

#include "kernels/dispatch.h"

namespace bf16codecs {
namespace {

// BF16CODECS_ISA lowers the choice. A name that is unknown or not available here is the best
// one: a variable set for a fleet must not stop its older machines.
const Kernels& choose() {
  const std::vector<const Kernels*> sets = available_kernels();
  if (const char* wanted = std::getenv("BF16CODECS_ISA")) {
    for (const Kernels* set : sets) {
      if (std::string_view(wanted) == set->name) return *set;
    }
  }
  return *sets.back();
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace bf16codecs
