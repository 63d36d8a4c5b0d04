// The loop over the batch: rows of samples are transposed into vectors, the chunks run, and the
// results are transposed back into rows. A tile is one vector of samples with all of its scratch.
//
// The generator defines before this text
//   ENTRY                  exported name
//   NUM_IN, NUM_OUT        number of input and output scalars of one sample
//   NUM_IN_PORTS, NUM_OUT_PORTS
//   NUM_ANGLES             number of inputs whose sines and cosines follow the inputs
//   NUM_SLOTS              number of scratch vectors of the chunks
//   COST                   time of one vector of samples, in additions
//   TILES                  largest number of tiles that a chunk processes before the next chunk runs
//   NUM_READ               number of vectors of the inputs and of their sines and cosines
//   TILE_VECTORS           number of vectors of one tile
//   run_tiles(tiles, n)    runs the chunks for n tiles
//   NUM_RESULT_VECTORS     number of vectors of results; equal results share one, results of loops lie in slots
//   IN_ORDER               1 if each result has its own vector, in order
//   SCALED                 1 if results are multiplied by factors
//   NUM_CONSTANT           number of constant result vectors, which no chunk writes
// and the tables
//   IN_SIZE, OUT_SIZE      sizes of the ports
//   IS_READ                1 for each input port that is read
//   CONSTANT_AT, CONSTANT  index and value of the constant result vectors
//   ZERO                   1 for each whole block of W columns of a port that is zero
//   RESULT_AT, FACTOR_AT   vector of each result and of its factor, counted from `out`; unless IN_ORDER

#if IN_ORDER
#define RESULTS(out) ((const V*)(out))
#elif SCALED
#define RESULTS(out) (ScaledResults{out, RESULT_AT, FACTOR_AT})
#else
#define RESULTS(out) (IndexedResults{out, RESULT_AT})
#endif

struct Call {
  long long batch, block_rows;  // number of samples, and of those of a block, the unit of work of a thread
  CallPort ports[1];  // inputs, then outputs
};

// Prefetches the cache lines of W rows of a port, starting at `sample`. Data that is read later goes to the second-level
// cache, since the computation in between replaces the first level.
INLINE void prefetch_rows(CallPort port, long long sample, int size, bool to_write) {
  const bool is_dense = port.stride == size;
  const long long bytes = (is_dense ? W : 1) * size * (long long)sizeof(T);
  for (int row = 0; row < (is_dense ? 1 : W); ++row) {
    const char* start = (const char*)(port.data + (sample + row) * port.stride);
    for (const char* line = start; line < start + bytes; line += 64)
      to_write ? __builtin_prefetch(line, 1) : __builtin_prefetch(line, 0, 2);
  }
}

// Results larger than MAX_CACHED bytes are written with non-temporal stores, which bypass the caches. Smaller ones stay
// in the caches for the next reader or writer. AMD Zen (recognized by its instruction CLZERO) has a third-level victim
// cache and reports its size; both kinds of stores are equally fast for results of half its size.
#ifdef __CLZERO__
static long long half_of_third_level() {
  unsigned kind = 0x8000001d, shape, sets = 3, rest;  // AMD64 manual, volume 3, appendix E: each number less 1
  __asm__("cpuid" : "+a"(kind), "=b"(shape), "+c"(sets), "=d"(rest));
  if ((kind & 31) == 0) return 1 << 24;  // not reported: the size of most Zen processors
  const long long line = (shape & 4095) + 1, partitions = (shape >> 12 & 1023) + 1, ways = (shape >> 22) + 1;
  return line * partitions * ways * (sets + 1LL) / 2;
}
static const long long MAX_CACHED = half_of_third_level();
#else
static const long long MAX_CACHED = 7 << 21;
#endif

// Prefetches the inputs of the next tiles and the results of these during the computation. Hardware prefetchers do
// not detect accesses to a few rows of several arrays every thousand operations.
static void prefetch_tile(
    const CallPort* in, const CallPort* out, long long sample, long long rows, bool past) {
  if (rows < (TILES + 1) * W) return;
  for (int p = 0; p < NUM_IN_PORTS; ++p)
    if (IS_READ[p] && in[p].stride != 0) prefetch_rows(in[p], sample + TILES * W, IN_SIZE[p], false);
  for (int p = 0; p < NUM_OUT_PORTS; ++p)
    if (out[p].stride != 0 && FETCHED_BEFORE(OUT_SIZE[p]) && !(past && goes_past(out[p].data, OUT_SIZE[p])))
      prefetch_rows(out[p], sample, OUT_SIZE[p], true);
}

