#pragma once

#include <cstddef>
#include <functional>

#include "workspace.h"

namespace bf16codecs {

// How many threads may work in the codecs at once, over all calls together. The first value is
// BF16CODECS_NUM_THREADS, or the number of processors this process may run on.
unsigned get_num_threads();
void set_num_threads(unsigned n);

// The largest number of threads.
inline constexpr unsigned kMaxThreads = 1024;

// The number of threads that a text says, 0 if it says none from 1 to kMaxThreads.
unsigned parse_threads(const char* text);

using Task = std::function<void(size_t i, Workspace& workspace)>;

// Runs tasks 0 ... n - 1, started in that order, on this thread and on idle ones of a pool that all
// calls share. Each thread works in its own workspace. A call made while the pool is busy runs on
// its own thread alone, so that a caller's threads (zarr's, dask's) do not multiply. After an
// exception no further task starts; of several, the one of the lowest index is rethrown. Safe after
// fork().
void parallel_for(size_t n, const Task& task);

}  // namespace bf16codecs
