/* Vectors of floats as wide as the processor's, by the extensions that GCC and Clang share. */

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(LANES) /* tests ask for others: the compiler makes them of what there is */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#endif

#if LANES == 16 && defined(__AVX512F__)
#define AVX512 1
#include <immintrin.h>
#else
#define AVX512 0
#endif

/* Before a loop whose passes do not depend on each other, which the compiler cannot see. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec x) { *(vec *)p = x; }
static inline vec all(float x) { return x - (vec){0}; }
static inline vec choose(ints where, vec yes, vec no) { return (vec)((where & (ints)yes) | (~where & (ints)no)); }

static inline float sum(vec x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

/* e^x to about one unit in the last place: 2^n e^r with |r| <= ln 2 / 2. NaN stays NaN. */
static inline vec exponential(vec x) {
    const vec low = all(-87.33654f), high = all(88.37626f);
    x = choose(x < low, low, x);
    x = choose(x > high, high, x);
    const vec shifted = x * 1.44269504f + 12582912.0f; /* n in the lowest bits: 1.5 * 2^23 leaves no fraction */
    const vec n = shifted - 12582912.0f;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)(((ints)shifted << 23) + (ints)all(1.0f));
}

/* 1 / x to about one unit in the last place; x is neither 0 nor infinite. */
static inline vec reciprocal(vec x) {
#if AVX512
    const vec y = (vec)_mm512_rcp14_ps((__m512)x);
    return y + y * (1.0f - x * y);
#else
    return 1.0f / x;
#endif
}

/* 1 / (1 + e^-x) */
static inline vec sigmoid(vec x) { return reciprocal(1.0f + exponential(-x)); }

/* silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x) */
static inline vec silu_slope(vec x) {
    const vec s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

/* The last numbers of an array, fewer than a vector holds, as a vector. */
static inline vec load_some(const float *x, ptrdiff_t count) {
    float some[LANES] = {0};
    memcpy(some, x, sizeof(float) * count);
    return load(some);
}
static inline void store_some(float *y, vec x, ptrdiff_t count) {
    float some[LANES];
    store(some, x);
    memcpy(y, some, sizeof(float) * count);
}

#if AVX512
/* So many numbers of a row, from none to a vector of them; zeros after them. */
static inline vec load_first(const float *p, int count) {
    if (count >= LANES) return load(p);
    return (vec)_mm512_maskz_loadu_ps(count > 0 ? (1u << count) - 1 : 0, p);
}

/* Of as many vectors as they have lanes. */
static inline __attribute__((always_inline)) void transpose(vec *x) {
    for (int half = 1; half < LANES; half *= 2) {
        ints even, odd;
        for (int l = 0; l < LANES; l++) {
            even[l] = l & half ? LANES + (l ^ half) : l;
            odd[l] = l & half ? LANES + l : l ^ half;
        }
        for (int i = 0; i < LANES; i++)
            if (!(i & half)) {
                const vec a = x[i], b = x[i | half];
                x[i] = (vec)_mm512_permutex2var_ps((__m512)a, (__m512i)even, (__m512)b);
                x[i | half] = (vec)_mm512_permutex2var_ps((__m512)a, (__m512i)odd, (__m512)b);
            }
    }
}
#endif
