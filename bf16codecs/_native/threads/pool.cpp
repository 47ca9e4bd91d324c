#include "threads/pool.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace bf16codecs {
namespace {

unsigned processors() {
#if defined(__linux__)
  cpu_set_t set;  // taskset and containers allow fewer than hardware_concurrency()
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  }
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

unsigned initial_threads() {
  if (const char* text = std::getenv("BF16CODECS_NUM_THREADS")) {
    if (const unsigned n = parse_threads(text)) return n;
  }
  return processors();
}

// At most this many idle workspaces are kept that are larger than blocks of the default size need,
// but for a few modes (4.4 MiB, where decoding keeps a log). Without this limit, 32 of the largest
// would hold 1.7 GiB; with it, 32 hold at most 28 x 5 + 4 x 54 = 356 MiB.
constexpr ptrdiff_t kLargeKept = 4;

bool is_large(const Workspace& workspace) {
  return workspace.size() > size_t{5} << 20;
}

// One call of parallel_for.
class Job {
 public:
  Job(size_t n, const Task& task) : n_(n), task_(task) {}

  bool has_work() const { return next_.load(std::memory_order_relaxed) < n_; }

  void work(Workspace& workspace) noexcept {
    for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) {
      try {
        task_(i, workspace);
      } catch (...) {
        fail(i, std::current_exception());
      }
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  unsigned helpers = 0;  // workers inside work(); under the pool's mutex

 private:
  void fail(size_t i, std::exception_ptr error) {
    next_.store(n_, std::memory_order_relaxed);
    const std::lock_guard lock(error_mutex_);
    if (!error_ || i < error_index_) error_ = error, error_index_ = i;
  }

  const size_t n_;
  const Task& task_;
  std::atomic<size_t> next_{0};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  size_t error_index_ = 0;
};

class Pool {
 public:
  Pool() { keep_workspaces(); }

  // The pool of a forked child, with the limit and the idle workspaces of the parent's pool. The
  // parent's mutex must have been held during the fork.
  explicit Pool(Pool& parent) : limit_(parent.limit_), idle_(std::move(parent.idle_)) {}

  void run(Job& job, size_t n) {
    // Allocate before counting this thread: an exception after that would lose the count and the
    // workspace.
    std::list<Job*> entry{&job};
    std::unique_lock lock(mutex_);
    Workspace workspace = borrow();
    ++active_;
    const size_t wanted = std::min<size_t>(n - 1, limit_ > active_ ? limit_ - active_ : 0);
    if (wanted != 0) {
      while (workers_ < wanted && start_worker()) ++workers_;
      jobs_.splice(jobs_.end(), entry);
      for (size_t i = 0; i < wanted; ++i) work_to_do_.notify_one();
    }
    lock.unlock();
    job.work(workspace);
    lock.lock();
    give_back(workspace);
    --active_;
    if (wanted != 0) jobs_.remove(&job);
    if (!jobs_.empty()) work_to_do_.notify_one();  // this thread no longer counts as active
    if (wanted != 0) {
      job_left_.wait(lock, [&] { return job.helpers == 0; });
    }
    lock.unlock();  // so that a workspace that is not kept is freed outside the mutex
  }

  // A single task needs no workers, and does not count as active.
  void run_alone(const Task& task) {
    struct Loan {
      Pool& pool;
      Workspace workspace;

      explicit Loan(Pool& from) : pool(from), workspace(from.locked_borrow()) {}
      ~Loan() {
        const std::lock_guard lock(pool.mutex_);
        pool.give_back(workspace);
      }
    };
    Loan loan(*this);
    task(0, loan.workspace);
  }

  unsigned limit() {
    const std::lock_guard lock(mutex_);
    return limit_;
  }
  void set_limit(unsigned n) {
    const std::lock_guard lock(mutex_);
    limit_ = n;
    keep_workspaces();
  }

  std::mutex& mutex() { return mutex_; }

 private:
  // Returns false if the system has no more threads or memory: the existing threads do the work.
  bool start_worker() noexcept {
    try {
      std::thread([this] { worker(); }).detach();
      return true;
    } catch (...) {
      return false;
    }
  }

  // Reserves idle workspaces for all threads that may work at once, and at least 32: more callers
  // may take turns, as the threads of zarr and dask do.
  void keep_workspaces() { idle_.reserve(std::max(limit_, 32u)); }

  Workspace borrow() {
    if (idle_.empty()) return {};
    Workspace workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }
  Workspace locked_borrow() {
    const std::lock_guard lock(mutex_);
    return borrow();
  }
  // A workspace that is not kept stays with the caller, which frees it outside the mutex.
  void give_back(Workspace& workspace) {
    if (idle_.size() == idle_.capacity()) return;
    if (is_large(workspace) && std::count_if(idle_.begin(), idle_.end(), is_large) >= kLargeKept) {
      return;
    }
    idle_.push_back(std::move(workspace));
  }

  Job* find_job() {
    if (active_ >= limit_) return nullptr;
    const auto found =
        std::find_if(jobs_.begin(), jobs_.end(), [](Job* job) { return job->has_work(); });
    return found == jobs_.end() ? nullptr : *found;
  }

  void worker() {
    for (;;) {
      std::unique_lock lock(mutex_);
      Job* job = nullptr;
      work_to_do_.wait(lock, [&] { return (job = find_job()) != nullptr; });
      Workspace workspace = borrow();
      ++active_;
      ++job->helpers;
      lock.unlock();
      job->work(workspace);
      lock.lock();
      give_back(workspace);
      --active_;
      if (--job->helpers == 0) job_left_.notify_all();
      lock.unlock();  // so that a workspace that is not kept is freed outside the mutex
    }
  }

  std::mutex mutex_;
  std::condition_variable work_to_do_, job_left_;
  std::list<Job*> jobs_;
  unsigned limit_ = initial_threads();
  unsigned active_ = 0;  // threads inside Job::work(), callers and workers
  size_t workers_ = 0;
  std::vector<Workspace> idle_;  // most recently used last: it may still be in a cache
};

// The pool is never destroyed: its workers wait in it until the process ends. A forked child lacks
// these workers, so it gets a new pool.
std::atomic<Pool*> the_pool{nullptr};

#if !defined(_WIN32)
void before_fork() {
  the_pool.load()->mutex().lock();
}
void after_fork_in_parent() {
  the_pool.load()->mutex().unlock();
}
void after_fork_in_child() {
  Pool* const old = the_pool.load();
  the_pool.store(new Pool(*old));
  old->mutex().unlock();
}
#endif

Pool& pool() {
  static std::once_flag once;
  std::call_once(once, [] {
    the_pool.store(new Pool);
#if !defined(_WIN32)
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
#endif
  });
  return *the_pool.load();
}

}  // namespace

unsigned parse_threads(const char* text) {
  unsigned n = 0;
  const char* const end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, n);
  return error == std::errc() && stopped == end && n <= kMaxThreads ? n : 0;
}

unsigned get_num_threads() {
  return pool().limit();
}

void set_num_threads(unsigned n) {
  pool().set_limit(n);
}

void parallel_for(size_t n, const Task& task) {
  if (n == 0) return;
  if (n == 1) return pool().run_alone(task);
  Job job(n, task);
  pool().run(job, n);
  job.rethrow();
}

}  // namespace bf16codecs
