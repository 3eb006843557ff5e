/* Tile registers (AMX) in plain C, included before a C file is built for tiles on a processor that has none. Stops the
   process where the real ones would: used before they are configured, or with one register in two places. */

#if defined(__AVX512F__) /* else there would be no tiles either */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#undef __AMX_BF16__
#define __AMX_BF16__ 1

#define LINES 16
static __thread struct {
    uint16_t lines[8][LINES][2 * LINES];
    int ready;
} registers;

static inline void need(int condition) {
    if (!condition) abort();
}

static inline void configure(const uint8_t *shape) {
    need(shape[0] == 1 && !registers.ready);
    for (int i = 0; i < 8; i++) need(shape[16 + 2 * i] == 64 && shape[17 + 2 * i] == 0 && shape[48 + i] == LINES);
    memset(registers.lines, 0, sizeof registers.lines);
    registers.ready = 1;
}

static inline void zero_register(int to) {
    need(registers.ready);
    memset(registers.lines[to], 0, sizeof registers.lines[to]);
}

static __attribute__((noinline, unused)) void fill(int to, const void *from, ptrdiff_t apart) {
    need(registers.ready);
    for (int i = 0; i < LINES; i++) memcpy(registers.lines[to][i], (const char *)from + i * apart, 64);
}

static __attribute__((noinline, unused)) void empty(int from, void *to, ptrdiff_t apart) {
    need(registers.ready);
    for (int i = 0; i < LINES; i++) memcpy((char *)to + i * apart, registers.lines[from][i], 64);
}

/* The instruction takes subnormal numbers for 0, and makes none. */
static inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }

static inline float wide(uint16_t bits) {
#if defined(HALVES)
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
#else
    const uint32_t longer = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &longer, sizeof x);
    return flushed(x);
#endif
}

static __attribute__((noinline, unused)) void add_product(int to, int left, int right) {
    need(registers.ready && to != left && to != right && left != right);
    float x[LINES][2 * LINES], w[LINES][2 * LINES];
    for (int i = 0; i < LINES; i++)
        for (int j = 0; j < 2 * LINES; j++) {
            x[i][j] = wide(registers.lines[left][i][j]);
            w[i][j] = wide(registers.lines[right][i][j]);
        }
    for (int i = 0; i < LINES; i++) {
        float sums[LINES], pairs[LINES][2] = {0};
        memcpy(sums, registers.lines[to][i], sizeof sums);
        for (int k = 0; k < LINES; k++)
            for (int n = 0; n < LINES; n++)
                for (int of = 0; of < 2; of++)
                    pairs[n][of] = flushed(__builtin_fmaf(x[i][2 * k + of], w[k][2 * n + of], pairs[n][of]));
        for (int n = 0; n < LINES; n++) sums[n] = flushed(sums[n] + flushed(pairs[n][0] + pairs[n][1]));
        memcpy(registers.lines[to][i], sums, sizeof sums);
    }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#define _tile_loadconfig(shape) configure((const void *)(shape))
#define _tile_release() (need(registers.ready), registers.ready = 0)
#define _tile_zero(to) zero_register(to)
#define _tile_loadd(to, from, apart) fill(to, from, apart)
#define _tile_stored(from, to, apart) empty(from, to, apart)
#define TILE_PRODUCT(to, x, w) add_product(to, x, w)
#endif
