/* y = x w or y += x w on tile registers: products.py. One thread. */

#define _GNU_SOURCE
#include "tiles.h"

#include <stdlib.h>

#if HAVE_TILES

/* Numbers summed over at a time, and columns whose tiles lie ready meanwhile: they fill half of a second-level cache. */
enum { DEEP = 256, BROAD = 512, BLOCK = 2 * SIDE };

static int least(int a, int b) { return a < b ? a : b; }
static int ceiling(int a, int b) { return (a + b - 1) / b; }

/* One block of up to 32 x 32 of y, whose rows begin with those of `start`, `start_stride` apart, or with 0. */
static void block(
    const float *x, const float *w, int steps, const float *start, ptrdiff_t start_stride, float *y, ptrdiff_t y_stride,
    int rows, int columns
) {
    float edge[BLOCK * BLOCK], *to = y;
    ptrdiff_t stride = y_stride;
    const int partial = rows % SIDE || columns < BLOCK;
    if (partial) {
        to = edge, stride = BLOCK;
        for (int i = 0; i < rows && start; i++) memcpy(edge + i * BLOCK, start + i * start_stride, sizeof(float) * columns);
        if (start) start = edge, start_stride = BLOCK;
    }
    if (rows > SIDE) multiply_tiles(2, x, w, steps, start, start_stride, to, stride, (Stream){NULL, 0});
    else multiply_tiles(1, x, w, steps, start, start_stride, to, stride, (Stream){NULL, 0});
    for (int i = 0; i < rows && partial; i++) memcpy(y + i * y_stride, edge + i * BLOCK, sizeof(float) * columns);
}

/* The tiles of an operand's rows or columns, `count` of them, and of `depth` numbers each, summed over; all of one row or
   column of tiles lie together. Strides as for `take`. */
static void take_all(
    int right, const float *x, ptrdiff_t apart, ptrdiff_t along, int count, int depth, float *tile
) {
    const int pieces = ceiling(count, SIDE), steps = ceiling(depth, DEPTH);
    for (int n = 0; n < pieces * steps; n++) { /* in the order of memory */
        const int i = along == 1 ? n / steps : n % pieces, k = along == 1 ? n % steps : n / pieces;
        take(right, x + i * SIDE * apart + k * DEPTH * along, apart, along, count - i * SIDE, depth - k * DEPTH,
             tile + (i * steps + k) * SPLIT);
    }
}

/* Of `count` matrices each: y (M, N) = x w + bias or, if add, y + x w, for x (M, K) and w (K, N). Strides count floats, from
   one matrix, row and column to the next; of rows and columns of x and w, one is 1, and columns of y are. The bias, one for
   all rows, may be NULL. Returns 0, or -1 if there is no memory. */
int multiply(
    int count, int M, int N, int K, const float *x, const ptrdiff_t *x_strides, const float *w,
    const ptrdiff_t *w_strides, const float *bias, int add, float *y, const ptrdiff_t *y_strides
) {
    const size_t piece = (size_t)ceiling(least(K, DEEP), DEPTH) * SPLIT;
    float *left = aligned_alloc(64, sizeof(float) * piece * (2 + 2 * ceiling(least(N, BROAD), BLOCK)));
    if (!left) return -1;
    float *right = left + 2 * piece;
    begin_tiles();
    for (int i = 0; i < count; i++, x += x_strides[0], w += w_strides[0], y += y_strides[0]) {
        for (int k = 0; k < K; k += DEEP) {
            const int depth = least(K - k, DEEP), steps = ceiling(depth, DEPTH), more = add || k;
            for (int n = 0; n < N; n += BROAD) {
                const int columns = least(N - n, BROAD);
                take_all(1, w + k * w_strides[1] + n * w_strides[2], w_strides[2], w_strides[1], columns, depth, right);
                for (int m = 0; m < M; m += BLOCK) {
                    const int rows = least(M - m, BLOCK);
                    take_all(0, x + m * x_strides[1] + k * x_strides[2], x_strides[1], x_strides[2], rows, depth, left);
                    for (int j = 0; j < columns; j += BLOCK) {
                        float *to = y + m * y_strides[1] + n + j;
                        const float *start = more ? to : bias ? bias + n + j : NULL;
                        block(left, right + j / SIDE * steps * SPLIT, steps, start, more ? y_strides[1] : 0, to, y_strides[1],
                              rows, least(columns - j, BLOCK));
                    }
                }
            }
        }
    }
    end_tiles();
    free(left);
    return 0;
}
#endif
