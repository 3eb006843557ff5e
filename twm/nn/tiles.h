/* Tiles of matrix products: on the tile registers of recent x86 processors (AMX), to float32's precision, or on vectors.

   A tile product multiplies short numbers, two bytes each, and adds up in float32, at sixteen times the speed of vectors. A
   float32 has 24 significant bits, and is taken apart into several short ones.

   - bfloat16 has 8 bits and float32's range: x = x0 + x1 + x2, exactly. Of the nine products that make x y, six are computed:
     x0 y0, x0 y1, x1 y0, x0 y2, x1 y1, x2 y0. The others are below 2^-23 x y together. (At the ends of the range: numbers that
     round to 2^128 become infinite, and tiles take parts below 2^-126 for 0.)
   - float16 (HALVES) has 11 bits: x = x0 + x1 to 2^-23 x at most, a third of that on average, and of four products x1 y1 is left
     out: three instead of six. What is lost is below 2^-21 x y, an eighth of that on average. Its range is small. So rows and
     columns are divided by a power of two of their own, which makes their largest numbers about 2^14; what is 2^17 times smaller
     than those has fewer bits.

   Float32 rounds a product by 2^-24 x y at most, and sums of many products by more than any of this. A sum of few may be less exact
   here than there.

   A tile holds 16 lines of 16 pairs. In the left operand a line is a row of x, and pair i its numbers i and 16 + i; in the
   right operand line i holds those of all columns. The parts of a tile lie one after the other. Sixteen rows or columns are a
   strip: their tiles, and then the exponents of their powers of two. */

#include "vectors.h"

/* Outputs whose weights lie together, and vectors of them. */
enum { WIDE = 2, PANEL = LANES * WIDE };

#if defined(TILES) && (defined(__AMX_BF16__) || defined(__AMXBF16__)) && AVX512 /* the second: older Clang */
#define HAVE_TILES 1

enum { SIDE = 16, DEPTH = 32, TILE = SIDE * SIDE, BLOCK_SIDE = 2 * SIDE }; /* sizes in floats */
enum { ROWS = SIDE };                                                      /* of a product that are rounded up to */
#if defined(HALVES)
enum { PARTS = 2, TOP = 14 };
#else
enum { PARTS = 3 };
#endif
enum { SPLIT = PARTS * TILE };

typedef uint32_t pairs __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline int tile_steps(int depth) { return (depth + DEPTH - 1) / DEPTH; }
/* Floats of a strip for so many numbers a row or column. */
static inline ptrdiff_t strip_floats(int depth) { return (ptrdiff_t)tile_steps(depth) * SPLIT + SIDE; }

