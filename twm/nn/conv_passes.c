/* The passes over memory around a convolution's matrix products: the maps V, V^T, U, U^T of conv_plan.py, each in one pass,
   and SiLU with its derivative where images are copied anyway.

   Wide images are (n, height, width, C) with room for whole windows, narrow ones (n, rows, columns, O), points
   (P, n, rows, columns, depth of rows, depth of columns, C) and (P, n, rows, columns, O). */

#include "vectors.h"

typedef struct {
    int n, rows, columns;   /* images, and windows of each */
    int taps;               /* 2 or 3: Winograd's F(2, taps); 0: direct */
    int kernel, stride;
    int wide, narrow;       /* channels */
} Plan;

/* Floats of one row of wide images, and rows of one. */
static inline ptrdiff_t row_of(const Plan *p) {
    return (ptrdiff_t)p->wide * (p->taps ? p->stride * (2 * p->columns + p->taps - 1) : (p->columns - 1) * p->stride + p->kernel);
}
static inline ptrdiff_t height_of(const Plan *p) {
    return p->taps ? p->stride * (2 * p->rows + p->taps - 1) : (p->rows - 1) * p->stride + p->kernel;
}

/* ------------------------------------------------------------------------------------------------
   Winograd's maps along one dimension, in place on numbers `step` apart. The tables are those of conv_plan.py. */

#define MAP static inline __attribute__((always_inline)) void

MAP map_v(const int taps, float *x, const int step) {
    const float x0 = x[0], x1 = x[step], x2 = x[2 * step];
    if (taps == 2) {
        x[0] = x0 - x1, x[2 * step] = x2 - x1;
    } else {
        x[0] = x0 - x2, x[step] = x1 + x2, x[2 * step] = x2 - x1, x[3 * step] -= x1;
    }
}

MAP map_v_transposed(const int taps, float *x, const int step) {
    const float x0 = x[0], x1 = x[step], x2 = x[2 * step];
    if (taps == 2) {
        x[step] = x1 - x0 - x2;
    } else {
        x[step] = x1 - x2 - x[3 * step], x[2 * step] = x1 + x2 - x0;
    }
}

MAP map_u(const int taps, float *x, const int step) { /* two numbers become taps + 1 */
    const float x0 = x[0], x1 = x[step];
    if (taps == 2) {
        x[step] = x0 + x1, x[2 * step] = x1;
    } else {
        x[step] = x0 + x1, x[2 * step] = x0 - x1, x[3 * step] = x1;
    }
}

MAP map_u_transposed(const int taps, float *x, const int step) { /* taps + 1 numbers become two */
    const float x1 = x[step], x2 = x[2 * step];
    if (taps == 2) {
        x[0] += x1, x[step] = x1 + x2;
    } else {
        x[0] += x1 + x2, x[step] = x1 - x2 + x[3 * step];
    }
}

/* ------------------------------------------------------------------------------------------------
   V and its adjoint. Positions that a stride makes into channels lie together with the channels: `run` floats. */

MAP winograd_analyse(const int taps, const Plan *p, const float *restrict wide, float *restrict points) {
    const int P = taps + 1, run = p->stride * p->wide;
    const ptrdiff_t row = row_of(p), down = row * p->stride, size = (ptrdiff_t)p->n * p->rows * p->columns * p->stride * run;
    for (int n = 0; n < p->n; n++)
        for (int y = 0; y < p->rows; y++)
            for (int x = 0; x < p->columns; x++)
                for (int j = 0; j < p->stride; j++) {
                    const float *in = wide + n * height_of(p) * row + 2 * y * down + j * row + 2 * x * run;
                    INDEPENDENT
                    for (int i = 0; i < run; i++) {
                        float t[16];
                        for (int a = 0; a < P; a++)
                            for (int b = 0; b < P; b++) t[a * P + b] = in[a * down + b * run + i];
                        for (int b = 0; b < P; b++) map_v(taps, t + b, P);
                        for (int a = 0; a < P; a++) map_v(taps, t + a * P, 1);
                        for (int a = 0; a < P * P; a++) points[a * size + i] = t[a];
                    }
                    points += run;
                }
}

