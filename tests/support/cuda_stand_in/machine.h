#pragma once

// A machine with GPUs whose memory is this process's, and whose kernels run on its processor.
//
// What a stream is given waits until somebody waits for it, as it may on a GPU: who reads results,
// or lets go of memory, without having waited is found out. Copies from and to memory that is not
// page-locked are done with when the call returns, as the real driver's are.

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api.h"
#include "image.h"

namespace stand_in {

struct Context;

struct Stream {
  explicit Stream(Context* of) : context(of) {}
  void add(std::function<void()> work);
  void run(std::size_t until);
  void run() { run(added); }

  Context* context;
  std::deque<std::function<void()>> waiting;
  std::size_t added = 0, done = 0;
};
using StreamPointer = std::shared_ptr<Stream>;

// The one of a device.
struct Context {
  int device;
  unsigned uses = 0;
  StreamPointer default_stream = std::make_shared<Stream>(this);
};

using Time = std::chrono::steady_clock::time_point;

struct Event {
  Context* context;
  StreamPointer stream;  // where it was recorded last, after how much
  std::size_t position = 0;
  std::shared_ptr<Time> time;  // when the stream came there; nothing if it keeps none
};

struct Block {
  std::size_t size;
  Context* context;  // nothing: page-locked memory
};

struct Library {
  Image image;
};

struct Kernel {
  const Library* library;
  std::string name;
  const std::vector<Parameter>* parameters;
};

// What tests ask for: the n-th next call of a function fails.
struct Failure {
  std::string function;
  long countdown = 0;
  Result result = kSuccess;
};

class Machine {
 public:
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Context>> contexts;
  std::map<Address, Block> blocks;
  std::map<void*, StreamPointer> streams;
  std::map<void*, std::unique_ptr<Event>> events;
  std::map<void*, std::unique_ptr<Library>> libraries;
  std::map<void*, std::unique_ptr<Kernel>> kernels;
  std::size_t memory = std::size_t{1} << 30;  // of each device
  unsigned arch = 90;                         // 10 times the compute capability
  Failure failure;
  std::map<std::string, long> calls;  // by function, without its version
  std::string misuse;                 // what was done that no program should do

  Machine();
  // Counts a call, and says how it fails.
  Result begin(const char* function);
  // Says what is wrong where the driver's results have no word for it.
  Result wrong(const std::string& what, Result result = kInvalidValue);
  std::size_t used(const Context* context) const;
  // With a context that nobody holds any more, all that was made in it is gone.
  void expect_empty(const Context* context);
  Result allocate(std::size_t size, Context* context, Address* address);
  Result free(Address address, bool is_device);
  // The block that holds these bytes; fails for bytes that reach out of the one they begin in.
  Result find(Address address, std::size_t size, const Block** block);
  // A stream that may be used in the current context.
  Result stream_of(void* handle, StreamPointer* stream);
  Result copy(Address to, Address from, std::size_t size, void* stream);
  Result fill(Address to, unsigned char value, std::size_t size, void* stream);
  Result launch(const Kernel& kernel, const LaunchConfig& config, void** arguments);
  void run_all();
};

Machine& machine();

// The calling thread's contexts; the last is current.
std::vector<Context*>& current_contexts();
Context* current();

}  // namespace stand_in
