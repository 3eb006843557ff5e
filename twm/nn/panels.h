/* y = x W^T + bias for weights laid out once and used many times: in panels of PANEL outputs, panel after panel in the order
   of their use. On tile registers where there are any (tiles.h), on vectors elsewhere. */

#include "tiles.h"

/* Memory to fetch while something else is computed: `count` pieces of so many floats, `stride` floats apart. */
typedef struct {
    const float *piece;
    ptrdiff_t stride;
    int count, floats;
} Ahead;

/* Rows on their way into products, laid out for them. */
typedef struct {
    const float *x;
    ptrdiff_t stride;
    int rows, K;
} Rows;

/* y = x W^T + bias, then SiLU if asked; or y += x W^T if add. Rows are rounded up to ROWS: y must have room for them. With each
   tile a piece of what is wanted ahead is fetched. If that is nothing, and on vectors always, it is the next panel (on tiles where
   this one is used more than once), with the last one whatever lies behind it. */
static void product(
    Rows x, const float *panels, const float *bias, int N, int silu, int add, Ahead *ahead, float *y, ptrdiff_t y_stride
);

#if HAVE_TILES
/* Rows that pass a layer of the transformer together, and its feedforward network, for so many hidden units at a time: their
   tiles and those of the weights lie in the second-level cache. */
enum { BLOCK = 300, GROUP = 2 * SIDE, UNITS = 128 };

/* Floats of a panel with K inputs, two strips, and of the room that rows need (a multiple of 64 bytes). */
static size_t panel_floats(int K) { return 2 * strip_floats(K); }
static size_t room_floats(int rows, int K) { return (rows + SIDE - 1) / SIDE * strip_floats(K); }

static void pack_panel(const float *w, int K, float *panel) { take_all(1, w, K, 1, PANEL, K, panel); }

/* So many from one on, a multiple of ROWS. */
static Rows some_rows(Rows x, int first, int count) { return (Rows){x.x + first / SIDE * strip_floats(x.K), 0, count, x.K}; }

static Rows rows_of(const float *x, ptrdiff_t stride, int rows, int K, float *room) {
    take_all(0, x, stride, 1, rows, K, room);
    return (Rows){room, 0, rows, K};
}

static void product(
    Rows x, const float *panels, const float *bias, int N, int silu, int add, Ahead *ahead, float *y, ptrdiff_t y_stride
) {
    const int steps = tile_steps(x.K), turns = (x.rows + BLOCK_SIDE - 1) / BLOCK_SIDE;
    const ptrdiff_t strip = strip_floats(x.K), panel = 2 * strip, part = panel / turns;
    Ahead following = {panels + panel, part, N / PANEL * turns, part};
    if (!ahead && turns > 1) ahead = &following;
    Waiting block;
    block.rows = block.row = 0;
    for (int n = 0; n < N; n += PANEL, panels += panel)
        for (int i = 0; i < x.rows; i += BLOCK_SIDE) {
            const float *in = x.x + i / SIDE * strip;
            const int rows = x.rows - i < BLOCK_SIDE ? x.rows - i : BLOCK_SIDE;
            Stream next = {NULL, 0, INT_MAX, 0, 0};
            if (ahead && ahead->count-- > 0) {
                next.at = (const char *)ahead->piece, next.rate = (ahead->floats / steps + 31) / 32;
                ahead->piece += ahead->stride;
            }
            if (rows > SIDE) multiply_strips(2, in, panels, x.K, next, &block);
            else multiply_strips(1, in, panels, x.K, next, &block);
            block.y = y + i * y_stride + n, block.y_stride = y_stride;
            block.start = add ? block.y : bias ? bias + n : NULL, block.start_stride = add ? y_stride : 0;
            block.row = 0, block.rows = rows, block.columns = PANEL, block.silu = silu;
        }
    finish_rows(&block, BLOCK_SIDE);
}

#else

/* Rows that pass a layer of the transformer together, its feedforward network in one go. */
enum { BLOCK = 120, GROUP = BLOCK, UNITS = 1 << 20 };

static size_t panel_floats(int K) { return (size_t)K * PANEL; }
static size_t room_floats(int rows, int K) { return 0 * (size_t)(rows + K); }

static void pack_panel(const float *w, int K, float *panel) {
    for (int k = 0; k < K; k++)
        for (int j = 0; j < PANEL; j++) *panel++ = w[(ptrdiff_t)j * K + k];
}

/* Reads as many rows from x as they are rounded up to. */
static Rows rows_of(const float *x, ptrdiff_t stride, int rows, int K, float *room) {
    (void)room;
    return (Rows){x, stride, rows, K};
}

static Rows some_rows(Rows x, int first, int count) { return (Rows){x.x + first * x.stride, x.stride, count, x.K}; }

static void activate(float *y, ptrdiff_t stride, int rows) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j += LANES) {
            const vec x = load(y + i * stride + j);
            store(y + i * stride + j, x * sigmoid(x));
        }
}

static void product(
    Rows x, const float *panels, const float *bias, int N, int silu, int add, Ahead *ahead, float *y, ptrdiff_t y_stride
) {
    const int rate = (PANEL * ROWS + x.rows - 1) / x.rows; /* a panel, spread over all the tiles of this one */
    for (int n = 0; n < N; n += PANEL) {
        const float *panel = panels + (ptrdiff_t)n * x.K, *next = panel + (ptrdiff_t)x.K * PANEL;
        for (int row = 0; row < x.rows; row += ROWS, next += x.K * rate) {
            const int more = ahead && ahead->count-- > 0;
            float *out = y + row * y_stride + n;
            tile(x.x + row * x.stride, x.stride, 1, x.K, panel, bias ? bias + n : NULL, add, next, rate, more ? ahead->piece : next,
                 more ? (ahead->floats + x.K - 1) / x.K : 0, out, y_stride);
            if (silu) activate(out, y_stride, ROWS);
            if (more) ahead->piece += ahead->stride;
        }
    }
}
#endif