MAP winograd_synthesise(const int taps, const Plan *p, const float *restrict points, float *restrict wide) {
    const int P = taps + 1, run = p->stride * p->wide;
    const ptrdiff_t row = row_of(p), down = row * p->stride, size = (ptrdiff_t)p->n * p->rows * p->columns * p->stride * run;
    for (int n = 0; n < p->n; n++)
        for (int y = 0; y < p->rows; y++)
            for (int x = 0; x < p->columns; x++)
                for (int j = 0; j < p->stride; j++) {
                    float *out = wide + n * height_of(p) * row + 2 * y * down + j * row + 2 * x * run;
                    INDEPENDENT
                    for (int i = 0; i < run; i++) {
                        float t[16];
                        for (int a = 0; a < P * P; a++) t[a] = points[a * size + i];
                        for (int b = 0; b < P; b++) map_v_transposed(taps, t + b, P);
                        for (int a = 0; a < P; a++) map_v_transposed(taps, t + a * P, 1);
                        for (int a = 0; a < P; a++)
                            for (int b = 0; b < P; b++) out[a * down + b * run + i] += t[a * P + b];
                    }
                    points += run;
                }
}

void analyse(const Plan *p, const float *restrict wide, float *restrict points) {
    if (p->taps == 2) {
        winograd_analyse(2, p, wide, points);
        return;
    }
    if (p->taps == 3) {
        winograd_analyse(3, p, wide, points);
        return;
    }
    const ptrdiff_t row = row_of(p), run = (ptrdiff_t)p->kernel * p->wide;
    for (int n = 0; n < p->n; n++)
        for (int y = 0; y < p->rows; y++)
            for (int x = 0; x < p->columns; x++)
                for (int k = 0; k < p->kernel; k++, points += run)
                    memcpy(points, wide + (n * height_of(p) + y * p->stride + k) * row + (ptrdiff_t)x * p->stride * p->wide, run * sizeof(float));
}

void synthesise(const Plan *p, const float *restrict points, float *restrict wide) {
    const ptrdiff_t row = row_of(p), run = (ptrdiff_t)p->kernel * p->wide;
    memset(wide, 0, p->n * height_of(p) * row * sizeof(float));
    if (p->taps == 2) {
        winograd_synthesise(2, p, points, wide);
        return;
    }
    if (p->taps == 3) {
        winograd_synthesise(3, p, points, wide);
        return;
    }
    for (int n = 0; n < p->n; n++)
        for (int y = 0; y < p->rows; y++)
            for (int x = 0; x < p->columns; x++)
                for (int k = 0; k < p->kernel; k++, points += run) {
                    float *out = wide + (n * height_of(p) + y * p->stride + k) * row + (ptrdiff_t)x * p->stride * p->wide;
                    for (ptrdiff_t i = 0; i < run; i++) out[i] += points[i];
                }
}

/* ------------------------------------------------------------------------------------------------
   U and its adjoint, for Winograd only: the direct one has nothing to do. */

MAP winograd_spread(const int taps, const Plan *p, const float *restrict narrow, float *restrict points) {
    const int P = taps + 1, O = p->narrow;
    const ptrdiff_t down = 2 * (ptrdiff_t)p->columns * O, size = (ptrdiff_t)p->n * p->rows * p->columns * O;
    for (int y = 0; y < p->n * p->rows; y++)
        for (int x = 0; x < p->columns; x++, points += O) {
            const float *in = narrow + 2 * y * down + 2 * x * O;
            INDEPENDENT
            for (int i = 0; i < O; i++) {
                float t[16];
                for (int a = 0; a < 2; a++)
                    for (int b = 0; b < 2; b++) t[a * P + b] = in[a * down + b * O + i];
                for (int b = 0; b < 2; b++) map_u(taps, t + b, P);
                for (int a = 0; a < P; a++) map_u(taps, t + a * P, 1);
                for (int a = 0; a < P * P; a++) points[a * size + i] = t[a];
            }
        }
}

