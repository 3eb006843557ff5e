/* y = x w or y += x w on tile registers, or on vectors: products.py. One thread. */

#include "tiles.h"

#include <stdlib.h>

/* What products are taken on, or NULL: those of PyTorch's library are as fast. */
#if HAVE_TILES
const char *unit(void) { return PARTS == 2 ? "tiles of float16" : "tiles of bfloat16"; }
#elif AVX512
#include <cpuid.h>

/* AMD's processors of family 26 (Zen 5; those for servers at least) multiply vectors of 16 numbers at full speed, and PyTorch's
   library, which is made for Intel's, does not use those there. */
const char *unit(void) {
    unsigned a, b, c, d;
    const int known = __builtin_cpu_is("amd") && __get_cpuid(1, &a, &b, &c, &d);
    return known && (a >> 8 & 15) + (a >> 20 & 255) >= 26 ? "vectors" : NULL;
}
#else
const char *unit(void) { return NULL; }
#endif

#if AVX512

static int least(int a, int b) { return a < b ? a : b; }
static int ceiling(int a, int b) { return (a + b - 1) / b; }

/* Of `count` matrices each: y (M, N) = x w + bias or, if add, y + x w, for x (M, K) and w (K, N). Strides count floats, from
   one matrix, row and column to the next; of rows and columns of x and w, one is 1, and columns of y are. The bias, one for
   all rows, may be NULL. K is 1 or more. Returns 0, or -1 if there is no memory. */
int multiply(
    int count, int M, int N, int K, const float *x, const ptrdiff_t *x_strides, const float *w,
    const ptrdiff_t *w_strides, const float *bias, int add, float *y, const ptrdiff_t *y_strides
);

#if HAVE_TILES

/* Numbers summed over at a time, and columns whose strips lie ready meanwhile: they fill half of a second-level cache. */
enum { DEEP = 256, BROAD = 1536 / PARTS };

int multiply(
    int count, int M, int N, int K, const float *x, const ptrdiff_t *x_strides, const float *w,
    const ptrdiff_t *w_strides, const float *bias, int add, float *y, const ptrdiff_t *y_strides
) {
    const size_t most = strip_floats(least(K, DEEP));
    float *left = aligned_alloc(64, sizeof(float) * most * (2 + 2 * ceiling(least(N, BROAD), BLOCK_SIDE)));
    if (!left) return -1;
    float *right = left + 2 * most;
    Waiting block;
    block.rows = block.row = 0;
    begin_tiles();
    for (int i = 0; i < count; i++, x += x_strides[0], w += w_strides[0], y += y_strides[0])
        for (int k = 0; k < K; k += DEEP) {
            const int depth = least(K - k, DEEP), more = add || k;
            const ptrdiff_t strip = strip_floats(depth);
            for (int n = 0; n < N; n += BROAD) {
                const int columns = least(N - n, BROAD);
                take_all(1, w + k * w_strides[1] + n * w_strides[2], w_strides[2], w_strides[1], columns, depth, right);
                for (int m = 0; m < M; m += BLOCK_SIDE) {
                    const int rows = least(M - m, BLOCK_SIDE);
                    take_all(0, x + m * x_strides[1] + k * x_strides[2], x_strides[1], x_strides[2], rows, depth, left);
                    for (int j = 0; j < columns; j += BLOCK_SIDE) {
                        float *to = y + m * y_strides[1] + n + j;
                        /* The rows of this block come into the cache: it is finished while the next is multiplied. */
                        const int rate = ceiling(BLOCK_SIDE, tile_steps(depth));
                        const Stream coming = {(const char *)to, 4 * (y_strides[1] - BLOCK_SIDE), 2, 0, rate};
                        const float *in = right + j / SIDE * strip;
                        if (rows > SIDE) multiply_strips(2, left, in, depth, coming, &block);
                        else multiply_strips(1, left, in, depth, coming, &block);
                        block.y = to, block.y_stride = y_strides[1];
                        block.start = more ? to : bias ? bias + n + j : NULL, block.start_stride = more ? y_strides[1] : 0;
                        block.row = 0, block.rows = rows, block.columns = columns - j, block.silu = 0;
                    }
                }
            }
        }
    finish_rows(&block, BLOCK_SIDE);
    end_tiles();
    free(left);
    return 0;
}

#else

/* Numbers summed over at a time, and rows that stay in the second-level cache meanwhile. */
enum { DEEP = 256, TALL = 10 * ROWS, GAP = 16 };

