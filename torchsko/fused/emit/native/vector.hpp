// Vectors of samples and the functions that a scalar program may call on them.
//
// One vector holds one scalar of the program for W samples. The generator defines before this text
//   T, I          the scalar and the signed integer of its size
//   T_BITS        32 or 64
//   BYTES         size of a vector, 16, 32 or 64
// GCC's vector extensions, which Clang supports, avoid intrinsics of one instruction set. No fast-math
// flag is used, so NaN and infinities propagate as in eager code.

typedef T V __attribute__((vector_size(BYTES), may_alias));
typedef I M __attribute__((vector_size(BYTES), may_alias));
enum { W = BYTES / sizeof(T) };
#define INFINITE (T)__builtin_inf()
#define NOT_A_NUMBER (T)__builtin_nan("")
#define INLINE static inline __attribute__((always_inline, unused))
#define BLOCK static __attribute__((noinline, unused))
#define UNROLL _Pragma("GCC unroll 8")
#define LANES for (int lane = 0; lane < W; ++lane)

INLINE V splat(T x) { return x - V{}; }  // a sum would lose the sign of -0
INLINE V select(M mask, V x, V y) { return mask ? x : y; }
INLINE bool in_all_lanes(V x) {
  bool all = true;
  LANES all = all && x[lane] != 0;
  return all;
}

INLINE V truth(M mask) { return (V)(mask & (M)splat(1)); }
INLINE V vabs(V x) { return (V)((M)x & ~((I)1 << (T_BITS - 1))); }

INLINE bool in_any_lane(M mask) {
#if BYTES == 64  // of the words of the mask itself, g++ makes eight registers
  typedef signed char Narrow __attribute__((vector_size(W), may_alias));
  const Narrow narrow = __builtin_convertvector(mask, Narrow);
#if T_BITS == 64
  return (long long)narrow != 0;
#else
  typedef long long Words __attribute__((vector_size(W), may_alias));
  const Words words = (Words)narrow;
  return (words[0] | words[1]) != 0;
#endif
#else
  typedef long long Words __attribute__((vector_size(BYTES), may_alias));
  const Words words = (Words)mask;
  long long some = 0;
  for (int k = 0; k < BYTES / 8; ++k) some |= words[k];
  return some != 0;
#endif
}

// Loops over lanes: roundings and roots compile to one instruction, all others to calls of the C library for each lane.
#if T_BITS == 64
#define LIBM(name) __builtin_##name
#else
#define LIBM(name) __builtin_##name##f
#endif
#define BY_LANE_1(name)                               \
  INLINE V v##name(V x) {                             \
    V y = x;                                          \
    LANES y[lane] = LIBM(name)(x[lane]);              \
    return y;                                         \
  }
#define BY_LANE_2(name)                               \
  INLINE V v##name(V x, V y) {                        \
    V z = x;                                          \
    LANES z[lane] = LIBM(name)(x[lane], y[lane]);     \
    return z;                                         \
  }
BY_LANE_1(sqrt)
BY_LANE_1(tan)
BY_LANE_1(atan)
BY_LANE_1(asin)
BY_LANE_1(acos)
BY_LANE_1(log1p)
BY_LANE_1(erf)
BY_LANE_1(sinh)
BY_LANE_1(cosh)
BY_LANE_1(floor)
BY_LANE_1(trunc)
BY_LANE_1(rint)
BY_LANE_2(pow)
BY_LANE_2(atan2)
BY_LANE_2(fmod)

// NaN in either argument gives NaN, as torch.maximum and torch.minimum do.
INLINE V vmax(V x, V y) { return select((x > y) | (x != x), x, y); }
INLINE V vmin(V x, V y) { return select((x < y) | (x != x), x, y); }
INLINE V vsign(V x) { return truth(x > 0) - truth(x < 0); }
INLINE V vround(V x) { return vrint(x); }  // halves to even, unlike the C library's round

// Sine and cosine. The nearest multiple n of pi/2 is subtracted from the argument in parts (Cody and Waite 1980).
// With a fused multiply-add every product n * PIO2_k is exact, so the parts have full width. Without it
// all parts but the last are short enough for their products to be exact, which bounds n.
// Lanes beyond REDUCIBLE are computed by the C library. The polynomials are minimax fits on
// |x| <= pi/4 (Remez exchange) with errors 2^-58 and 2^-64 in double, 2^-37 and 2^-33 in single precision.
#if T_BITS == 64
#define SHIFT 0x1.8p+52
#ifdef __FP_FAST_FMA
#define REDUCIBLE 0x1p+30
#define PIO2_1 0x1.921fb54442d18p+0
#define PIO2_2 0x1.1a62633145c07p-54
#define PIO2_3 -0x1.f1976b7ed8fbcp-110
#else
#define REDUCIBLE 0x1p+20
#define PIO2_1 0x1.921fb544p+0
#define PIO2_2 0x1.0b4611a6p-34
#define PIO2_3 0x1.3198a2e000000p-69
#define PIO2_4 0x1.b839a252049c1p-104
#endif
static const T SIN[] = {-0x1.5555555555549p-3, 0x1.111111110f8c9p-7, -0x1.a01a019c19948p-13,
                        0x1.71de357d92949p-19, -0x1.ae5e6a3a8b3f1p-26, 0x1.5d94092df750ep-33};