// Loads the rows of each port as vectors, except ports that all samples share.
template <int P = 0>
INLINE void load_ports(const CallPort* ports, long long sample, long long rows, V* to) {
  if constexpr (P < NUM_IN_PORTS) {
    const CallPort port = ports[P];
    if (IS_READ[P] && port.stride != 0) load_rows<IN_SIZE[P]>(port.data + sample * port.stride, port.stride, rows, to);
    load_ports<P + 1>(ports, sample, rows, to + IN_SIZE[P]);
  }
}

// Number of whole blocks of columns of all ports before `port`.
constexpr int blocks_before(int port) {
  int blocks = 0;
  for (int p = 0; p < port; ++p) blocks += OUT_SIZE[p] / W;
  return blocks;
}

// Stores vectors as the rows of each port, except ports that are summed.
template <int P = 0, class Vectors>
INLINE void store_ports(
    const CallPort* ports, long long sample, long long rows, Vectors from, const int* zero, bool past) {
  if constexpr (P < NUM_OUT_PORTS) {
    enum { SIZE = OUT_SIZE[P] };
    T* data = ports[P].data + sample * SIZE;
    if (ports[P].stride != 0 && past && rows >= W && goes_past(ports[P].data, SIZE))
      store_rows_past<SIZE % W, has_zero_groups(ZERO + blocks_before(P), SIZE / W)>(data, SIZE, from, zero);
    else if (ports[P].stride != 0)
      store_rows<SIZE>(data, rows, from, zero);
    store_ports<P + 1>(ports, sample, rows, from + SIZE, zero + SIZE / W, past);
  }
}

EXPORT torchsko_width = W;
EXPORT torchsko_tiles = TILES;
EXPORT torchsko_cost = COST;
EXPORT torchsko_scratch_bytes = (TILES * TILE_VECTORS + NUM_OUT) * sizeof(V);

// Processes the samples of blocks first to last - 1, up to TILES tiles at a time. The caller provides the scratch,
// since thread stacks are small.
extern "C" __attribute__((visibility("default"))) void ENTRY(
    const Call* call, void* scratch, long long first, long long last) {
  V *tiles = (V*)scratch, *sums = tiles + TILES * TILE_VECTORS;
  const CallPort *inputs = call->ports, *outputs = inputs + NUM_IN_PORTS;
  // Inputs and results exceed a second-level cache.
  const bool is_large = call->batch > (long long)((1 << 20) / ((NUM_IN + NUM_OUT) * sizeof(T)));
  const bool past = call->batch * (long long)(NUM_OUT * sizeof(T)) > MAX_CACHED;
  bool sum = false;
  for (int p = 0; p < NUM_OUT_PORTS; ++p) sum |= outputs[p].stride == 0;
  for (int t = 0; t < TILES && t * (long long)W < call->batch; ++t) {
    V *to = tiles + t * TILE_VECTORS, *out = to + NUM_READ;
    for (int p = 0; p < NUM_IN_PORTS; to += IN_SIZE[p++])
      if (inputs[p].stride == 0)
        for (int k = 0; k < IN_SIZE[p]; ++k) to[k] = splat(inputs[p].data[k]);
    for (int k = 0; k < NUM_CONSTANT; ++k) out[CONSTANT_AT[k]] = splat(CONSTANT[k]);
  }
  for (long long block = first; block < last; ++block) {
    for (int k = 0; sum && k < NUM_OUT; ++k) sums[k] = V{};
    const long long begin = block * call->block_rows, next = begin + call->block_rows;
    const long long end = next < call->batch ? next : call->batch;
    for (long long group = begin; group < end; group += TILES * W) {
      int count = 0;
      for (long long sample = group; count < TILES && sample < end; sample += W, ++count) {
        load_ports(inputs, sample, call->batch - sample, tiles + count * TILE_VECTORS);
        if (is_large) prefetch_tile(inputs, outputs, sample, call->batch - sample, past);
      }
      run_tiles(tiles, count);
      for (int t = 0; t < count; ++t) {
        const long long sample = group + t * W, rows = call->batch - sample;
        V* out = tiles + t * TILE_VECTORS + NUM_READ;
        store_ports(outputs, sample, rows, RESULTS(out), ZERO, past);
        if (!sum) continue;
        M live;
        LANES live[lane] = lane < rows ? -1 : 0;
        for (int k = 0, p = 0; p < NUM_OUT_PORTS; k += OUT_SIZE[p++])
          for (int j = 0; outputs[p].stride == 0 && j < OUT_SIZE[p]; ++j)
            sums[k + j] += select(live, RESULTS(out)[k + j], V{});
      }
    }
    int k = 0;
    for (int p = 0; p < NUM_OUT_PORTS; k += OUT_SIZE[p++])
      if (outputs[p].stride == 0)
        for (int j = 0; j < OUT_SIZE[p]; ++j)
          outputs[p].data[block * OUT_SIZE[p] + j] = lane_sum(sums[k + j]);
  }
  if (past) finish_past();
}
