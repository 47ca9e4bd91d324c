#include "bindings/zstd_hooks.h"

#include <nanobind/nanobind.h>

#include <cstring>
#include <new>
#include <string>

#include "bindings/gil.h"
#include "format/errors.h"
#include "format/zstd_frame.h"

namespace nb = nanobind;

namespace bf16codecs {
namespace {

nb::object view(const uint8_t* bytes, size_t size, int flags) {
  char* memory = const_cast<char*>(reinterpret_cast<const char*>(bytes));
  return nb::steal(PyMemoryView_FromMemory(memory, static_cast<Py_ssize_t>(size), flags));
}

// numcodecs releases the lock while it works.
nb::object call_numcodecs(const char* name, const nb::object& first, const nb::object& second) {
  const nb::object function = nb::module_::import_("numcodecs.zstd").attr(name);
  PyObject* const result = wait_if_unwound([&] {
    return PyObject_CallFunctionObjArgs(function.ptr(), first.ptr(), second.ptr(), nullptr);
  });
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

size_t compress(const uint8_t* plane, size_t n, int level, uint8_t* out, size_t capacity) {
  const HeldGil held;
  const nb::object compressed =
      call_numcodecs("compress", view(plane, n, PyBUF_READ), nb::int_(level));
  const nb::bytes bytes = nb::cast<nb::bytes>(compressed);
  if (bytes.size() > capacity) return 0;
  std::memcpy(out, bytes.data(), bytes.size());
  return bytes.size();
}

void decompress(const uint8_t* payload, size_t size, uint8_t* plane, size_t n) {
  check_zstd_plane(payload, size, n);
  const HeldGil held;
  try {
    call_numcodecs("decompress", view(payload, size, PyBUF_READ), view(plane, n, PyBUF_WRITE));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError) && !error.matches(PyExc_ValueError)) throw;
    const std::string why = nb::str(error.value()).c_str();
    if (why.find("Allocation error") != std::string::npos) throw std::bad_alloc();
    throw CorruptDataError("Zstandard plane: " + why);
  }
}

}  // namespace

Zstd zstd_hooks() {
  return {compress, decompress};
}

}  // namespace bf16codecs
