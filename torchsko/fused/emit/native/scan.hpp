// The loop over the batch and, inside of it, the loop over steps: the state of W samples stays in vectors
// from the first step to the last.
//
// The generator defines before this text, in addition to the macros of `driver.hpp`,
//   CARRY_PORTS, STREAM_PORTS, STACKED_PORTS, SUMMED_PORTS   number of ports of each role
//   CARRY, STREAM, STACKED, SUMMED                           number of scalars of these ports
// Inputs are the carry (state), streamed inputs, of which each step reads its entry, and invariant inputs. Outputs are
// the next carry, stacked outputs, one entry for each step, and outputs that are summed over the steps.

// Samples are `stride` scalars apart (0: one for all samples), steps `step` scalars (0: one for all steps).
struct ScanPort {
  T* data;
  long long stride, step;
};
struct ScanCall {
  long long batch, block_rows;  // as in `driver.hpp`
  long long steps;
  long long every;     // steps from one written state to the next, the start included; 0: only the last.
                       // Stacked outputs are written with the states after the start, at each step if 0.
  long long backward;  // whether steps go from the last to the first, and states are written in this order
  ScanPort ports[1];   // inputs, then outputs
};

// Writes rows that are `stride` apart, without changing the memory between them.
static void store_apart(T* data, long long stride, int size, long long rows, const V* from) {
  const int used = rows < W ? (int)rows : W;
  int column = 0;
  for (; used == W && column + W <= size; column += W) {
    V block[W];
    for (int k = 0; k < W; ++k) block[k] = from[column + k];
    transpose(block);
    LANES *(Row*)(data + lane * stride + column) = block[lane];
  }
  for (; column < size; ++column)
    for (int lane = 0; lane < used; ++lane) data[lane * stride + column] = from[column][lane];
}

static void load_port(ScanPort port, long long sample, long long first, int size, long long rows, V* to) {
  const T* data = port.data + sample * port.stride + first;
  if (port.stride != 0)
    load_rows(data, port.stride, size, rows, to);
  else
    for (int k = 0; k < size; ++k) to[k] = splat(data[k]);
}

EXPORT torchsko_width = W;
EXPORT torchsko_tiles = 1;
EXPORT torchsko_cost = COST;
EXPORT torchsko_scratch_bytes =
    (NUM_IN + 2 * NUM_ANGLES + NUM_OUT + SUMMED + W * (CARRY + STREAM + STACKED) + NUM_SLOTS) * sizeof(V);

