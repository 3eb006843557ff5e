/* The gradient of a layer that reads latent states as categories (OneHotLinear in latents.py): each row's gradient is added
   to the columns of the weight that the row had picked. */

#include "vectors.h"

enum { TOGETHER = 4 }; /* variables that share one reading of the gradient; their columns must fit into the cache */

int lanes(void) { return LANES; }

static inline void add(const int64_t *columns, const int count, const float *restrict gradient, int64_t N, float *restrict total) {
    float *column[TOGETHER];
    for (int v = 0; v < count; v++) column[v] = total + columns[v] * N;
    for (int64_t n = 0; n < N; n += LANES) {
        const vec g = load(gradient + n);
        for (int v = 0; v < count; v++) store(column[v] + n, load(column[v] + n) + g);
    }
}

/* total[columns[row, v]] += gradient[row] for all rows and variables v; N is a multiple of lanes(). */
void add_to_columns(const int64_t *columns, int64_t rows, int64_t variables, const float *gradient, int64_t N, float *total) {
    int64_t v = 0;
    for (; v + TOGETHER <= variables; v += TOGETHER)
        for (int64_t row = 0; row < rows; row++) add(columns + row * variables + v, TOGETHER, gradient + row * N, N, total);
    for (; v < variables; v++)
        for (int64_t row = 0; row < rows; row++) add(columns + row * variables + v, 1, gradient + row * N, N, total);
}
