#pragma once

// Python's buffers and bytes objects in C++.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string>

#include "format/errors.h"
#include "huge_pages.h"
#include "options.h"

namespace bf16codecs {

namespace nb = nanobind;

// A contiguous buffer of bytes, held as long as this object lives.
class Buffer {
 public:
  Buffer(nb::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nb::python_error();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { PyBuffer_Release(&view_); }

  uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }
  std::span<const uint8_t> bytes() const { return {data(), size()}; }

 private:
  Py_buffer view_;
};

struct Source : Buffer {
  explicit Source(nb::handle object) : Buffer(object, PyBUF_SIMPLE) {}
};
// A source, or None.
class OptionalSource {
 public:
  explicit OptionalSource(nb::handle object) {
    if (!object.is_none()) source_.emplace(object);
  }

  explicit operator bool() const { return source_.has_value(); }
  const uint8_t* data() const { return source_ ? source_->data() : nullptr; }
  OptionalBytes bytes() const { return source_ ? OptionalBytes(source_->bytes()) : std::nullopt; }

 private:
  std::optional<Source> source_;
};

struct Target : Buffer {
  explicit Target(nb::handle object) : Buffer(object, PyBUF_WRITABLE) {}
};

// A new bytes object of `size` bytes, to be filled before it is returned to Python.
class NewBytes {
 public:
  explicit NewBytes(uint64_t size) {
    if (size > PY_SSIZE_T_MAX) throw std::bad_alloc();
    object_ = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (object_ == nullptr) throw nb::python_error();
    advise_huge_pages(data(), size);
  }
  NewBytes(const NewBytes&) = delete;
  NewBytes& operator=(const NewBytes&) = delete;
  ~NewBytes() { Py_XDECREF(object_); }

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(PyBytes_AsString(object_)); }
  nb::bytes shrunk_to(size_t size) {
#if defined(Py_LIMITED_API)
    // The stable ABI lacks _PyBytes_Resize, but io.BytesIO calls it, without a copy if this is the
    // only reference.
    const nb::object file = nb::module_::import_("io").attr("BytesIO")(whole());
    file.attr("truncate")(size);
    return nb::cast<nb::bytes>(file.attr("getvalue")());
#else
    if (_PyBytes_Resize(&object_, static_cast<Py_ssize_t>(size)) != 0) throw nb::python_error();
    return whole();
#endif
  }
  nb::bytes whole() {
    PyObject* object = object_;
    object_ = nullptr;
    return nb::steal<nb::bytes>(object);
  }

 private:
  PyObject* object_;
};

inline void check_room(const Target& out, size_t wanted) {
  if (out.size() != wanted) {
    throw nb::value_error(
        ("out has " + counted(out.size(), "byte") + ", the data have " + std::to_string(wanted))
            .c_str());
  }
}

}  // namespace bf16codecs
