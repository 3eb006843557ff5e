/* Tiles of matrix products: on the tile registers of recent x86 processors (AMX), to float32's precision, or on vectors.

   A tile product multiplies numbers of 8 significant bits (bfloat16) and adds up in float32, at sixteen times the speed of
   vectors. A float32 has 24 bits and is the sum of three such numbers, x = x0 + x1 + x2, exactly. Of the nine products that
   make x y, six are computed: x0 y0, x0 y1, x1 y0, x0 y2, x1 y1, x2 y0. The others are below 2^-23 x y together, which is
   what float32 rounds a single product by.

   A tile holds 16 lines of 16 pairs. In the left operand a line is a row of x, and pair i its numbers i and 16 + i; in the
   right operand line i holds those of all columns. The three parts of a tile lie one after the other. */

#include "vectors.h"

/* Outputs whose weights lie together, and vectors of them. */
enum { WIDE = 2, PANEL = LANES * WIDE };

#if defined(TILES) && defined(__AMX_BF16__) && AVX512
#define HAVE_TILES 1

enum { SIDE = 16, DEPTH = 32, TILE = SIDE * SIDE, PARTS = 3, SPLIT = PARTS * TILE }; /* sizes in floats */
enum { ROWS = SIDE }; /* of a product that are rounded up to */

typedef uint32_t pairs __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Before the first tile instruction of a call from outside, and after the last. */
static void begin_tiles(void) {
    struct __attribute__((packed)) {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t lines[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = 4 * SIDE, shape.lines[i] = SIDE;
    _tile_loadconfig(&shape);
}
static void end_tiles(void) { _tile_release(); }

/* A line of all three parts, of the numbers that come first and second in its pairs. */
static inline __attribute__((always_inline)) void split(vec first, vec second, float *line) {
    const pairs top = (pairs){0} + 0xFFFF0000u;
#pragma GCC unroll 3
    for (int part = 0; part < PARTS; part++) {
        const pairs a = (pairs)first + 0x8000u, b = ((pairs)second + 0x8000u) & top; /* rounded to nearest */
        store(line + part * TILE, (vec)(a >> 16 | b));
        first -= (vec)(a & top), second -= (vec)b;
    }
}

/* A tile of an operand, left or right, whose rows or columns lie `apart` floats from each other and the numbers that they
   are summed over `along`; one of the two is 1. So many of both there are; the rest of the tile is 0. */
static inline __attribute__((always_inline)) void take_some(
    int right, const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, float *tile
) {
    const int turn = right == (along == 1);
    vec first[SIDE], second[SIDE];
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; i++) {
        if (along == 1) {
            first[i] = load_first(x + i * apart, i < count ? depth : 0);
            second[i] = load_first(x + i * apart + SIDE, i < count ? depth - SIDE : 0);
        } else {
            first[i] = load_first(x + i * along, i < depth ? count : 0);
            second[i] = load_first(x + (SIDE + i) * along, SIDE + i < depth ? count : 0);
        }
        if (!turn) split(first[i], second[i], tile + i * SIDE);
    }
    if (!turn) return;
    transpose(first);
    transpose(second);
    for (int i = 0; i < SIDE; i++) split(first[i], second[i], tile + i * SIDE);
}

static __attribute__((noinline)) void take(
    int right, const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, float *tile
) {
    if (count < SIDE || depth < DEPTH) take_some(right, x, apart, along, count, depth, tile);
    else if (along != 1 && right) take_some(1, x, apart, along, SIDE, DEPTH, tile);
    else if (along != 1) take_some(0, x, 1, along, SIDE, DEPTH, tile);
    else if (right) take_some(1, x, apart, 1, SIDE, DEPTH, tile);
    else take_some(0, x, apart, 1, SIDE, DEPTH, tile);
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

/* Rows of PANEL numbers that wait for SiLU: vectors compute while tiles are multiplied. */
typedef struct {
    float *y;
    ptrdiff_t stride;
    int rows;
} Pending;

static inline __attribute__((always_inline)) void activate_row(Pending *pending) {
    if (pending->rows == 0) return;
    for (int j = 0; j < PANEL; j += LANES) {
        const vec x = load(pending->y + j);
        store(pending->y + j, x * sigmoid(x));
    }
    pending->y += pending->stride, pending->rows--;
}

/* y = start + x w for one or two tiles of rows and two of columns, `steps` deep. `start` has rows `start_stride` apart (0: one
   for all) or is NULL. The tiles of a row or a column lie one after the other. Meanwhile memory comes in and rows of an
   earlier product are activated, four at a step. */
static inline __attribute__((always_inline)) void multiply_tiles(
    const int rows, const float *x, const float *w, int steps, const float *start, ptrdiff_t start_stride, float *y,
    ptrdiff_t y_stride, Stream next, Pending *earlier
) {
    const float *x2 = x + steps * SPLIT, *w2 = w + steps * SPLIT;
    if (start) {
        _tile_loadd(0, start, 4 * start_stride);
        _tile_loadd(1, start + SIDE, 4 * start_stride);
        if (rows == 2) _tile_loadd(2, start + SIDE * start_stride, 4 * start_stride);
        if (rows == 2) _tile_loadd(3, start + SIDE * start_stride + SIDE, 4 * start_stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        if (rows == 2) _tile_zero(2);
        if (rows == 2) _tile_zero(3);
    }
#define LEFT(part) \
    _tile_loadd(4, x + part * TILE, 4 * SIDE); \
    if (rows == 2) _tile_loadd(5, x2 + part * TILE, 4 * SIDE);
#define RIGHT(part) \
    _tile_loadd(6, w + part * TILE, 4 * SIDE); \
    _tile_loadd(7, w2 + part * TILE, 4 * SIDE);
#define PRODUCTS \
    _tile_dpbf16ps(0, 4, 6); \
    _tile_dpbf16ps(1, 4, 7); \
    if (rows == 2) _tile_dpbf16ps(2, 5, 6); \
    if (rows == 2) _tile_dpbf16ps(3, 5, 7);
    for (int k = 0; k < steps; k++, x += SPLIT, x2 += SPLIT, w += SPLIT, w2 += SPLIT) {
        LEFT(0) RIGHT(0) PRODUCTS
        fetch(&next);
        RIGHT(2) PRODUCTS
        activate_row(earlier);
        RIGHT(1) PRODUCTS
        activate_row(earlier);
        fetch(&next);
        LEFT(1) PRODUCTS
        activate_row(earlier);
        RIGHT(0) PRODUCTS
        activate_row(earlier);
        LEFT(2) PRODUCTS
    }
    _tile_stored(0, y, 4 * y_stride);
    _tile_stored(1, y + SIDE, 4 * y_stride);
    if (rows == 2) _tile_stored(2, y + SIDE * y_stride, 4 * y_stride);
    if (rows == 2) _tile_stored(3, y + SIDE * y_stride + SIDE, 4 * y_stride);
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
        const vec first = bias ? load(bias + j * LANES) : all(0.0f);
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
