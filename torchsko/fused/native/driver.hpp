// The loop over the batch: rows of samples are transposed into vectors, the chunks run, and the
// results are transposed back into rows.
//
// The generator defines before this text
//   ENTRY                  the exported name
//   NUM_IN, NUM_OUT        input and output scalars of one sample
//   NUM_IN_PORTS, NUM_OUT_PORTS
//   NUM_SLOTS              scratch vectors of the chunks
//   COST                   time of one vector of samples, in additions
//   LOW, HIGH              lanes of the interleaved lower and upper halves of two vectors
//   run_tile(in, out, s)   calls the chunks
//   NUM_CONSTANT           outputs that are constants, which no chunk writes
// and the tables IN_SIZE, OUT_SIZE of the ports' sizes, CONSTANT_AT, CONSTANT of those outputs.

// A port of one call. Rows are `stride` scalars apart; stride 0 says that an input has one row for
// the whole batch, and that an output is to be summed over each block of the batch, into one row a
// block (a fixed order of summation, whatever the threads do).
struct CallPort {
  T* data;
  long long stride;
};
struct Call {
  long long batch, block_rows;  // samples, and those of a block, the unit of work of a thread
  CallPort ports[1];  // inputs, then outputs
};

// Transposes W vectors: log2(W) perfect shuffles.
INLINE void transpose(V* a) {
#pragma GCC unroll 4
  for (int step = 1; step < W; step *= 2) {
    V b[W];
#pragma GCC unroll 16
    for (int k = 0; k < W / 2; ++k) {
      b[2 * k] = __builtin_shufflevector(a[k], a[k + W / 2], LOW);
      b[2 * k + 1] = __builtin_shufflevector(a[k], a[k + W / 2], HIGH);
    }
#pragma GCC unroll 16
    for (int k = 0; k < W; ++k) a[k] = b[k];
  }
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
  for (; column < size; ++column)
    LANES to[column][lane] = data[(lane < rows ? lane : rows - 1) * stride + column];
}

// Output rows follow each other without gaps.
static void store_rows(T* data, int size, long long rows, const V* from) {
  const int used = rows < W ? (int)rows : W, whole = used < W ? 0 : size / W * W;
  V block[W];
  // A partial block of columns writes past its row, over what is written later; so it goes first,
  // and rows with nothing after them are written scalar by scalar.
  for (int base = whole; base < size; base += W) {
    const int wide = size - base < W ? size - base : W;
    for (int k = 0; k < W; ++k) block[k] = from[base + (k < wide ? k : 0)];
    transpose(block);
    for (int lane = 0; lane < used; ++lane) {
      T* row = data + lane * size + base;
      if (used == W && lane * size + base + W <= W * size)
        *(Row*)row = block[lane];
      else
        for (int k = 0; k < wide; ++k) row[k] = block[lane][k];
    }
  }
  for (int base = 0; base < whole; base += W) {
    for (int k = 0; k < W; ++k) block[k] = from[base + k];
    transpose(block);
    LANES *(Row*)(data + lane * size + base) = block[lane];
  }
}

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

// What the next tile reads and this one writes arrives while this one is computed: the hardware does
// not foresee a few rows of several arrays every thousand operations.
static void prefetch_tile(const CallPort* in, const CallPort* out, long long sample, long long rows) {
  if (rows < 2 * W) return;
  for (int p = 0; p < NUM_IN_PORTS; ++p)
    if (in[p].stride != 0) prefetch_rows(in[p], sample + W, IN_SIZE[p], false);
  for (int p = 0; p < NUM_OUT_PORTS; ++p)
    if (out[p].stride != 0) prefetch_rows(out[p], sample, OUT_SIZE[p], true);
}

INLINE T lane_sum(V x) {
  T sum = 0;
  LANES sum += x[lane];
  return sum;
}

// What the caller has to know: lanes of a vector, the cost, bytes of scratch for one thread.
#define TELL extern "C" __attribute__((visibility("default"))) const long long
TELL torchsko_width = W;
TELL torchsko_cost = COST;
TELL torchsko_scratch_bytes = (NUM_IN + 2 * NUM_OUT + NUM_SLOTS) * sizeof(V);

// The samples of blocks first to last - 1. Scratch comes from the caller: thread stacks are small.
extern "C" __attribute__((visibility("default"))) void ENTRY(
    const Call* call, void* scratch, long long first, long long last) {
  V *in = (V*)scratch, *out = in + NUM_IN, *sums = out + NUM_OUT, *slots = sums + NUM_OUT;
  const CallPort *inputs = call->ports, *outputs = inputs + NUM_IN_PORTS;
  // More than a second-level cache holds.
  const bool is_large = call->batch > (long long)((1 << 20) / ((NUM_IN + NUM_OUT) * sizeof(T)));
  V* to = in;
  for (int p = 0; p < NUM_IN_PORTS; to += IN_SIZE[p++])
    if (inputs[p].stride == 0)
      for (int k = 0; k < IN_SIZE[p]; ++k) to[k] = splat(inputs[p].data[k]);
  for (int k = 0; k < NUM_CONSTANT; ++k) out[CONSTANT_AT[k]] = splat(CONSTANT[k]);
  for (long long block = first; block < last; ++block) {
    for (int k = 0; k < NUM_OUT; ++k) sums[k] = V{};
    const long long begin = block * call->block_rows, next = begin + call->block_rows;
    const long long end = next < call->batch ? next : call->batch;
    for (long long sample = begin; sample < end; sample += W) {
      const long long rows = call->batch - sample;
      to = in;
      for (int p = 0; p < NUM_IN_PORTS; to += IN_SIZE[p++]) {
        const long long stride = inputs[p].stride;
        if (stride != 0) load_rows(inputs[p].data + sample * stride, stride, IN_SIZE[p], rows, to);
      }
      if (is_large) prefetch_tile(inputs, outputs, sample, rows);
      run_tile(in, out, slots);
      M live;
      LANES live[lane] = lane < rows ? -1 : 0;
      int k = 0;
      for (int p = 0; p < NUM_OUT_PORTS; k += OUT_SIZE[p++]) {
        if (outputs[p].stride != 0)
          store_rows(outputs[p].data + sample * OUT_SIZE[p], OUT_SIZE[p], rows, out + k);
        else
          for (int j = k; j < k + OUT_SIZE[p]; ++j) sums[j] += select(live, out[j], V{});
      }
    }
    int k = 0;
    for (int p = 0; p < NUM_OUT_PORTS; k += OUT_SIZE[p++])
      if (outputs[p].stride == 0)
        for (int j = 0; j < OUT_SIZE[p]; ++j)
          outputs[p].data[block * OUT_SIZE[p] + j] = lane_sum(sums[k + j]);
  }
}
