// Rows of samples as vectors, and back: what the loops over a batch share.
//
// The generator defines before this text
//   PART                   lanes within which values move in one instruction
//   LOW, HIGH              lanes of the interleaved lower and upper halves of each part of two vectors
//   FRONT, BACK            lanes of the first and of the last parts of two vectors

// A port of one call. Rows are `stride` scalars apart; stride 0 says that an input has one row for
// the whole batch, and that an output is to be summed over each block of the batch, into one row a
// block (a fixed order of summation, whatever the threads do).
struct CallPort {
  T* data;
  long long stride;
};

// Transposes W vectors: within each part by perfect shuffles of PART vectors, and then the parts. Vectors of
// 32 bytes are two parts; to move a value from one to the other within a shuffle takes three instructions.
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

// `rows` counts the samples from here to the end of the batch. Lanes beyond it repeat the last
// sample, so that they raise no exception of their own.
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

// The same where the size is known: that a block of fewer than W columns is spelt out halves the time of small
// ports.
template <int SIZE>
static void load_rows(const T* data, long long stride, long long rows, V* to) {
  enum { WIDE = SIZE % W, WHOLE = SIZE - WIDE };
  const bool spelt = WIDE && rows >= 2 * W;
  if (spelt) {
    V block[W];
    LANES block[lane] = *(const Row*)(data + lane * stride + WHOLE);
    transpose(block);
    for (int k = 0; k < WIDE; ++k) to[WHOLE + k] = block[k];
  }
  load_rows(data, stride, spelt ? WHOLE : SIZE, rows, to);
}

// Whether the results of a port for W samples are fetched before they are computed: as long as they fill
// half of the first level of the cache at most. Those of larger ones are fetched while they are written,
// two stores ahead: without that eight rows at a time are written a quarter to a third more slowly.
#define FETCHED_BEFORE(size) ((size) * W * (long long)sizeof(T) <= 1 << 14)

// Vectors in the order of a table.
struct IndexedResults {
  const V* from;
  const int* at;
  __attribute__((always_inline)) V operator[](int k) const { return from[at[k]]; }
  __attribute__((always_inline)) IndexedResults operator+(int k) const { return {from, at + k}; }
};

// The same, each times another one.
struct ScaledResults {
  const V* from;
  const int *at, *by;
  __attribute__((always_inline)) V operator[](int k) const { return from[at[k]] * from[by[k]]; }
  __attribute__((always_inline)) ScaledResults operator+(int k) const { return {from, at + k, by + k}; }
};

// Output rows follow each other without gaps. `zero` tells for each whole block of W columns
// whether it is all zeros for every sample: most of a regressor is, and of a Jacobian.
template <int SIZE, class Vectors>
static void store_rows(T* data, long long rows, Vectors from, const int* zero) {
  enum { WIDE = SIZE % W, WHOLE = SIZE - WIDE };
  if (rows < W) {  // rows that end where the batch does
    for (int column = 0; column < SIZE; ++column) {
      const V v = from[column];
      for (int lane = 0; lane < rows; ++lane) data[lane * SIZE + column] = v[lane];
    }
    return;
  }
  V block[W];
  // A partial block of columns writes past its row, over what is written later; so it goes first, and what
  // would come after the last row is left out.
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

// Stores past the caches: a line that is written whole need not be read before. Where results are larger than
// the caches that takes a half of the time.
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

// Before another thread reads what was stored past the caches.
INLINE void finish_past() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// Whether a port's rows can be stored so, and gain by it: where there are no such stores they only take a detour.
INLINE bool goes_past(const T* data, int size) {
#if defined(__clang__) || defined(__x86_64__)
  return size >= 2 * W && (unsigned long long)data % BYTES == 0;
#else
  return false;
#endif
}

// The vector that begins SKIP lanes into `a` and goes on in `b`.
template <int SKIP, int LEFT = W, int... TAKEN>
INLINE V joined(V a, V b) {
  if constexpr (LEFT == 0)
    return __builtin_shufflevector(a, b, TAKEN...);
  else
    return joined<SKIP, LEFT - 1, SKIP + LEFT - 1, TAKEN...>(a, b);
}

// How many scalars of a row, size mod W = REST, stand in front of its first vector of memory.
template <int REST>
INLINE constexpr int head_of(int lane) {
  return (W - lane * REST % W) % W;
}

// A vector of memory for each row, from two blocks of its columns.
template <int REST, int LANE = 0>
INLINE void store_joined(T* data, int size, const V* a, const V* b) {
  if constexpr (LANE < W) {
    enum { HEAD = head_of<REST>(LANE) };
    STORE_PAST((V*)(data + LANE * (long long)size + HEAD), joined<HEAD>(a[LANE], b[LANE]));
    store_joined<REST, LANE + 1>(data, size, a, b);
  }
}

// Blocks of columns that go together where whole groups of them are zeros, as in a regressor: each row then takes
// several lines of the cache at a time, and whether a block is zeros is asked, and guessed wrongly, less often.
// That takes three quarters of the time there; where groups are not zeros it takes more.
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

// No load or store moves across it when compiled: stores past the caches are fast in runs, a row after the other.
#define AS_WRITTEN() __asm__ volatile("" ::: "memory")

// Vectors of memory of one row, from the blocks of its columns, the first one of them before the group.
template <int HEAD>
INLINE void store_blocks(T* row, const V* blocks) {
#pragma GCC unroll 32
  for (int j = 0; j < TOGETHER; ++j) STORE_PAST((V*)(row + HEAD + j * W), joined<HEAD>(blocks[j], blocks[j + 1]));
}

// The same where all of them but the first one are zeros.
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

// Blocks k to k + TOGETHER - 1, but for the last columns, and with those of the block before, which becomes the
// last of these.
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

// Rows as by `store_rows`, W of them, which `data` aligned to vectors makes a whole number of vectors. A vector
// of memory takes columns of two blocks, or the last of a row and the first of the next one.
template <int REST, bool GROUPS, class Vectors>
static void store_rows_past(T* data, int size, Vectors from, const int* zero) {
  const int whole = size / W, safe = (size - W + 1) / W;  // blocks, and vectors within every row
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

// What the caller has to know: lanes of a vector, how many vectors go together, the cost of one, bytes of scratch for
// one thread.
#define EXPORT extern "C" __attribute__((visibility("default"))) const long long
