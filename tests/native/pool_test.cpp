// The thread pool under load: many callers, exceptions, nested calls, a limit that changes, forks.
// Built with BF16CODECS_SANITIZE=thread, ThreadSanitizer watches it.

#include "threads/pool.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"
#include "codec.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace bf16codecs::test {
namespace {

constexpr unsigned kCallers = 4, kRounds = 150, kForks = 20;

#if defined(__SANITIZE_THREAD__)
constexpr bool kChildHasThreads = false;  // ThreadSanitizer knows no threads of a forked child
#else
constexpr bool kChildHasThreads = true;
#endif

// Fills the workspace with a mark and finds it again: nobody else has the same one meanwhile.
void use(Workspace& workspace, size_t size, uint8_t mark) {
  uint8_t* const planes = workspace.planes.at_least(size);
  std::fill_n(planes, size, mark);
  std::this_thread::yield();
  CHECK(std::count(planes, planes + size, mark) == static_cast<ptrdiff_t>(size));
}

void test_each_task_runs_once(size_t n, Random& random) {
  std::vector<unsigned> runs(n);
  const size_t size = 1 + random.below(5000);
  parallel_for(n, [&](size_t i, Workspace& workspace) {
    use(workspace, size + i, static_cast<uint8_t>(i));
    ++runs[i];
  });
  CHECK(std::count(runs.begin(), runs.end(), 1u) == static_cast<ptrdiff_t>(n));
}

void test_nested_calls(size_t n) {
  std::atomic<size_t> sum{0};
  parallel_for(n, [&](size_t i, Workspace& outer) {
    uint8_t* const mine = outer.words.at_least(100);
    std::fill_n(mine, 100, static_cast<uint8_t>(i));
    parallel_for(3, [&](size_t k, Workspace& inner) {
      CHECK(&inner != &outer);
      use(inner, 100, static_cast<uint8_t>(k));
      sum += k;
    });
    CHECK(mine[99] == static_cast<uint8_t>(i));
  });
  CHECK(sum == 3 * n);
}

// Of several that fail, the call reports one; all before the first that fails have run.
void test_exceptions(size_t n, Random& random) {
  const size_t first = random.below(n);
  std::atomic<size_t> runs{0};
  std::string message;
  try {
    parallel_for(n, [&](size_t i, Workspace& workspace) {
      use(workspace, 100, static_cast<uint8_t>(i));
      if (i >= first) throw std::runtime_error(std::to_string(i));
      ++runs;
    });
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  CHECK(message == std::to_string(first));
  CHECK(runs == first);
}

// Blocks that several threads encode find their offsets in the frame, and every call gets the same.
void test_frames(const Bytes& raw, const Bytes& expected, const EncodeOptions& options) {
  Bytes frame(static_cast<size_t>(encode_room(raw.size(), options))), out(raw.size());
  const size_t size = encode(raw.data(), raw.size(), options, nullptr, frame.data());
  CHECK(size == expected.size() && std::equal(expected.begin(), expected.end(), frame.begin()));
  const FrameIndex index = read_index(frame.data(), size);
  decode_frame(index, frame.data() + index.offsets[0], nullptr, nullptr, out.data());
  CHECK(out == raw);
}

void test_caller(unsigned seed, const Bytes& raw, const Bytes& frame,
                 const EncodeOptions& options) {
  Random random(seed);
  for (unsigned round = 0; round < kRounds; ++round) {
    test_each_task_runs_once(random.below(40), random);
    test_nested_calls(1 + random.below(6));
    test_exceptions(1 + random.below(20), random);
    if (round % 10 == 0) test_frames(raw, frame, options);
  }
}

// Holds `depth` workspaces at once, makes each of at least `size` bytes, and returns how many had
// that size already.
unsigned hold(unsigned depth, size_t size) {
  unsigned found = 0;
  parallel_for(depth == 0 ? 0 : 1, [&](size_t, Workspace& workspace) {
    found = workspace.size() >= size;
    workspace.planes.at_least(size);
    found += hold(depth - 1, size);
  });
  return found;
}

// Workspaces for blocks of the default size are kept, but few for larger blocks.
void test_kept_workspaces() {
  constexpr unsigned kIdle = 32;
  constexpr size_t kDefault = size_t{3} << 20, kLargest = size_t{21} << 20;
  set_num_threads(1);
  CHECK(hold(kIdle, kDefault) == 0);
  CHECK(hold(kIdle, kDefault) == kIdle);
  CHECK(hold(kIdle, kLargest) == 0);
  CHECK(hold(kIdle, kLargest) == 4);
}

// A child has no workers of its parent, and the parent's other threads work on.
void test_fork() {
#if defined(__unix__) || defined(__APPLE__)
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (!kChildHasThreads) set_num_threads(1);
    Random random(7);
    for (unsigned round = 0; round < 3; ++round) test_each_task_runs_once(20, random);
    test_nested_calls(4);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
}

void test_pool() {
  test_kept_workspaces();
  Random random(1);
  Bytes raw = random.bytes(200001);
  for (size_t i = 1; i < raw.size(); i += 2) raw[i] = static_cast<uint8_t>(60 + raw[i] % 4);
  EncodeOptions options;
  options.codec = Codec::arithmetic;
  options.block_log2 = 12;
  set_num_threads(1);
  Bytes frame(static_cast<size_t>(encode_room(raw.size(), options)));
  frame.resize(encode(raw.data(), raw.size(), options, nullptr, frame.data()));

  set_num_threads(4);
  CHECK(get_num_threads() == 4);
  std::vector<std::thread> callers;
  for (unsigned c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] { test_caller(c, raw, frame, options); });
  }
  for (unsigned round = 0; round < kForks; ++round) {
    set_num_threads(1 + round % 6);
    test_fork();
  }
  for (std::thread& caller : callers) caller.join();
  std::printf("pool: %u callers, %u rounds, %u forks\n", kCallers, kRounds, kForks);
}

}  // namespace
}  // namespace bf16codecs::test

int main() {
  bf16codecs::test::test_pool();
  return 0;
}
