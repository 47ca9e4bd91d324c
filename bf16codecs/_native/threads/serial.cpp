// The pool's interface without threads, for the C library, the HDF5 plugin and WebAssembly. Their
// callers do not expect threads, and libhdf5 may unload the plugin while a pool's workers would
// still run its code.

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "threads/pool.h"

namespace bf16codecs {
namespace {

// Keeps one workspace from call to call, until the plugin is unloaded. Without a lock, which a fork
// could leave locked, and without thread-local objects, whose destructors would have to outlive the
// plugin, the plugin may be unloaded, and needs no -z nodelete.
class Keeper {
 public:
  ~Keeper() { delete kept_.exchange(nullptr); }

  std::unique_ptr<Workspace> borrow() {
    Workspace* const kept = kept_.exchange(nullptr);
    return kept != nullptr ? std::unique_ptr<Workspace>(kept) : std::make_unique<Workspace>();
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    delete kept_.exchange(workspace.release());
  }

 private:
  std::atomic<Workspace*> kept_{nullptr};
};

Keeper keeper;

}  // namespace

unsigned get_num_threads() {
  return 1;
}

void set_num_threads(unsigned) {}

void parallel_for(size_t n, const Task& task) {
  std::unique_ptr<Workspace> workspace = keeper.borrow();
  for (size_t i = 0; i < n; ++i) task(i, *workspace);
  keeper.give_back(std::move(workspace));
}

}  // namespace bf16codecs
