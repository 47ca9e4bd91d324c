#pragma once

// Python's global interpreter lock, in threads that may outlive the interpreter.
//
// At exit, Python before 3.14 ends daemon threads that wait for the lock by pthread_exit, which
// unwinds the stack. In a destructor, such as those of nanobind's guards, unwinding aborts the
// process ("terminate called without an active exception"). With the guards below, such a thread
// waits until the process ends, as in Python 3.14.

#include <nanobind/nanobind.h>

#include <chrono>
#include <thread>

namespace bf16codecs {

// Calls a function of Python that takes the lock, and so throws nothing but the unwinding.
template <typename Function>
auto wait_if_unwound(Function function) noexcept {
  try {
    return function();
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

// Releases the lock while this object lives.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil() {
    wait_if_unwound([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

// Holds the lock while this object lives, in a thread that Python need not know.
class HeldGil {
 public:
  HeldGil() : state_(wait_if_unwound(PyGILState_Ensure)) {}
  HeldGil(const HeldGil&) = delete;
  HeldGil& operator=(const HeldGil&) = delete;
  ~HeldGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace bf16codecs
