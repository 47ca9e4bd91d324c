// The pool's interface without threads, for the HDF5 plugin: a program that reads HDF5 did not ask
// for threads, and libhdf5 may unload the plugin at any time, from under a pool's feet.

#include "threads/pool.h"

namespace bf16codecs {

unsigned get_num_threads() { return 1; }

void set_num_threads(unsigned) {}

void parallel_for(size_t n, const std::function<void(size_t)>& task) {
  for (size_t i = 0; i < n; ++i) task(i);
}

}  // namespace bf16codecs
