#pragma once

// A mutex and a condition to wait for. WebAssembly without threads has neither in its standard
// library: there, nothing is locked, and every awaited condition already holds.

#if !defined(__wasm__) || defined(__wasm_atomics__)
#include <condition_variable>
#include <mutex>
#endif

namespace bf16codecs {

#if !defined(__wasm__) || defined(__wasm_atomics__)
using Mutex = std::mutex;
using Lock = std::unique_lock<std::mutex>;
using Condition = std::condition_variable;
#else
struct Mutex {};
struct Lock {
  explicit Lock(Mutex&) {}
  ~Lock() {}  // avoids warnings about unused variables
};
struct Condition {
  template <typename IsSo>
  void wait(Lock&, IsSo) {}
  void notify_all() {}
};
#endif

}  // namespace bf16codecs
