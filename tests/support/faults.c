// Stands between a program and the system: counts the operations on files below one folder, and
// large allocations, and lets the n-th fail, or ends or stops the process there. Loaded with LD_PRELOAD.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { kFail = 1, kKill = 2, kStop = 3 };

static char root[PATH_MAX];
static size_t root_size;           // 0: files are not counted
static size_t smallest_allocation; // 0: allocations are not counted
static atomic_long count;
static long fatal;         // the operation that fails, kills or stops
static int action;         // one of the above
static int fails_for_good; // all that take space fail from there on, as on a full disk
static int has_exchange = 1;
static int log_file = -1;
static __thread int inside;
static __thread int allocates; // others' threads may not survive, and who waits for them hangs

// --- called by the tests --------------------------------------------------------------------------

void faults_start(const char* folder, size_t allocation, long n, int what, int for_good, int exchange,
                  int log) {
  snprintf(root, sizeof root, "%s", folder);
  smallest_allocation = allocation;
  fatal = n, action = what, fails_for_good = for_good;
  has_exchange = exchange, log_file = log;
  atomic_store(&count, 0);
  allocates = allocation != 0;
  root_size = allocation ? 0 : strlen(folder);
}

void faults_pause_allocations(int is_paused) { allocates = !is_paused; }

long faults_stop(void) {
  root_size = 0, smallest_allocation = 0;
  return atomic_load(&count);
}

// --- bookkeeping ------------------------------------------------------------------------------------

#define REAL(name)                                        \
  static __typeof__(&name) real;                          \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

// Makes a path absolute: relative to a folder that is open, or to the working folder.
static const char* absolute(int folder, const char* path, char* out) {
  if (path[0] == '/') return path;
  char link[64], base[PATH_MAX];
  if (folder == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) return path;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, base, sizeof base - 1);
    if (size < 0) return path;
    base[size] = 0;
  }
  if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return path;
  return out;
}

static const char* path_of(int fd, char* out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, out, PATH_MAX - 1);
  out[size < 0 ? 0 : size] = 0;
  return out;
}

static int is_ours(const char* path) {
  return root_size && !inside && strncmp(path, root, root_size) == 0 &&
         (path[root_size] == '/' || path[root_size] == 0);
}

// Counts an operation; nonzero if it has to fail, with that errno.
static int begin(int number, int takes_space) {
  long n = atomic_fetch_add(&count, 1) + 1;
  if (action == kKill && n == fatal) kill(getpid(), SIGKILL);
  if (action == kStop && n == fatal) kill(getpid(), SIGSTOP);
  if (action == kFail && fatal && (n == fatal || (fails_for_good && n > fatal && takes_space)))
    return number;
  return 0;
}

// One operation that was done: "name count number size path path\n", and data.
static void note(const char* name, const char* path, const char* other, long long number,
                 const void* data, size_t size) {
  if (log_file < 0) return;
  char head[3 * PATH_MAX];
  int before = errno;
  inside++;
  int n = snprintf(head, sizeof head, "%s\t%ld\t%lld\t%zu\t%s\t%s\n", name, atomic_load(&count),
                   number, size, path, other);
  if (write(log_file, head, n) != n || (size && write(log_file, data, size) != (ssize_t)size)) abort();
  inside--;
  errno = before;
}

#define FAIL(number, takes_space, result)            \
  do {                                               \
    int failing = begin(number, takes_space);        \
    if (failing) {                                   \
      errno = failing;                               \
      return result;                                 \
    }                                                \
  } while (0)

// --- names ------------------------------------------------------------------------------------------

static int open_at(int folder, const char* path, int flags, mode_t mode) {
  REAL(openat);
  char buffer[PATH_MAX];
  const char* full = absolute(folder, path, buffer);
  if (!is_ours(full)) return real(folder, path, flags, mode);
  FAIL(flags & O_CREAT ? ENOSPC : EIO, flags & O_CREAT, -1);
  struct stat before;
  int is_new = flags & O_CREAT && fstatat(folder, path, &before, AT_SYMLINK_NOFOLLOW) != 0;
  int fd = real(folder, path, flags, mode);
  if (fd >= 0 && is_new) note("create", full, "", 0, NULL, 0);
  if (fd >= 0 && !is_new && flags & O_TRUNC) note("truncate", full, "", 0, NULL, 0);
  return fd;
}

#define MODE(flags)                                          \
  mode_t mode = 0;                                           \
  if ((flags) & (O_CREAT | O_TMPFILE)) {                     \
    va_list arguments;                                       \
    va_start(arguments, flags);                              \
    mode = va_arg(arguments, mode_t);                        \
    va_end(arguments);                                       \
  }

int open(const char* path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char* path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char* path, int flags, ...) { MODE(flags) return open_at(folder, path, flags, mode); }
int openat64(int folder, const char* path, int flags, ...) { MODE(flags) return open_at(folder, path, flags, mode); }

int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  char buffer[PATH_MAX];
  const char* full = absolute(AT_FDCWD, path, buffer);
  if (!is_ours(full)) return real(path, mode);
  FAIL(ENOSPC, 1, -1);
  int result = real(path, mode);
  if (result == 0) note("mkdir", full, "", 0, NULL, 0);
  return result;
}

static int remove_at(int folder, const char* path, int flags) {
  REAL(unlinkat);
  char buffer[PATH_MAX];
  const char* full = absolute(folder, path, buffer);
  if (!is_ours(full)) return real(folder, path, flags);
  FAIL(EIO, 0, -1);
  int result = real(folder, path, flags);
  if (result == 0) note("remove", full, "", 0, NULL, 0);
  return result;
}

