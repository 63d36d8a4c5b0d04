// Memory pool of large results.
//
// The C library maps every large block anew and unmaps it when it is freed. Page faults, which also zero the pages, take
// as long as the computation of a kernel. The memory of a deleted result is therefore kept, up to a limit, for the next
// result of similar size. Tensors are made by DLPack, whose deleter may be called by any thread.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

extern "C" void torchsko_provide(void* data, long long bytes, int threads);

// DLPack structs without version.
struct Tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
static const int CPU = 1, REAL = 2;

// A block of memory, free or in use. Free blocks form a list, the one used last first.
struct Block {
  Managed managed;
  void* data;
  size_t bytes;
  Block* next;
  int64_t shape[1];
};

static const size_t PIECE = 1 << 21, SMALL_PIECE = 1 << 16;  // sizes are multiples of these, in bytes
static const size_t MAX_POOL_BYTES = (size_t)1 << 29;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block* unused = nullptr;

static void destroy(Block* block) {
  munmap(block->data, block->bytes);
  free(block);
}

// Takes the memory of the smallest free block that fits and is at most a quarter too large. Does not wait for the lock,
// which may stay locked for ever in a forked child.
static void* take(size_t bytes, size_t* size) {
  if (pthread_mutex_trylock(&lock) != 0) return nullptr;
  Block** best = nullptr;
  for (Block** at = &unused; *at != nullptr; at = &(*at)->next) {
    const bool fits = (*at)->bytes >= bytes && (*at)->bytes - bytes <= bytes / 4;
    if (fits && (best == nullptr || (*at)->bytes < (*best)->bytes)) best = at;
  }
  Block* found = best == nullptr ? nullptr : *best;
  if (found != nullptr) *best = found->next;
  pthread_mutex_unlock(&lock);
  if (found == nullptr) return nullptr;
  void* data = found->data;
  *size = found->bytes;
  free(found);
  return data;
}

static void give(Managed* managed) {
  Block* block = (Block*)managed->context;
  if (block->bytes > MAX_POOL_BYTES || pthread_mutex_trylock(&lock) != 0) return destroy(block);
  block->next = unused;
  unused = block;
  size_t total = 0;
  Block** at = &unused;
  while (*at != nullptr && (total += (*at)->bytes) <= MAX_POOL_BYTES) at = &(*at)->next;
  Block* rest = *at;  // the blocks unused longest
  *at = nullptr;
  pthread_mutex_unlock(&lock);
  while (rest != nullptr) {
    Block* next = rest->next;
    destroy(rest);
    rest = next;
  }
}

// A dense, uninitialized floating-point tensor for a DLPack capsule; null if memory ran out.
extern "C" __attribute__((visibility("default"))) Managed* torchsko_result(
    int ndim, const int64_t* shape, int bits, int threads) {
  size_t bytes = bits / 8, size = 0;
  for (int k = 0; k < ndim; ++k) bytes *= (size_t)shape[k];
  Block* block = (Block*)malloc(sizeof(Block) + ndim * sizeof(int64_t));
  if (block == nullptr) return nullptr;
  void* data = take(bytes, &size);
  if (data == nullptr) {
    const size_t piece = bytes < 8 * PIECE ? SMALL_PIECE : PIECE;  // rounding up wastes at most an eighth
    size = (bytes + piece - 1) / piece * piece;
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      free(block);
      return nullptr;
    }
    torchsko_provide(data, (long long)size, threads);
  }
  for (int k = 0; k < ndim; ++k) block->shape[k] = shape[k];
  block->data = data;
  block->bytes = size;
  block->next = nullptr;
  block->managed = {{data, CPU, 0, ndim, REAL, (uint8_t)bits, 1, block->shape, nullptr, 0}, block, give};
  return &block->managed;
}