/* Before the first tile instruction of a call from outside, and after the last. */
static void begin_tiles(void) {
    struct __attribute__((packed)) {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t lines[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 4 * SIDE, shape.lines[i] = SIDE;
    __asm__ volatile("" ::: "memory"); /* compilers do not all know that these instructions read memory */
    _tile_loadconfig(&shape);
}
static void end_tiles(void) { _tile_release(); }

/* tile `to` += tile `x` tile `w`. That of float16 is in bytes, because compilers that know bfloat16's do not all know it. Tests
   have one of their own for processors without tiles. */
#if defined(TILE_PRODUCT)
#elif defined(HALVES)
#define TILE_PRODUCT(to, x, w) \
    __asm__ volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" : : "i"((15 - (w)) << 3 | 3), "i"(0xc0 | (to) << 3 | (x)))
#else
#define TILE_PRODUCT(to, x, w) _tile_dpbf16ps(to, x, w)
#endif

#if defined(HALVES)
/* A line of both parts, of the numbers that come first and second in its pairs. */
static inline __attribute__((always_inline)) void split(vec first, vec second, float *line) {
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; part++) {
        const __m256i a = _mm512_cvtps_ph((__m512)first, _MM_FROUND_TO_NEAREST_INT);
        const __m256i b = _mm512_cvtps_ph((__m512)second, _MM_FROUND_TO_NEAREST_INT);
        store(line + part * TILE, (vec)((pairs)_mm512_cvtepu16_epi32(a) | (pairs)_mm512_cvtepu16_epi32(b) << 16));
        first -= (vec)_mm512_cvtph_ps(a), second -= (vec)_mm512_cvtph_ps(b);
    }
}

static inline vec divide(vec x, vec exponent) { return (vec)_mm512_scalef_ps((__m512)x, (__m512)-exponent); }
static inline vec restore(vec x, vec exponent) { return (vec)_mm512_scalef_ps((__m512)x, (__m512)exponent); }

/* The exponents by which rows or columns are divided whose largest numbers, of any sign, have these bits: none where one is
   not finite, so that it stays so. */
static inline vec exponents(ints largest) {
    const ints exponent = (largest >> 23) - 127 - TOP, none = (largest == 0) | (largest >= 255 << 23);
    return (vec)_mm512_cvtepi32_ps((__m512i)(exponent & ~none));
}

/* Of `count` rows or columns, strip after strip, with the numbers that `take` gets. */
static void measure(const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, float *strips) {
    const ints magnitude = (ints){0} + INT32_MAX;
    const ptrdiff_t strip = strip_floats(depth);
    float *result = strips + strip - SIDE;
    if (along == 1) {
        for (int i = 0; i < count; i += SIDE, result += strip, x += SIDE * apart) {
            ints largest = {0};
            for (int j = 0; j < SIDE && i + j < count; j++) {
                __m512i most = {0};
                for (int k = 0; k < depth; k += LANES)
                    most = _mm512_max_epi32(most, (__m512i)((ints)load_first(x + j * apart + k, depth - k) & magnitude));
                largest[j] = _mm512_reduce_max_epi32(most);
            }
            store(result, exponents(largest));
        }
        return;
    }
    for (int i = 0; i < count; i += SIDE) store(result + i / SIDE * strip, all(0.0f));
    for (int k = 0; k < depth; k++, x += along)
        for (int i = 0; i < count; i += SIDE) {
            float *most = result + i / SIDE * strip;
            const ints bits = (ints)load_first(x + i, count - i) & magnitude;
            store(most, (vec)_mm512_max_epi32((__m512i)load(most), (__m512i)bits));
        }
    for (int i = 0; i < count; i += SIDE, result += strip) store(result, exponents((ints)load(result)));
}
#else
static inline __attribute__((always_inline)) void split(vec first, vec second, float *line) {
    const pairs top = (pairs){0} + 0xFFFF0000u;
#pragma GCC unroll 3
    for (int part = 0; part < PARTS; part++) {
        /* Rounded to nearest; of the last one nothing is left to round, and what is not a number stays so. */
        const uint32_t half = part < PARTS - 1 ? 0x8000u : 0;
        const pairs a = (pairs)first + half, b = ((pairs)second + half) & top;
        store(line + part * TILE, (vec)(a >> 16 | b));
        first -= (vec)(a & top), second -= (vec)b;
    }
}

static inline vec divide(vec x, vec exponent) { return (void)exponent, x; }
static inline vec restore(vec x, vec exponent) { return (void)exponent, x; }

static void measure(const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, float *strips) {
    (void)x, (void)apart, (void)along;
    for (int i = 0; i < count; i += SIDE) store(strips + (i / SIDE + 1) * strip_floats(depth) - SIDE, all(0.0f));
}
#endif

/* A tile of an operand, left or right, whose rows or columns lie `apart` floats from each other and the numbers that they
   are summed over `along`; one of the two is 1. So many of both there are; the rest of the tile is 0. Rows and columns are
   divided by powers of two of these exponents. */
static inline __attribute__((always_inline)) void take_some(
    int right, const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, const float *exponent, float *tile
) {
    const int turn = right == (along == 1);
    vec first[SIDE], second[SIDE];
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; i++) {
        if (along == 1) {
            first[i] = divide(load_first(x + i * apart, i < count ? depth : 0), all(exponent[i]));
            second[i] = divide(load_first(x + i * apart + SIDE, i < count ? depth - SIDE : 0), all(exponent[i]));
        } else {
            first[i] = divide(load_first(x + i * along, i < depth ? count : 0), load(exponent));
            second[i] = divide(load_first(x + (SIDE + i) * along, SIDE + i < depth ? count : 0), load(exponent));
        }
        if (!turn) split(first[i], second[i], tile + i * SIDE);
    }
    if (!turn) return;
    transpose(first);
    transpose(second);
    for (int i = 0; i < SIDE; i++) split(first[i], second[i], tile + i * SIDE);
}

