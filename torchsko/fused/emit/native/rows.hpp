// Transposition of rows of samples into vectors, and back.
//
// The generator defines before this text
//   PART                   number of lanes that one shuffle instruction can permute
//   LOW, HIGH              lanes of the interleaved lower and upper halves of each part of two vectors
//   FRONT, BACK            lanes of the first and of the last parts of two vectors

// A port of one call. Rows are `stride` scalars apart. Stride 0 means that an input has one row for
// the whole batch, or that an output is summed over each block of the batch into one row per
// block, so that the order of summation does not depend on the threads.
struct CallPort {
  T* data;
  long long stride;
};

// Transposes W vectors: within each part by perfect shuffles of PART vectors, and then the parts. Vectors of
// 32 bytes have two parts, since a shuffle across them takes three instructions.
INLINE void transpose(V* a) {
  V b[W];
#pragma GCC unroll 4
  for (int step = 1; step < PART; step *= 2) {
#pragma GCC unroll 16
    for (int k = 0; k < W / 2; ++k) {
      const V *x = a + k / (PART / 2) * PART + k % (PART / 2), *y = x + PART / 2;
      b[2 * k] = __builtin_shufflevector(*x, *y, LOW);
      b[2 * k + 1] = __builtin_shufflevector(*x, *y, HIGH);
    }
#pragma GCC unroll 16
    for (int k = 0; k < W; ++k) a[k] = b[k];
  }
#if defined(FRONT)
#pragma GCC unroll 16
  for (int k = 0; k < PART; ++k) {
    b[k] = __builtin_shufflevector(a[k], a[k + PART], FRONT);
    b[k + PART] = __builtin_shufflevector(a[k], a[k + PART], BACK);
  }
#pragma GCC unroll 16
  for (int k = 0; k < W; ++k) a[k] = b[k];
#endif
}

typedef T Row __attribute__((vector_size(BYTES), may_alias, aligned(sizeof(T))));

// `rows` is the number of samples from here to the end of the batch. Lanes beyond it repeat the last
// sample, so that they raise no floating-point exceptions.
static void load_rows(const T* data, long long stride, int size, long long rows, V* to) {
  // A block of W columns may read past the end of its row as long as W further rows follow.
  const int blocked = rows >= 2 * W ? size : rows >= W ? size / W * W : 0;
  int column = 0;
  for (; column < blocked; column += W) {
    V block[W];
    LANES block[lane] = *(const Row*)(data + lane * stride + column);
    transpose(block);
    const int wide = size - column < W ? size - column : W;
    for (int k = 0; k < wide; ++k) to[column + k] = block[k];
  }
  const int last = rows < W ? (int)rows - 1 : W - 1;
  for (; column < size; ++column) {
    to[column] = splat(data[last * stride + column]);
    for (int lane = 0; lane < last; ++lane) to[column][lane] = data[lane * stride + column];
  }
}

// Loads rows of a size known at compile time. Unrolling the last partial block halves the time of small ports.
template <int SIZE>
static void load_rows(const T* data, long long stride, long long rows, V* to) {
  enum { WIDE = SIZE % W, WHOLE = SIZE - WIDE };
  const bool unrolled = WIDE && rows >= 2 * W;
  if (unrolled) {
    V block[W];
    LANES block[lane] = *(const Row*)(data + lane * stride + WHOLE);
    transpose(block);
    for (int k = 0; k < WIDE; ++k) to[WHOLE + k] = block[k];
  }
  load_rows(data, stride, unrolled ? WHOLE : SIZE, rows, to);
}

// True if the result rows of a port are prefetched before the computation: they must fit into half of the first-level
// cache. Larger ones are prefetched two stores ahead while they are written; otherwise writes of eight rows at a time
// take a quarter to a third longer.
#define FETCHED_BEFORE(size) ((size) * W * (long long)sizeof(T) <= 1 << 14)

// Result vectors in the order of a table.
struct IndexedResults {
  const V* from;
  const int* at;
  __attribute__((always_inline)) V operator[](int k) const { return from[at[k]]; }
  __attribute__((always_inline)) IndexedResults operator+(int k) const { return {from, at + k}; }
};

// Result vectors in the order of a table, each multiplied by its factor.
struct ScaledResults {
  const V* from;
  const int *at, *by;
  __attribute__((always_inline)) V operator[](int k) const { return from[at[k]] * from[by[k]]; }
  __attribute__((always_inline)) ScaledResults operator+(int k) const { return {from, at + k, by + k}; }
};