MAP winograd_collect(const int taps, const Plan *p, const float *restrict points, float *restrict narrow) {
    const int P = taps + 1, O = p->narrow;
    const ptrdiff_t down = 2 * (ptrdiff_t)p->columns * O, size = (ptrdiff_t)p->n * p->rows * p->columns * O;
    for (int y = 0; y < p->n * p->rows; y++)
        for (int x = 0; x < p->columns; x++, points += O) {
            float *out = narrow + 2 * y * down + 2 * x * O;
            INDEPENDENT
            for (int i = 0; i < O; i++) {
                float t[16];
                for (int a = 0; a < P * P; a++) t[a] = points[a * size + i];
                for (int b = 0; b < P; b++) map_u_transposed(taps, t + b, P);
                for (int a = 0; a < 2; a++) map_u_transposed(taps, t + a * P, 1);
                for (int a = 0; a < 2; a++)
                    for (int b = 0; b < 2; b++) out[a * down + b * O + i] = t[a * P + b];
            }
        }
}

void spread(const Plan *p, const float *narrow, float *points) {
    if (p->taps == 2) winograd_spread(2, p, narrow, points);
    else winograd_spread(3, p, narrow, points);
}

void collect(const Plan *p, const float *points, float *narrow) {
    if (p->taps == 2) winograd_collect(2, p, points, narrow);
    else winograd_collect(3, p, points, narrow);
}

/* ------------------------------------------------------------------------------------------------
   Images from one place to another, rows of so many floats that lie together. */

typedef struct {
    int n, rows, floats;
    ptrdiff_t from_image, from_row, to_image, to_row;
} Copy;

/* to = from or, where `before` (laid out as from) is given, from * silu'(before). */
void fill(const Copy *c, const float *from, const float *before, float *to) {
    for (int n = 0; n < c->n; n++)
        for (int row = 0; row < c->rows; row++) {
            const ptrdiff_t at = n * c->from_image + row * c->from_row;
            const float *in = from + at, *x = before ? before + at : NULL;
            float *out = to + n * c->to_image + row * c->to_row;
            if (!x) {
                memcpy(out, in, sizeof(float) * c->floats);
                continue;
            }
            int i = 0;
            for (; i + LANES <= c->floats; i += LANES) store(out + i, load(in + i) * silu_slope(load(x + i)));
            const int rest = c->floats - i;
            if (rest) store_some(out + i, load_some(in + i, rest) * silu_slope(load_some(x + i, rest)), rest);
        }
}

static inline vec activated(vec x, int silu) {
    if (silu) x *= sigmoid(x);
    return x;
}

/* to = from + bias, a bias for each float of a row; with SiLU `before` receives that and `to` the activation. The two are
   laid out alike and may be the same. */
void finish(const Copy *c, const float *from, const float *bias, int silu, float *before, float *to) {
    for (int n = 0; n < c->n; n++)
        for (int row = 0; row < c->rows; row++) {
            const float *in = from + n * c->from_image + row * c->from_row;
            const ptrdiff_t at = n * c->to_image + row * c->to_row;
            int i = 0;
            for (; i + LANES <= c->floats; i += LANES) {
                const vec x = load(in + i) + load(bias + i);
                if (before != to) store(before + at + i, x);
                store(to + at + i, activated(x, silu));
            }
            const int rest = c->floats - i;
            if (rest) {
                const vec x = load_some(in + i, rest) + load_some(bias + i, rest);
                if (before != to) store_some(before + at + i, x, rest);
                store_some(to + at + i, activated(x, silu), rest);
            }
        }
}
