// The loop over the batch: rows of samples are transposed into vectors, the chunks run, and the
// results are transposed back into rows.
//
// The generator defines before this text
//   ENTRY                  the exported name
//   NUM_IN, NUM_OUT        input and output scalars of one sample
//   NUM_IN_PORTS, NUM_OUT_PORTS
//   NUM_ANGLES             inputs whose sines and cosines stand behind the inputs
//   NUM_SLOTS              scratch vectors of the chunks
//   COST                   time of one vector of samples, in additions
//   TILES                  how many vectors of samples a chunk is run for at most, before the next one
//   NUM_READ, OF_TILE      vectors of inputs and their sines and cosines, and of all scratch, for one of these
//   run_tiles(tiles, n)    calls the chunks for n of these
//   NUM_OWN                vectors of results alone; some results are equal, some lie in the slots behind
//   IN_ORDER               whether each result has a vector of its own, in order
//   MULTIPLES              whether results are vectors times others
//   NUM_CONSTANT           vectors of results that are constants, which no chunk writes
//   NUM_GIVEN              slots of loops that are constants, likewise
// and the tables IN_SIZE, OUT_SIZE of the ports' sizes, READ_AT_ALL: whether an input port is, CONSTANT_AT, CONSTANT of those vectors, GIVEN_AT,
// GIVEN of those slots, ZERO of the ports' whole blocks of W columns: whether they are zeros, AT, if they are
// not in order: where results are, and BY: where what they are multiplied with is, from `out` on.

#if IN_ORDER
#define RESULTS(out) ((const V*)(out))
#elif SCALED
#define RESULTS(out) (ScaledResults{out, RESULT_AT, FACTOR_AT})
#else
#define RESULTS(out) (IndexedResults{out, RESULT_AT})
#endif

struct Call {
  long long batch, block_rows;  // samples, and those of a block, the unit of work of a thread
  CallPort ports[1];  // inputs, then outputs
};

// Fetches the cache lines of the W rows of a port from `sample` on; what is read later goes to the second
// level, since the computation in between sweeps the first.
INLINE void prefetch_rows(CallPort port, long long sample, int size, bool to_write) {
  const bool is_dense = port.stride == size;
  const long long bytes = (is_dense ? W : 1) * size * (long long)sizeof(T);
  for (int row = 0; row < (is_dense ? 1 : W); ++row) {
    const char* start = (const char*)(port.data + (sample + row) * port.stride);
    for (const char* line = start; line < start + bytes; line += 64)
      to_write ? __builtin_prefetch(line, 1) : __builtin_prefetch(line, 0, 2);
  }
}

// Results of more bytes are stored past the caches. Who reads smaller ones next finds them there, and so does who
// writes to their memory again. Zen (known by an instruction of its own) has a third level that takes what the
// second one gives up, and tells its size: where results take a half of it, both ways are as fast.
#ifdef __CLZERO__
static long long half_of_third_level() {
  unsigned kind = 0x8000001d, shape, sets = 3, rest;  // AMD64 manual, volume 3, appendix E: each number less 1
  __asm__("cpuid" : "+a"(kind), "=b"(shape), "+c"(sets), "=d"(rest));
  if ((kind & 31) == 0) return 1 << 24;  // not told: of most Zen
  const long long line = (shape & 4095) + 1, partitions = (shape >> 12 & 1023) + 1, ways = (shape >> 22) + 1;
  return line * partitions * ways * (sets + 1LL) / 2;
}
static const long long MAX_CACHED = half_of_third_level();
#else
static const long long MAX_CACHED = 7 << 21;
#endif

// What the next tiles read and these write arrives while these are computed: the hardware does
// not foresee a few rows of several arrays every thousand operations.
static void prefetch_tile(
    const CallPort* in, const CallPort* out, long long sample, long long rows, bool past) {
  if (rows < (TILES + 1) * W) return;
  for (int p = 0; p < NUM_IN_PORTS; ++p)
    if (IS_READ[p] && in[p].stride != 0) prefetch_rows(in[p], sample + TILES * W, IN_SIZE[p], false);
  for (int p = 0; p < NUM_OUT_PORTS; ++p)
    if (out[p].stride != 0 && FETCHED_BEFORE(OUT_SIZE[p]) && !(past && goes_past(out[p].data, OUT_SIZE[p])))
      prefetch_rows(out[p], sample, OUT_SIZE[p], true);
}

// The rows of each port as vectors, but for those that all samples share.
template <int P = 0>
INLINE void load_ports(const CallPort* ports, long long sample, long long rows, V* to) {
  if constexpr (P < NUM_IN_PORTS) {
    const CallPort port = ports[P];
    if (IS_READ[P] && port.stride != 0) load_rows<IN_SIZE[P]>(port.data + sample * port.stride, port.stride, rows, to);
    load_ports<P + 1>(ports, sample, rows, to + IN_SIZE[P]);
  }
}

// Whole blocks of columns of the ports before one.
constexpr int blocks_before(int port) {
  int blocks = 0;
  for (int p = 0; p < port; ++p) blocks += OUT_SIZE[p] / W;
  return blocks;
}

// Vectors as the rows of each port, but for those that are summed.
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

// The samples of blocks first to last - 1, some tiles of W at a time, each with scratch of its own. Scratch comes
// from the caller: thread stacks are small.
extern "C" __attribute__((visibility("default"))) void ENTRY(
    const Call* call, void* scratch, long long first, long long last) {
  V *tiles = (V*)scratch, *sums = tiles + TILES * TILE_VECTORS;
  const CallPort *inputs = call->ports, *outputs = inputs + NUM_IN_PORTS;
  // More than a second-level cache holds.
  const bool is_large = call->batch > (long long)((1 << 20) / ((NUM_IN + NUM_OUT) * sizeof(T)));
  const bool past = call->batch * (long long)(NUM_OUT * sizeof(T)) > MAX_CACHED;
  bool sum = false;
  for (int p = 0; p < NUM_OUT_PORTS; ++p) sum |= outputs[p].stride == 0;
  for (int t = 0; t < TILES && t * (long long)W < call->batch; ++t) {
    V *to = tiles + t * TILE_VECTORS, *out = to + NUM_READ, *slots = out + NUM_RESULT_VECTORS;
    for (int p = 0; p < NUM_IN_PORTS; to += IN_SIZE[p++])
      if (inputs[p].stride == 0)
        for (int k = 0; k < IN_SIZE[p]; ++k) to[k] = splat(inputs[p].data[k]);
    for (int k = 0; k < NUM_CONSTANT; ++k) out[CONSTANT_AT[k]] = splat(CONSTANT[k]);
    for (int k = 0; k < NUM_LOOP_CONSTANT; ++k) slots[LOOP_CONSTANT_AT[k]] = splat(LOOP_CONSTANT[k]);
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