/* Columns of w as a panel: for each of `depth` numbers summed over those of PANEL columns, zeros where there are fewer. */
static void take_panel(const float *w, ptrdiff_t apart, ptrdiff_t along, int columns, int depth, float *panel) {
    for (int j = 0; j < PANEL; j += LANES)
        if (apart == 1) {
            for (int k = 0; k < depth; k++) store(panel + k * PANEL + j, load_first(w + k * along + j, columns - j));
        } else {
            for (int k = 0; k < depth; k += LANES) {
                vec block[LANES];
                for (int i = 0; i < LANES; i++) block[i] = load_first(w + (j + i) * apart + k, j + i < columns ? depth - k : 0);
                transpose(block);
                for (int i = 0; i < least(depth - k, LANES); i++) store(panel + (k + i) * PANEL + j, block[i]);
            }
        }
}

/* Rows of x for `tile`, rounded up to ROWS with zeros. Those that lie number by number do so again; of columns, those of ROWS
   rows that are summed over in one product come to lie side by side. */
static void take_rows(const float *x, ptrdiff_t apart, ptrdiff_t along, int rows, int depth, float *to) {
    for (int row = 0; row < rows; row += ROWS) {
        const int left = least(rows - row, ROWS);
        const float *from = x + row * apart;
        if (along == 1) {
            for (int i = 0; i < ROWS; i++, to += depth + GAP)
                if (i < left) memcpy(to, from + i * apart, sizeof(float) * depth);
                else memset(to, 0, sizeof(float) * depth);
        } else { /* what a vector writes behind ROWS numbers is written over by the next */
            for (int k = 0; k < depth; k++, to += ROWS) store(to, load_first(from + k * along, left));
        }
    }
}

/* ROWS x PANEL numbers of y, or as many as there are: the others are computed aside. */
static void part(
    const float *x, ptrdiff_t apart, ptrdiff_t along, int depth, const float *panel, const float *bias, int add,
    const float *next, ptrdiff_t rate, float *y, ptrdiff_t y_stride, int rows, int columns
) {
    if (rows >= ROWS && columns >= PANEL) {
        tile(x, apart, along, depth, panel, bias, add, next, rate, next, 0, y, y_stride);
        return;
    }
    float aside[ROWS * PANEL] = {0}, more[PANEL] = {0};
    rows = least(rows, ROWS), columns = least(columns, PANEL);
    if (bias) memcpy(more, bias, sizeof(float) * columns);
    for (int i = 0; i < rows && add; i++) memcpy(aside + i * PANEL, y + i * y_stride, sizeof(float) * columns);
    tile(x, apart, along, depth, panel, more, add, next, rate, next, 0, aside, PANEL);
    for (int i = 0; i < rows; i++) memcpy(y + i * y_stride, aside + i * PANEL, sizeof(float) * columns);
}

int multiply(
    int count, int M, int N, int K, const float *x, const ptrdiff_t *x_strides, const float *w,
    const ptrdiff_t *w_strides, const float *bias, int add, float *y, const ptrdiff_t *y_strides
) {
    const int panels = ceiling(N, PANEL), deepest = least(K, DEEP);
    const ptrdiff_t panel = (ptrdiff_t)deepest * PANEL;
    float *right = aligned_alloc(64, (sizeof(float) * (panels * panel + TALL * (deepest + GAP)) + 63) / 64 * 64);
    if (!right) return -1;
    float *left = right + panels * panel;
    for (int i = 0; i < count; i++, x += x_strides[0], w += w_strides[0], y += y_strides[0])
        for (int k = 0; k < K; k += DEEP) {
            const int depth = least(K - k, DEEP), more = add || k;
            for (int p = 0; p < panels; p++)
                take_panel(w + k * w_strides[1] + p * PANEL * w_strides[2], w_strides[2], w_strides[1], N - p * PANEL, depth,
                           right + p * panel);
            for (int m = 0; m < M; m += TALL) {
                const int rows = least(M - m, TALL);
                const float *in = x + m * x_strides[1] + k * x_strides[2];
                ptrdiff_t apart = x_strides[1], along = x_strides[2];
                if (along != 1 || rows % ROWS || apart % 1024 == 0) { /* the last: rows would fall on one cache line */
                    take_rows(in, apart, along, rows, depth, left);
                    in = left, apart = along == 1 ? depth + GAP : 1, along = along == 1 ? 1 : ROWS;
                }
                const ptrdiff_t turn = along == 1 ? ROWS * apart : ROWS * depth;
                const int turns = ceiling(rows, ROWS), rate = ceiling(PANEL, turns);
                for (int p = 0; p < panels; p++)
                    for (int t = 0; t < turns; t++) {
                        const float *now = right + p * panel, *next = now + panel + t * rate * depth;
                        part(in + t * turn, apart, along, depth, now, bias && !more ? bias + p * PANEL : NULL, more, next, rate,
                             y + (m + t * ROWS) * y_strides[1] + p * PANEL, y_strides[1], rows - t * ROWS, N - p * PANEL);
                    }
            }
        }
    free(right);
    return 0;
}
#endif
#endif
