#include "bindings/environment.h"

#include <nanobind/nanobind.h>

#include <cstdlib>
#include <string>

#include "kernels/dispatch.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace bf16codecs {
namespace {

// The value of a variable. Empty means unset, since many shells and services cannot unset one.
std::string value_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

void warn(const char* name, const std::string& value, const std::string& what) {
  constexpr size_t kShown = 80;
  const auto shown =
      nb::repr(nb::steal(PyUnicode_DecodeFSDefault(value.substr(0, kShown).c_str())));
  const std::string text = std::string(name) + " is " + shown.c_str() + ", " + what;
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 2) != 0) throw nb::python_error();
}

}  // namespace

void warn_of_environment() {
  const std::string isa = value_of("BF16CODECS_ISA");
  if (!isa.empty() && isa != kernels().name) {
    std::string names;
    for (const Kernels* set : available_kernels()) {
      names += (names.empty() ? "" : ", ") + std::string(set->name);
    }
    warn("BF16CODECS_ISA", isa,
         "which this machine does not have: it has " + names + "; " + kernels().name + " is used");
  }
  const std::string threads = value_of("BF16CODECS_NUM_THREADS");
  if (!threads.empty() && parse_threads(threads.c_str()) == 0) {
    warn("BF16CODECS_NUM_THREADS", threads,
         "not a number from 1 to " + std::to_string(kMaxThreads) + "; " +
             std::to_string(get_num_threads()) + " is used, one thread for each processor");
  }
}

}  // namespace bf16codecs
