// Thread pool: runs the blocks of one kernel call on the calling thread and on idle helper threads.
//
// There is no barrier. Threads fetch block numbers from a counter, and the caller waits only for helpers that are
// within a block. A helper that the system does not schedule therefore causes no delay.
//
// Waking a thread takes tens of microseconds, as long as a call with a thousand samples. A helper therefore
// spins for a short time before it sleeps, and so does the caller while it waits for the last blocks.
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef void (*Kernel)(const void* call, void* scratch, long long first, long long last);

static const long long SPIN_NS = 200000;       // longest time to spin
static const long long PREEMPTED_NS = 20000;   // a longer gap between two polls means that other threads need this core

struct Job {
  Kernel kernel;
  const void* call;
  long long scratch_bytes, blocks, next;
  int seats;
  long long at_once;  // blocks that a thread fetches together; constants are written once for all of them
};

// Fields are written under `lock`; `number` and `busy` are also read without it.
struct Pool {
  pthread_mutex_t owner, lock;
  pthread_cond_t wake, idle;
  Job* job;
  unsigned long long number;  // number of jobs so far
  int helpers, busy, asleep;
  pid_t process;
};

// The pool of the process; a forked child does not inherit the threads and makes a new pool.
static Pool* the_pool = nullptr;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

template <typename N>
static void store(N* place, N value) {
  __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

static long long nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Acquires a lock that is held for a few instructions only, so that spinning is better than sleeping.
static void enter(pthread_mutex_t* lock) {
  for (int k = 0; k < 100; ++k) {
    if (pthread_mutex_trylock(lock) == 0) return;
    pause_core();
  }
  pthread_mutex_lock(lock);
}

// Polls a number for at most SPIN_NS until it differs from `old`. Returns early if other threads need this core,
// since the thread that changes the number may be one of them.
template <typename N>
static void await_change(const N* place, N old) {
  const long long start = nanoseconds();
  for (long long last = start, now; last - start < SPIN_NS; last = now) {
    for (int k = 0; k < 64; ++k) {
      if (__atomic_load_n(place, __ATOMIC_ACQUIRE) != old) return;
      pause_core();
    }
    sched_yield();
    now = nanoseconds();
    if (now - last > PREEMPTED_NS) return;
  }
}

// Runs blocks until none is left; returns false if there is no memory for scratch.
static bool work(Job* job) {
  void* scratch = nullptr;
  if (posix_memalign(&scratch, 64, (size_t)job->scratch_bytes)) return false;
  for (;;) {
    const long long first = __atomic_fetch_add(&job->next, job->at_once, __ATOMIC_RELAXED);
    if (first >= job->blocks) break;
    const long long behind = first + job->at_once;
    job->kernel(job->call, scratch, first, behind < job->blocks ? behind : job->blocks);
  }
  free(scratch);
  return true;
}

static void* help(void* argument) {
  Pool* pool = (Pool*)argument;
  unsigned long long seen = 0;
  enter(&pool->lock);
  for (;;) {
    bool has_looked = false;
    while (pool->job == nullptr || pool->number == seen || pool->job->seats == 0) {
      const bool is_superfluous = pool->job != nullptr && pool->number != seen;
      if (has_looked || is_superfluous) {
        ++pool->asleep;
        pthread_cond_wait(&pool->wake, &pool->lock);
        --pool->asleep;
        has_looked = false;  // a helper woken too late for one call is ready for the next
      } else {
        const unsigned long long number = pool->number;
        pthread_mutex_unlock(&pool->lock);
        await_change(&pool->number, number);
        enter(&pool->lock);
        has_looked = pool->number == number;
      }
    }
    seen = pool->number;
    Job* job = pool->job;
    --job->seats;
    store(&pool->busy, pool->busy + 1);
    pthread_mutex_unlock(&pool->lock);
    work(job);
    enter(&pool->lock);
    store(&pool->busy, pool->busy - 1);
    if (pool->busy == 0) pthread_cond_signal(&pool->idle);
  }
}

static Pool* pool_of_this_process() {
  pthread_mutex_lock(&pool_lock);
  Pool* pool = the_pool;
  if (pool == nullptr || pool->process != getpid()) {
    pool = new Pool();
    pthread_mutex_init(&pool->owner, nullptr);
    pthread_mutex_init(&pool->lock, nullptr);
    pthread_cond_init(&pool->wake, nullptr);
    pthread_cond_init(&pool->idle, nullptr);
    pool->process = getpid();
    the_pool = pool;
  }
  pthread_mutex_unlock(&pool_lock);
  return pool;
}

static void hire(Pool* pool, int wanted) {
  while (pool->helpers < wanted) {
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    const int error = pthread_create(&thread, &detached, help, pool);
    pthread_attr_destroy(&detached);
    if (error) return;
    ++pool->helpers;
  }
}

static void before_fork() { pthread_mutex_lock(&pool_lock); }
static void after_fork() { pthread_mutex_unlock(&pool_lock); }
__attribute__((constructor)) static void guard_forks() {
  pthread_atfork(before_fork, after_fork, after_fork);
}

// Runs the blocks of a job on at most `threads` threads; returns false if memory ran out.
static bool run(Job job, int threads) {
  job.seats = (int)(job.blocks < threads ? job.blocks : threads) - 1;
  // About eight fetches for each thread, so that other threads take over the share of an interrupted one.
  const long long share = job.seats > 0 ? job.blocks / (8 * threads) : job.blocks;
  job.at_once = share > 0 ? share : 1;
  Pool* pool = job.seats > 0 ? pool_of_this_process() : nullptr;
  // If another caller uses the pool, this call runs on the calling thread alone.
  if (pool == nullptr || pthread_mutex_trylock(&pool->owner) != 0) return work(&job);
  const int seats = job.seats;
  enter(&pool->lock);
  hire(pool, seats);
  pool->job = &job;
  store(&pool->number, pool->number + 1);
  for (int awake = pool->helpers - pool->asleep; awake < seats; ++awake)
    pthread_cond_signal(&pool->wake);
  pthread_mutex_unlock(&pool->lock);
  const bool done = work(&job);
  enter(&pool->lock);
  pool->job = nullptr;
  while (pool->busy > 0) {
    const int busy = pool->busy;
    pthread_mutex_unlock(&pool->lock);
    await_change(&pool->busy, busy);
    enter(&pool->lock);
    if (pool->busy == busy) pthread_cond_wait(&pool->idle, &pool->lock);
  }
  pthread_mutex_unlock(&pool->lock);
  pthread_mutex_unlock(&pool->owner);
  return done;
}

// Data of a kernel that all calls share.
struct Plan {
  Kernel kernel;
  long long scratch_bytes;
};

// Runs one call, whose first words are the batch size and the samples in a block. Returns 0, or 1 if
// memory ran out.
extern "C" __attribute__((visibility("default"))) int torchsko_launch(
    const Plan* plan, const void* call, int threads) {
  const long long batch = ((const long long*)call)[0], block_rows = ((const long long*)call)[1];
  const long long blocks = (batch + block_rows - 1) / block_rows;
  return run({plan->kernel, call, plan->scratch_bytes, blocks, 0, 0, 0}, threads) ? 0 : 1;
}

#if defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_WRITE)
static const uintptr_t PIECE = 1 << 21;

struct Range {
  uintptr_t first, last;
};

// Each block is one huge page, except the first and the last.
static void populate(const void* call, void*, long long first, long long last) {
  const Range* all = (const Range*)call;
  const uintptr_t origin = all->first / PIECE * PIECE;
  const uintptr_t start = origin + (uintptr_t)first * PIECE, end = origin + (uintptr_t)last * PIECE;
  const uintptr_t from = start > all->first ? start : all->first;
  madvise((void*)from, (end < all->last ? end : all->last) - from, MADV_POPULATE_WRITE);
}
#endif

// Populates new memory, with huge pages if possible, on several threads. Page faults of small pages would take longer
// than the computation of a large result. On systems without these requests pages are populated on first access.
extern "C" __attribute__((visibility("default"))) void torchsko_provide(
    void* data, long long bytes, int threads) {
#if defined(MADV_HUGEPAGE) && defined(MADV_POPULATE_WRITE)
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const Range all = {((uintptr_t)data + page - 1) / page * page,
                     ((uintptr_t)data + (uintptr_t)bytes) / page * page};
  if (all.first >= all.last) return;
  madvise((void*)all.first, all.last - all.first, MADV_HUGEPAGE);
  const uintptr_t number = (all.last + PIECE - 1) / PIECE - all.first / PIECE;
  run({populate, &all, 64, (long long)number, 0, 0, 0}, threads);
#endif
}
