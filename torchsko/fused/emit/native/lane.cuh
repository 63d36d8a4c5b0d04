// Functions that a scalar program may call, for CUDA, where each thread processes one sample.
//
// The names are those of vector.hpp, so that both generators print the same statements; here a
// "vector" V is one scalar. The generator defines before this text
//   T, T_BITS     the scalar type and its size, 32 or 64

typedef T V;
typedef bool M;  // result of a comparison
// NVRTC has neither headers nor GCC's builtins.
#define INFINITE (T) __longlong_as_double(0x7ff0000000000000LL)
#define NOT_A_NUMBER (T) __longlong_as_double(0x7ff8000000000000LL)
#define LANE static __device__ __forceinline__
#define INLINE LANE
#define BLOCK static __device__ __noinline__
#define UNROLL _Pragma("unroll")
#if T_BITS == 64
#define LIBM(name) name
#else
#define LIBM(name) name##f
#endif
#define CALL_1(name) \
  LANE V v##name(V x) { return LIBM(name)(x); }
#define CALL_2(name) \
  LANE V v##name(V x, V y) { return LIBM(name)(x, y); }
CALL_1(sqrt)
CALL_1(sin)
CALL_1(cos)
CALL_1(tan)
CALL_1(exp)
CALL_1(log)
CALL_1(tanh)
CALL_1(atan)
CALL_1(asin)
CALL_1(acos)
CALL_1(expm1)
CALL_1(log1p)
CALL_1(erf)
CALL_1(sinh)
CALL_1(cosh)
CALL_1(floor)
CALL_1(trunc)
CALL_1(rint)
CALL_2(pow)
CALL_2(atan2)
CALL_2(fmod)

LANE V splat(T x) { return x; }
LANE V select(bool choice, V x, V y) { return choice ? x : y; }
LANE bool in_any_lane(M x) { return x; }
LANE bool in_all_lanes(V x) { return x != 0; }
LANE V truth(bool choice) { return choice ? (T)1 : (T)0; }
LANE V vabs(V x) { return LIBM(fabs)(x); }
LANE V vmax(V x, V y) { return (x > y) || (x != x) ? x : y; }
LANE V vmin(V x, V y) { return (x < y) || (x != x) ? x : y; }
LANE V vsign(V x) { return truth(x > 0) - truth(x < 0); }
LANE V vround(V x) { return vrint(x); }
LANE void vsincos(V x, V* sine, V* cosine) { LIBM(sincos)(x, sine, cosine); }

// Rows of the samples of a warp, which all of its threads copy together, so that neighboring threads access
// neighboring scalars. A tile has one column for each thread; its pitch avoids bank conflicts.
constexpr int WARP = 32, PITCH = WARP + 1;

// Copy SIZE scalars of each sample to a tile; columns without a sample repeat the last one.
template <int SIZE>
LANE void read_rows(const T* rows, long long stride, int count, T* tile) {
  __syncwarp();
  for (int k = threadIdx.x; k < SIZE * WARP; k += WARP) {
    const int sample = k / SIZE, scalar = k - sample * SIZE;
    tile[scalar * PITCH + sample] = rows[stride * (sample < count ? sample : count - 1) + scalar];
  }
  __syncwarp();
}

// Copy SIZE scalars of each thread to the rows of the samples, or their sums to one row.
template <int SIZE>
LANE void write_rows(const T* x, T* rows, long long stride, int count, bool sum, T* tile) {
#pragma unroll(SIZE <= 2 * WARP ? 2 : 1)
  for (int start = 0; start < SIZE; start += WARP) {
    const int width = SIZE - start < WARP ? SIZE - start : WARP;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < WARP; ++k)
      if (k < width) tile[k * PITCH + threadIdx.x] = x[start + k];
    __syncwarp();
    if (sum) {
      T total = 0;
      for (int sample = 0; sample < count; ++sample)
        if (threadIdx.x < width) total += tile[threadIdx.x * PITCH + sample];
      if (threadIdx.x < width) rows[start + threadIdx.x] = total;
    } else {
      for (int k = threadIdx.x; k < width * count; k += WARP) {
        const int sample = k / width, scalar = k - sample * width;
        rows[stride * sample + start + scalar] = tile[scalar * PITCH + sample];
      }
    }
  }
}
