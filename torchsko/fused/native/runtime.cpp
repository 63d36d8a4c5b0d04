// Runs the blocks of one call of a kernel on the calling thread and on helpers that are free.
//
// No barrier: threads draw block numbers from a counter, and the caller waits only for helpers in
// the middle of a block. A helper that the system does not schedule therefore delays nobody.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef void (*Kernel)(const void* call, void* scratch, long long first, long long last);

struct Job {
  Kernel kernel;
  const void* call;
  long long scratch_bytes, blocks, next;
  int seats;
};

struct Pool {
  pthread_mutex_t owner, lock;
  pthread_cond_t wake, idle;
  Job* job;
  unsigned long long number;  // of jobs so far
  int helpers, busy;
  pid_t process;
};

// The one pool of the process; a forked child has none of its threads and makes its own.
static Pool* the_pool = nullptr;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

// Draws blocks until none is left; false if there was no memory to do so.
static bool work(Job* job) {
  void* scratch = nullptr;
  if (posix_memalign(&scratch, 64, (size_t)job->scratch_bytes)) return false;
  for (;;) {
    const long long block = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (block >= job->blocks) break;
    job->kernel(job->call, scratch, block, block + 1);
  }
  free(scratch);
  return true;
}

static void* help(void* argument) {
  Pool* pool = (Pool*)argument;
  unsigned long long seen = 0;
  pthread_mutex_lock(&pool->lock);
  for (;;) {
    while (pool->job == nullptr || pool->number == seen || pool->job->seats == 0)
      pthread_cond_wait(&pool->wake, &pool->lock);
    seen = pool->number;
    Job* job = pool->job;
    --job->seats;
    ++pool->busy;
    pthread_mutex_unlock(&pool->lock);
    work(job);
    pthread_mutex_lock(&pool->lock);
    if (--pool->busy == 0) pthread_cond_signal(&pool->idle);
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

// What every call of a kernel shares.
struct Plan {
  Kernel kernel;
  long long scratch_bytes, block_rows;
};

// Runs one call, whose first word is the batch size. Returns 0, or 1 if memory ran out.
extern "C" __attribute__((visibility("default"))) int torchsko_launch(
    const Plan* plan, const void* call, int threads) {
  const long long batch = *(const long long*)call;
  const long long blocks = (batch + plan->block_rows - 1) / plan->block_rows;
  Job job = {plan->kernel, call, plan->scratch_bytes, blocks, 0, threads - 1};
  Pool* pool = threads > 1 && blocks > 1 ? pool_of_this_process() : nullptr;
  // A pool in use by another caller is left alone: this call then runs on its own thread.
  if (pool == nullptr || pthread_mutex_trylock(&pool->owner) != 0) {
    return work(&job) ? 0 : 1;
  }
  pthread_mutex_lock(&pool->lock);
  hire(pool, threads - 1);
  pool->job = &job;
  ++pool->number;
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->lock);
  const bool done = work(&job);
  pthread_mutex_lock(&pool->lock);
  pool->job = nullptr;
  while (pool->busy > 0) pthread_cond_wait(&pool->idle, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
  pthread_mutex_unlock(&pool->owner);
  return done ? 0 : 1;
}