int unlink(const char* path) { return remove_at(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return remove_at(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int folder, const char* path, int flags) { return remove_at(folder, path, flags); }

int renameat2(int old_folder, const char* old, int new_folder, const char* new, unsigned flags) {
  REAL(renameat2);
  char one[PATH_MAX], other[PATH_MAX];
  const char* from = absolute(old_folder, old, one);
  const char* to = absolute(new_folder, new, other);
  if (!is_ours(from) && !is_ours(to)) return real(old_folder, old, new_folder, new, flags);
  if (flags && !has_exchange) {
    errno = EINVAL;
    return -1;
  }
  FAIL(EIO, 0, -1);
  int result = real(old_folder, old, new_folder, new, flags);
  if (result == 0) note(flags & RENAME_EXCHANGE ? "exchange" : "rename", from, to, 0, NULL, 0);
  return result;
}

int rename(const char* old, const char* new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int a, const char* old, int b, const char* new) { return renameat2(a, old, b, new, 0); }

int linkat(int old_folder, const char* old, int new_folder, const char* new, int flags) {
  REAL(linkat);
  char one[PATH_MAX], other[PATH_MAX];
  const char* from = absolute(old_folder, old, one);
  const char* to = absolute(new_folder, new, other);
  if (!is_ours(to)) return real(old_folder, old, new_folder, new, flags);
  FAIL(EIO, 1, -1);
  int result = real(old_folder, old, new_folder, new, flags);
  if (result == 0) note("link", from, to, 0, NULL, 0);
  return result;
}

int link(const char* old, const char* new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

// --- content ----------------------------------------------------------------------------------------

#define OURS(fd, call)                               \
  char buffer[PATH_MAX];                             \
  if (!root_size || inside) return call;             \
  const char* full = path_of(fd, buffer);            \
  if (!is_ours(full)) return call

ssize_t write(int fd, const void* data, size_t size) {
  REAL(write);
  OURS(fd, real(fd, data, size));
  FAIL(ENOSPC, 1, -1);
  ssize_t done = real(fd, data, size);
  // Asked afterwards: with O_APPEND, it is written where the position was not before.
  if (done > 0) note("write", full, "", lseek(fd, 0, SEEK_CUR) - done, data, done);
  return done;
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  REAL(pwrite64);
  OURS(fd, real(fd, data, size, at));
  FAIL(ENOSPC, 1, -1);
  ssize_t done = real(fd, data, size, at);
  if (done > 0) note("write", full, "", at, data, done);
  return done;
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

ssize_t writev(int fd, const struct iovec* parts, int n) {
  ssize_t done = 0;
  for (int i = 0; i < n; i++) {
    ssize_t size = write(fd, parts[i].iov_base, parts[i].iov_len);
    if (size < 0) return done ? done : -1;
    done += size;
    if ((size_t)size < parts[i].iov_len) break;
  }
  return done;
}

int ftruncate64(int fd, off64_t size) {
  REAL(ftruncate64);
  OURS(fd, real(fd, size));
  FAIL(EIO, 1, -1);
  int result = real(fd, size);
  if (result == 0) note("truncate", full, "", size, NULL, 0);
  return result;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int fsync(int fd) {
  REAL(fsync);
  OURS(fd, real(fd));
  FAIL(EIO, 1, -1);
  // The disk is not asked: nothing here depends on it, and it takes most of the time.
  note("sync", full, "", 0, NULL, 0);
  return 0;
}

int fdatasync(int fd) { return fsync(fd); }

int close(int fd) {
  REAL(close);
  OURS(fd, real(fd));
  int failing = begin(EIO, 0);
  int result = real(fd);  // closed, whatever it says
  if (failing) {
    errno = failing;
    return -1;
  }
  return result;
}

// HDF5 writes the time into its files, and this makes them comparable.
time_t time(time_t* out) {
  if (out) *out = 1;
  return 1;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  (void)zone;
  *out = (struct timeval){.tv_sec = 1};
  return 0;
}

// --- memory -----------------------------------------------------------------------------------------

// Whether the caller is Rust's: its programs end where they get no memory, by decision.
static int is_rust(const void* caller) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "blake3");
}

static int lacks_memory(size_t size, const void* caller) {
  if (!allocates || !smallest_allocation || size < smallest_allocation || inside) return 0;
  if (is_rust(caller) || !begin(ENOMEM, 0)) return 0;
  errno = ENOMEM;
  return 1;
}

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) { return lacks_memory(size, __builtin_return_address(0)) ? NULL : __libc_malloc(size); }

void* calloc(size_t n, size_t size) {
  return lacks_memory(n * size, __builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void* realloc(void* old, size_t size) {
  return lacks_memory(size, __builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}

int posix_memalign(void** out, size_t alignment, size_t size) {
  if (lacks_memory(size, __builtin_return_address(0))) return ENOMEM;
  *out = __libc_memalign(alignment, size);
  return *out || !size ? 0 : ENOMEM;
}

void* aligned_alloc(size_t alignment, size_t size) {
  return lacks_memory(size, __builtin_return_address(0)) ? NULL : __libc_memalign(alignment, size);
}

void* mmap64(void* at, size_t size, int protection, int flags, int fd, off64_t offset) {
  REAL(mmap64);
  return lacks_memory(size, __builtin_return_address(0)) ? MAP_FAILED : real(at, size, protection, flags, fd, offset);
}

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) {
  return mmap64(at, size, protection, flags, fd, offset);
}