// Stores vectors as output rows without gaps. `zero` is 1 for each whole block of W columns
// that is zero for every sample, as most blocks of a regressor or a Jacobian are.
template <int SIZE, class Vectors>
static void store_rows(T* data, long long rows, Vectors from, const int* zero) {
  enum { WIDE = SIZE % W, WHOLE = SIZE - WIDE };
  if (rows < W) {  // the last rows of the batch
    for (int column = 0; column < SIZE; ++column) {
      const V v = from[column];
      for (int lane = 0; lane < rows; ++lane) data[lane * SIZE + column] = v[lane];
    }
    return;
  }
  V block[W];
  // A partial block of columns writes past its row, into memory that is written later. It is therefore stored first,
  // and the part after the last row is omitted.
  if (WIDE) {
    LANES block[lane] = from[WHOLE + (lane < WIDE ? lane : 0)];
    transpose(block);
#pragma GCC unroll 16
    LANES {
      T* row = data + lane * SIZE + WHOLE;
      if ((lane + 1) * SIZE - WIDE + W <= W * SIZE)
        *(Row*)row = block[lane];
      else
        __builtin_memcpy(row, &block[lane], WIDE * sizeof(T));
    }
  }
  for (int base = 0; base < WHOLE; base += W) {
    if (!FETCHED_BEFORE(SIZE)) LANES __builtin_prefetch(data + lane * SIZE + base + 2 * W, 1);
    if (zero[base / W]) {
      LANES *(Row*)(data + lane * SIZE + base) = Row{};
      continue;
    }
    LANES block[lane] = from[base + lane];
    transpose(block);
    LANES *(Row*)(data + lane * SIZE + base) = block[lane];
  }
}

// Non-temporal stores, which bypass the caches: a whole line is written without being read first. For results
// larger than the caches this halves the time.
#if defined(__clang__)
#define STORE_PAST(to, x) __builtin_nontemporal_store(x, to)
#elif !defined(__x86_64__)
#define STORE_PAST(to, x) (void)(*(to) = x)
#elif BYTES == 64
#define STORE_PAST(to, x) MOVE_PAST(512)((T*)(to), x)
#elif BYTES == 32
#define STORE_PAST(to, x) MOVE_PAST(256)((T*)(to), x)
#else
#define STORE_PAST(to, x) MOVE_PAST()((T*)(to), x)
#endif
#if T_BITS == 64
#define MOVE_PAST(bits) __builtin_ia32_movntpd##bits
#else
#define MOVE_PAST(bits) __builtin_ia32_movntps##bits
#endif

// Fence before another thread reads the data of non-temporal stores.
INLINE void finish_past() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// True if non-temporal stores are possible for a port and faster; other targets have no such stores.
INLINE bool goes_past(const T* data, int size) {
#if defined(__clang__) || defined(__x86_64__)
  return size >= 2 * W && (unsigned long long)data % BYTES == 0;
#else
  return false;
#endif
}

// The vector of the last W - SKIP lanes of `a` and the first SKIP lanes of `b`.
template <int SKIP, int LEFT = W, int... TAKEN>
INLINE V joined(V a, V b) {
  if constexpr (LEFT == 0)
    return __builtin_shufflevector(a, b, TAKEN...);
  else
    return joined<SKIP, LEFT - 1, SKIP + LEFT - 1, TAKEN...>(a, b);
}

// Number of scalars of a row before its first aligned vector of memory; REST is the row size mod W.
template <int REST>
INLINE constexpr int head_of(int lane) {
  return (W - lane * REST % W) % W;
}

// Stores one aligned vector of each row, from two blocks of its columns.
template <int REST, int LANE = 0>
INLINE void store_joined(T* data, int size, const V* a, const V* b) {
  if constexpr (LANE < W) {
    enum { HEAD = head_of<REST>(LANE) };
    STORE_PAST((V*)(data + LANE * (long long)size + HEAD), joined<HEAD>(a[LANE], b[LANE]));
    store_joined<REST, LANE + 1>(data, size, a, b);
  }
}

// Number of column blocks that are stored together if whole groups of them are zero, as in a regressor. Each row then
// gets several cache lines at a time, and there are fewer mispredicted branches on zero blocks. This takes three
// quarters of the time there, but more time if groups are not zero.
enum { TOGETHER = 32 / W > 1 ? 32 / W : 1 };

constexpr bool are_zero(const int* zero) {
  int all = 1;
  for (int j = 0; j < TOGETHER; ++j) all &= zero[j];
  return all;
}