static const T COS[] = {0x1.555555555554cp-5, -0x1.6c16c16c151b4p-10, 0x1.a01a019cb6650p-16,
                        -0x1.27e4f80cf3e5cp-22, 0x1.1ee9edc5e3ca0p-29, -0x1.8faf7f63d1827p-37};
#else
#define SHIFT 0x1.8p+23f
#ifdef __FP_FAST_FMAF
#define REDUCIBLE 0x1p+17f
#define PIO2_1 0x1.921fb6p+0f
#define PIO2_2 -0x1.777a5cp-25f
#define PIO2_3 -0x1.ee59dap-50f
#else
#define REDUCIBLE 0x1p+10f
#define PIO2_1 0x1.921p+0f
#define PIO2_2 0x1.f6ap-13f
#define PIO2_3 0x1.1100000000000p-26f
#define PIO2_4 0x1.68c2340000000p-39f
#endif
static const T SIN[] = {-0x1.5555554b74e53p-3f, 0x1.111107a5c2506p-7f, -0x1.a00edacae7346p-13f,
                        0x1.6ca9e17cbc012p-19f};
static const T COS[] = {0x1.5555497f705e3p-5f, -0x1.6c0bc8fa536e0p-10f, 0x1.99c93d31ec751p-16f};
#endif

template <int N>
INLINE V horner(const T (&coefficients)[N], V z) {
  V sum = splat(coefficients[N - 1]);
#pragma GCC unroll 12
  for (int k = N - 2; k >= 0; --k) sum = sum * z + coefficients[k];
  return sum;
}

INLINE void sincos_reduced(V x, V* sine, V* cosine) {
  const V shifted = x * (T)0x1.45f306dc9c883p-1 + (T)SHIFT;  // the low bits now hold n
  const V n = shifted - (T)SHIFT;
  V r = ((x - n * (T)PIO2_1) - n * (T)PIO2_2) - n * (T)PIO2_3;
#ifdef PIO2_4
  r = r - n * (T)PIO2_4;
#endif
  const V z = r * r, half = z * (T)0.5, head = (T)1 - half;
  const V s = r + r * z * horner(SIN, z);
  const V c = head + ((((T)1 - head) - half) + z * z * horner(COS, z));
  const M quadrant = (M)shifted, odd = (quadrant & 1) != 0;
  *sine = (V)((M)select(odd, c, s) ^ ((quadrant & 2) << (T_BITS - 2)));
  *cosine = (V)((M)select(odd, s, c) ^ (((quadrant + 1) & 2) << (T_BITS - 2)));
}

// Changes only the lanes out of range, so that no sample depends on the others of its vector.
static __attribute__((noinline, cold, unused)) void sincos_by_lane(V x, V* sine, V* cosine) {
  sincos_reduced(x, sine, cosine);
  LANES if (!(LIBM(fabs)(x[lane]) <= (T)REDUCIBLE)) {
    (*sine)[lane] = LIBM(sin)(x[lane]);
    (*cosine)[lane] = LIBM(cos)(x[lane]);
  }
}

INLINE void sincos_of(V x, V* sine, V* cosine) {
  if (__builtin_expect(in_any_lane(vabs(x) > (T)REDUCIBLE), 0)) return sincos_by_lane(x, sine, cosine);
  sincos_reduced(x, sine, cosine);
}
// Not inlined: inlining takes a third of the build time and gains nothing.
static __attribute__((noinline, unused)) void vsincos(V x, V* sine, V* cosine) { sincos_of(x, sine, cosine); }
INLINE V vsin(V x) { V s, c; vsincos(x, &s, &c); return s; }
INLINE V vcos(V x) { V s, c; vsincos(x, &s, &c); return c; }