static __attribute__((noinline)) void take(
    int right, const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, const float *exponent, float *tile
) {
    if (count < SIDE || depth < DEPTH) take_some(right, x, apart, along, count, depth, exponent, tile);
    else if (along != 1 && right) take_some(1, x, apart, along, SIDE, DEPTH, exponent, tile);
    else if (along != 1) take_some(0, x, 1, along, SIDE, DEPTH, exponent, tile);
    else if (right) take_some(1, x, apart, 1, SIDE, DEPTH, exponent, tile);
    else take_some(0, x, apart, 1, SIDE, DEPTH, exponent, tile);
}

/* The strips of an operand's rows or columns, `count` of them, and of `depth` numbers each, summed over. */
static void take_all(int right, const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, float *strips) {
    const int pieces = (count + SIDE - 1) / SIDE, steps = tile_steps(depth);
    const ptrdiff_t strip = strip_floats(depth);
    measure(x, apart, along, count, depth, strips);
    for (int n = 0; n < pieces * steps; n++) { /* in the order of memory */
        const int i = along == 1 ? n / steps : n % pieces, k = along == 1 ? n % steps : n / pieces;
        take(right, x + i * SIDE * apart + k * DEPTH * along, apart, along, count - i * SIDE, depth - k * DEPTH,
             strips + (i + 1) * strip - SIDE, strips + i * strip + k * SPLIT);
    }
}

/* Memory to fetch while tiles are multiplied: pieces of so many lines of 64 bytes, with gaps between them, `rate` lines twice at
   each step. More at a time would keep tiles from loading. */
typedef struct {
    const char *at;
    ptrdiff_t gap;
    int piece, taken, rate;
} Stream;

static inline __attribute__((always_inline)) void fetch(Stream *stream) {
    for (int i = 0; i < stream->rate; i++, stream->at += 64) {
        if (stream->taken++ == stream->piece) stream->at += stream->gap, stream->taken = 1;
        __builtin_prefetch(stream->at, 0, 2);
    }
}

/* A block of 32 x 32 sums that waits to become y = start + sums, or SiLU of it: vectors compute while tiles are multiplied. `start`
   has rows `start_stride` apart (0: one for all) or is NULL. */
typedef struct {
    float sums[BLOCK_SIDE * BLOCK_SIDE], of_rows[BLOCK_SIDE], of_columns[BLOCK_SIDE]; /* and exponents */
    const float *start;
    float *y;
    ptrdiff_t start_stride, y_stride;
    int row, rows, columns, silu;
} Waiting;

static inline __attribute__((always_inline)) void finish_rows(Waiting *block, int count) {
    for (; count > 0 && block->row < block->rows; count--, block->row++) {
        const int row = block->row;
        float *y = block->y + row * block->y_stride;
        const float *start = block->start + (block->start ? row * block->start_stride : 0);
#pragma GCC unroll 2
        for (int j = 0; j < BLOCK_SIDE; j += LANES) {
            const int left = block->columns - j;
            if (left <= 0) break;
            vec x = restore(load(block->sums + row * BLOCK_SIDE + j), all(block->of_rows[row]) + load(block->of_columns + j));
            if (block->start) x += load_first(start + j, left);
            if (block->silu) x *= sigmoid(x);
            if (left >= LANES) store(y + j, x);
            else _mm512_mask_storeu_ps(y + j, (1u << left) - 1, (__m512)x);
        }
    }
}

/* What is waiting is finished, and becomes x w for one or two strips of rows and two of columns, with so many numbers each; its
   other members are the caller's to set. Meanwhile memory comes in. */
