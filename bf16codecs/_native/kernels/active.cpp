// The kernels in use. This is a file of its own so that a test program can link another choice.

#include <cstdlib>
#include <string_view>

#include "kernels/dispatch.h"

namespace bf16codecs {
namespace {

// BF16CODECS_ISA names a kernel set to use instead of the fastest one. A name that is unknown, or
// not available here, is ignored: a variable set for a fleet must not stop its older machines.
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