// Exponentials and the logarithm. The argument is n ln 2 + r with |r| <= ln 2 / 2, or 2^n m with m close to
// 1. Of the two parts of ln 2 the first is short enough for its product with n to be exact. The series
// are truncated where the next term is below half a unit in the last place.
#if T_BITS == 64
static const I MANTISSA = 52, BIAS = 1023;
#define LN2_1 0x1.62e42feep-1
#define LN2_2 0x1.a39ef35793c76p-33
#define ROOT_HALF_BITS 0x3fe6a09e667f3bcdLL
#define SMALLEST_NORMAL 0x1p-1022
#define LARGEST 0x1.fffffffffffffp+1023
#define EXP_LARGEST 0x1.62e42fefa39efp+9  // largest argument with a finite exponential
#define EXP_ZERO -746.0                   // below this the exponential is zero
#define TANH_ONE 20.0
static const T EXP[] = {1 / 2., 1 / 6., 1 / 24., 1 / 120., 1 / 720., 1 / 5040., 1 / 40320., 1 / 362880.,
                        1 / 3628800., 1 / 39916800., 1 / 479001600., 1 / 6227020800.};
static const T LOG[] = {2 / 3., 2 / 5., 2 / 7., 2 / 9., 2 / 11., 2 / 13., 2 / 15., 2 / 17., 2 / 19., 2 / 21.};
#else
static const I MANTISSA = 23, BIAS = 127;
#define LN2_1 0x1.62e4p-1f
#define LN2_2 0x1.7f7d1cp-20f
#define ROOT_HALF_BITS 0x3f3504f3
#define SMALLEST_NORMAL 0x1p-126f
#define LARGEST 0x1.fffffep+127f
#define EXP_LARGEST 0x1.62e42ep+6f
#define EXP_ZERO -104.0f
#define TANH_ONE 10.0f
static const T EXP[] = {1 / 2.f, 1 / 6.f, 1 / 24.f, 1 / 120.f, 1 / 720.f, 1 / 5040.f, 1 / 40320.f};
static const T LOG[] = {2 / 3.f, 2 / 5.f, 2 / 7.f, 2 / 9.f, 2 / 11.f};
#endif

INLINE V power_of_two(M n) { return (V)((n + BIAS) << MANTISSA); }
INLINE V between(V low, V x, V high) { return select(x > high, high, select(x < low, low, x)); }

// n, and exp(r) - 1.
INLINE V reduced_expm1(V x, M* n) {
  const V shifted = x * (T)0x1.71547652b82fep+0 + (T)SHIFT, whole = shifted - (T)SHIFT;
  *n = (M)shifted - (M)splat((T)SHIFT);
  const V r = (x - whole * (T)LN2_1) - whole * (T)LN2_2;
  return r + r * r * horner(EXP, r);
}

static __attribute__((noinline, unused)) V vexp(V x) {
  M n;
  const V y = 1 + reduced_expm1(between(splat(EXP_ZERO), x, splat((T)EXP_LARGEST + 1)), &n);
  const M half = n >> 1;  // 2^n itself may be out of range where the result is not
  return y * power_of_two(half) * power_of_two(n - half);
}

static __attribute__((noinline, unused)) V vexpm1(V x) {
  M n;
  const V y = reduced_expm1(between(splat(-60), x, splat((T)EXP_LARGEST)), &n);
  const V half = power_of_two(n - 1), z = 2 * (half * y + (half - (T)0.5));
  return select(x == 0, x, select(x > (T)EXP_LARGEST, splat(INFINITE), z));
}

static __attribute__((noinline, unused)) V vtanh(V x) {
  const V size = vabs(x), y = vexpm1(2 * select(size > (T)TANH_ONE, splat((T)TANH_ONE), size));
  return (V)((M)(y / (y + 2)) | ((M)x ^ (M)size));
}

INLINE V log_of_normal(V x) {
  const M n = ((M)x - (I)ROOT_HALF_BITS) >> MANTISSA;
  const V whole = __builtin_convertvector(n, V);
  const V f = (V)((M)x - (n << MANTISSA)) - 1, s = f / (2 + f), z = s * s, half = f * f * (T)0.5;
  const V rest = s * (half + z * horner(LOG, z));
  return whole * (T)LN2_1 - ((half - (rest + whole * (T)LN2_2)) - f);
}

static __attribute__((noinline, cold, unused)) V log_by_lane(V x) {
  V y = log_of_normal(x);
  LANES if (!(x[lane] >= (T)SMALLEST_NORMAL && x[lane] <= (T)LARGEST)) y[lane] = LIBM(log)(x[lane]);
  return y;
}

static __attribute__((noinline, unused)) V vlog(V x) {
  if (__builtin_expect(in_any_lane(~((x >= (T)SMALLEST_NORMAL) & (x <= (T)LARGEST))), 0)) return log_by_lane(x);
  return log_of_normal(x);
}