// Processes the samples of blocks first to last - 1. Steps are read and written W at a time, so that whole vectors
// are transposed for ports of any size.
extern "C" __attribute__((visibility("default"))) void ENTRY(
    const ScanCall* call, void* scratch, long long first, long long last) {
  V *in = (V*)scratch, *out = in + NUM_IN + 2 * NUM_ANGLES, *sums = out + NUM_OUT;
  V *states = sums + SUMMED, *streams = states + W * CARRY, *stacked = streams + W * STREAM;
  V* slots = stacked + W * STACKED;
  const ScanPort* inputs = call->ports;
  const ScanPort *carried = inputs + NUM_IN_PORTS, *stacks = carried + CARRY_PORTS;
  const ScanPort* summed = stacks + STACKED_PORTS;
  const long long steps = call->steps, every = call->every;
  for (int k = 0; k < NUM_CONSTANT; ++k) out[CONSTANT_AT[k]] = splat(CONSTANT[k]);
  for (long long block = first; block < last; ++block) {
    const long long begin = block * call->block_rows, next = begin + call->block_rows;
    const long long end = next < call->batch ? next : call->batch;
    for (long long sample = begin; sample < end; sample += W) {
      const long long rows = call->batch - sample;
      V* to = in;
      for (int p = 0; p < NUM_IN_PORTS; to += IN_SIZE[p++]) {
        const bool is_stream = p >= CARRY_PORTS && p < CARRY_PORTS + STREAM_PORTS;
        if (!is_stream || (inputs[p].step == 0 && steps > 0)) load_port(inputs[p], sample, 0, IN_SIZE[p], rows, to);
      }
      for (int k = 0; k < SUMMED; ++k) sums[k] = V{};
      if (every > 0) {
        const V* from = in;
        const long long row = call->backward ? steps : 0;
        for (int p = 0; p < CARRY_PORTS; from += IN_SIZE[p++])
          store_apart(carried[p].data + sample * carried[p].stride + row * IN_SIZE[p],
                      carried[p].stride, IN_SIZE[p], rows, from);
      }
      for (long long done = 0; done < steps; done += W) {
        const int n = steps - done < W ? (int)(steps - done) : W;
        const long long low = call->backward ? steps - done - n : done;
        to = streams;
        for (int p = CARRY_PORTS; p < CARRY_PORTS + STREAM_PORTS; to += W * IN_SIZE[p++])
          if (inputs[p].step != 0)
            load_port(inputs[p], sample, low * IN_SIZE[p], n * IN_SIZE[p], rows, to);
        for (int j = 0; j < n; ++j) {
          const int at = call->backward ? n - 1 - j : j;
          const V* from = streams;
          to = in + CARRY;
          for (int p = CARRY_PORTS; p < CARRY_PORTS + STREAM_PORTS; ++p) {
            if (inputs[p].step != 0)
              for (int k = 0; k < IN_SIZE[p]; ++k) to[k] = from[at * IN_SIZE[p] + k];
            from += W * IN_SIZE[p];
            to += IN_SIZE[p];
          }
          run_tile(in, out, slots);
          for (int k = 0; k < CARRY; ++k) in[k] = out[k];
          to = states;
          from = out;
          if (every == 1)
            for (int p = 0; p < CARRY_PORTS; to += W * IN_SIZE[p], from += IN_SIZE[p++])
              for (int k = 0; k < IN_SIZE[p]; ++k) to[at * IN_SIZE[p] + k] = from[k];
          else if (every > 1 && (done + j + 1) % every == 0)
            for (int p = 0; p < CARRY_PORTS; from += IN_SIZE[p++])
              store_apart(carried[p].data + sample * carried[p].stride +
                              (done + j + 1) / every * IN_SIZE[p],
                          carried[p].stride, IN_SIZE[p], rows, from);
          to = stacked;
          from = out + CARRY;
          for (int p = CARRY_PORTS; p < CARRY_PORTS + STACKED_PORTS; ++p) {
            const ScanPort port = stacks[p - CARRY_PORTS];
            if (every <= 1)
              for (int k = 0; k < OUT_SIZE[p]; ++k) to[at * OUT_SIZE[p] + k] = from[k];
            else if ((done + j + 1) % every == 0)
              store_apart(port.data + sample * port.stride + ((done + j + 1) / every - 1) * OUT_SIZE[p],
                          port.stride, OUT_SIZE[p], rows, from);
            to += W * OUT_SIZE[p];
            from += OUT_SIZE[p];
          }
          for (int k = 0; k < SUMMED; ++k) sums[k] += from[k];
        }
        const V* from = states;
        if (every == 1)
          for (int p = 0; p < CARRY_PORTS; from += W * IN_SIZE[p++])
            store_apart(carried[p].data + sample * carried[p].stride +
                            (call->backward ? low : low + 1) * IN_SIZE[p],
                        carried[p].stride, n * IN_SIZE[p], rows, from);
        from = stacked;
        for (int p = 0; p < STACKED_PORTS && every <= 1; ++p) {
          const int size = OUT_SIZE[CARRY_PORTS + p];
          store_apart(stacks[p].data + sample * stacks[p].stride + low * size, stacks[p].stride,
                      n * size, rows, from);
          from += W * size;
        }
      }
      const V* from = in;
      if (every == 0)
        for (int p = 0; p < CARRY_PORTS; from += IN_SIZE[p++])
          store_apart(carried[p].data + sample * carried[p].stride, carried[p].stride, IN_SIZE[p],
                      rows, from);
      from = sums;
      for (int p = 0; p < SUMMED_PORTS; ++p) {
        const int size = OUT_SIZE[CARRY_PORTS + STACKED_PORTS + p];
        store_apart(summed[p].data + sample * summed[p].stride, summed[p].stride, size, rows, from);
        from += size;
      }
    }
  }
}