static inline __attribute__((always_inline)) void multiply_strips(
    const int count, const float *x, const float *w, int depth, Stream next, Waiting *block
) {
    const int steps = tile_steps(depth), each = (BLOCK_SIDE + 4 * steps - 1) / (4 * steps); /* rows, four times a step */
    const ptrdiff_t strip = strip_floats(depth);
    const float *x2 = x + strip, *w2 = w + strip;
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    if (count == 2) _tile_zero(2);
    if (count == 2) _tile_zero(3);
#define LEFT(part) \
    _tile_loadd(4, x + part * TILE, 4 * SIDE); \
    if (count == 2) _tile_loadd(5, x2 + part * TILE, 4 * SIDE);
#define RIGHT(part) \
    _tile_loadd(6, w + part * TILE, 4 * SIDE); \
    _tile_loadd(7, w2 + part * TILE, 4 * SIDE);
#define PRODUCTS \
    TILE_PRODUCT(0, 4, 6); \
    TILE_PRODUCT(1, 4, 7); \
    if (count == 2) TILE_PRODUCT(2, 5, 6); \
    if (count == 2) TILE_PRODUCT(3, 5, 7);
    for (int k = 0; k < steps; k++, x += SPLIT, x2 += SPLIT, w += SPLIT, w2 += SPLIT) {
        LEFT(0) RIGHT(0) PRODUCTS
        fetch(&next);
        finish_rows(block, each);
#if !defined(HALVES)
        RIGHT(2) PRODUCTS
#endif
        finish_rows(block, each);
        RIGHT(1) PRODUCTS
        fetch(&next);
        finish_rows(block, each);
#if !defined(HALVES)
        LEFT(1) PRODUCTS
        RIGHT(0) PRODUCTS
        finish_rows(block, each);
        LEFT(2) PRODUCTS
#else
        LEFT(1) RIGHT(0) PRODUCTS
        finish_rows(block, each);
#endif
    }
    store(block->of_rows, load(x)), store(block->of_rows + SIDE, load(count == 2 ? x2 : x));
    store(block->of_columns, load(w)), store(block->of_columns + SIDE, load(w2));
    _tile_stored(0, block->sums, 4 * BLOCK_SIDE);
    _tile_stored(1, block->sums + SIDE, 4 * BLOCK_SIDE);
    if (count == 2) _tile_stored(2, block->sums + SIDE * BLOCK_SIDE, 4 * BLOCK_SIDE);
    if (count == 2) _tile_stored(3, block->sums + SIDE * BLOCK_SIDE + SIDE, 4 * BLOCK_SIDE);
}
#else
#define HAVE_TILES 0

/* Rows of a product that are held in registers at a time, to which rows are rounded up. */
enum { ROWS = LANES == 16 ? 12 : 6 };

/* y = x W^T + bias, or y += x W^T if add, for ROWS rows x, whose numbers lie `along` floats apart, and a panel of W. Not
   inlined, so that the compiler has all registers for it. Meanwhile two streams of memory come into the cache, so many floats
   of each for each of the K inputs. */
static __attribute__((noinline, unused)) void tile(
    const float *restrict x, ptrdiff_t x_stride, ptrdiff_t along, int K, const float *restrict panel, const float *bias, int add,
    const float *next, ptrdiff_t next_rate, const float *ahead, ptrdiff_t ahead_rate, float *restrict y, ptrdiff_t y_stride
) {
    vec c[ROWS][WIDE];
#pragma GCC unroll 2
    for (int j = 0; j < WIDE; j++) {
        const vec first = bias && !add ? load(bias + j * LANES) : all(0.0f);
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) c[i][j] = first;
    }
    /* A pointer for each three rows, which the compiler is kept from making one for each: there are too few registers. */
    const float *rows[ROWS / 3];
    for (int g = 0; g < ROWS / 3; g++) rows[g] = x + 3 * g * x_stride;
    for (int k = 0; k < K; k++) {
        __builtin_prefetch(next, 0, 2);
        __builtin_prefetch(ahead, 0, 2);
        next += next_rate, ahead += ahead_rate;
        vec w[WIDE];
#pragma GCC unroll 2
        for (int j = 0; j < WIDE; j++) w[j] = load(panel + j * LANES);
        panel += PANEL;
#pragma GCC unroll 4
        for (int g = 0; g < ROWS / 3; g++) {
            __asm__("" : "+r"(rows[g]));
#pragma GCC unroll 3
            for (int i = 0; i < 3; i++) {
                const vec a = all(rows[g][i * x_stride]);
#pragma GCC unroll 2
                for (int j = 0; j < WIDE; j++) c[3 * g + i][j] += a * w[j];
            }
            rows[g] += along;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < WIDE; j++) {
            float *out = y + i * y_stride + j * LANES;
            if (add) c[i][j] += load(out);
            store(out, c[i][j]);
        }
}

static inline void begin_tiles(void) {}
static inline void end_tiles(void) {}
#endif
