#pragma once

// Python's global interpreter lock, in threads that may outlive the interpreter.
//
// When the interpreter exits, Python before 3.14 ends a daemon thread that asks for the lock by
// pthread_exit, which unwinds the thread's stack; from a destructor, as nanobind's guards have it,
// that aborts the process ("terminate called without an active exception"). Here such a thread
// waits until the process has ended, as it does from Python 3.14 on.

#include <nanobind/nanobind.h>

#include <chrono>
#include <thread>

namespace bf16codecs {

// Calls a function of Python's that asks for the lock, and throws nothing but the unwinding.
template <typename Function>
auto wait_if_unwound(Function function) noexcept {
  try {
    return function();
  } catch (...) {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

// Lets other threads have the lock while this object lives.
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

// Has the lock while this object lives, in a thread that Python may not know.
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
