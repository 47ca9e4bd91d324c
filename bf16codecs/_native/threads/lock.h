#pragma once

// A mutex and a condition to wait for. WebAssembly has no threads unless it is built for them, and
// its standard library then has neither: there, nothing is locked, and what is waited for is so.

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
  ~Lock() {}  // so that it counts as used
};
struct Condition {
  template <typename IsSo>
  void wait(Lock&, IsSo) {}
  void notify_all() {}
};
#endif

}  // namespace bf16codecs