constexpr bool has_zero_groups(const int* zero, int blocks) {
  int found = 0;
  for (int k = 1; k + TOGETHER <= blocks; k += TOGETHER) found += are_zero(zero + k);
  return 4 * found * TOGETHER > blocks;
}

// A compiler barrier for loads and stores: non-temporal stores are fast in runs, one row after the other.
#define AS_WRITTEN() __asm__ volatile("" ::: "memory")

// Stores the aligned vectors of one row from its column blocks; the first block precedes the group.
template <int HEAD>
INLINE void store_blocks(T* row, const V* blocks) {
#pragma GCC unroll 32
  for (int j = 0; j < TOGETHER; ++j) STORE_PAST((V*)(row + HEAD + j * W), joined<HEAD>(blocks[j], blocks[j + 1]));
}

// Stores the aligned vectors of one row if all blocks but the first are zero.
template <int HEAD>
INLINE void store_zeros(T* row, V before) {
  STORE_PAST((V*)(row + HEAD), joined<HEAD>(before, V{}));
#pragma GCC unroll 32
  for (int j = 1; j < TOGETHER; ++j) STORE_PAST((V*)(row + HEAD + j * W), (V{}));
}

template <int REST, int LANE = 0>
INLINE void store_group(T* data, int size, const V (*blocks)[TOGETHER + 1], bool zeros) {
  if constexpr (LANE < W) {
    T* row = data + LANE * (long long)size;
    AS_WRITTEN();
    zeros ? store_zeros<head_of<REST>(LANE)>(row, blocks[LANE][0]) : store_blocks<head_of<REST>(LANE)>(row, blocks[LANE]);
    store_group<REST, LANE + 1>(data, size, blocks, zeros);
  }
}

// Stores blocks k to k + TOGETHER - 1 except the last columns, together with the remaining columns of the block
// `before`, which is then the last of these blocks.
template <int REST, class Vectors>
INLINE void store_together(T* data, int size, int k, Vectors from, const int* zero, V* before) {
  V blocks[W][TOGETHER + 1];
  LANES blocks[lane][0] = before[lane];
  if (are_zero(zero + k)) {
    store_group<REST>(data + (k - 1) * W, size, blocks, true);
    AS_WRITTEN();
    LANES before[lane] = V{};
    return;
  }
#pragma GCC unroll 32
  for (int j = 0; j < TOGETHER; ++j) {
    V now[W];
    LANES now[lane] = from[(k + j) * W + lane];
    transpose(now);
    LANES blocks[lane][j + 1] = now[lane];
  }
  LANES before[lane] = blocks[lane][TOGETHER];
  store_group<REST>(data + (k - 1) * W, size, blocks, false);
  AS_WRITTEN();
}

// Stores W rows by non-temporal stores; `data` is aligned, so the rows are a whole number of vectors. An aligned vector
// has columns of two blocks, or the last columns of a row and the first of the next.
template <int REST, bool GROUPS, class Vectors>
static void store_rows_past(T* data, int size, Vectors from, const int* zero) {
  const int whole = size / W, safe = (size - W + 1) / W;  // whole blocks, and aligned vectors within every row
  V before[W], now[W], heads[W], ends[W][3] = {};
  for (int k = 0; k * W < size; ++k) {
    if (GROUPS) for (; k > 0 && k + TOGETHER <= safe; k += TOGETHER) store_together<REST>(data, size, k, from, zero, before);
    if (k < whole && zero[k]) {
      LANES now[lane] = V{};
    } else {
      const int last = size - 1 - k * W;
      LANES now[lane] = from[k * W + (REST == 0 || lane < last ? lane : last)];
      transpose(now);
    }
    if (k == 0)
      LANES heads[lane] = now[lane];
    else if (k <= safe)
      store_joined<REST>(data + (k - 1) * W, size, before, now);
    if (k >= safe) LANES ends[lane][k - safe] = now[lane];
    LANES before[lane] = now[lane];
  }
  for (int lane = 0; lane < W; ++lane) {
    T *end = (T*)ends[lane], *row = data + lane * (long long)size;
    if (lane < W - 1) *(Row*)(end + size - safe * W) = heads[lane + 1];
    for (int column = head_of<REST>(lane); column < size - safe * W; column += W)
      STORE_PAST((V*)(row + safe * W + column), (V) * (const Row*)(end + column));
  }
}

INLINE T lane_sum(V x) {
  T sum = 0;
  LANES sum += x[lane];
  return sum;
}

// Exports a number to the caller: lanes of a vector, tiles, cost of a vector, scratch bytes of a thread.
#define EXPORT extern "C" __attribute__((visibility("default"))) const long long
