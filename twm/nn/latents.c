/* The gradient of a layer that reads latent states as categories (OneHotLinear in latents.py): each row's gradient is added
   to the columns of the weight that the row had picked. */

#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { TOGETHER = 4 }; /* variables that share one reading of the gradient; their columns must fit into the cache */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

int lanes(void) { return LANES; }

static inline void add(const int64_t *columns, const int count, const float *restrict gradient, int64_t N, float *restrict total) {
    float *column[TOGETHER];
    for (int v = 0; v < count; v++) column[v] = total + columns[v] * N;
    for (int64_t n = 0; n < N; n += LANES) {
        const vec g = *(const vec *)(gradient + n);
        for (int v = 0; v < count; v++) *(vec *)(column[v] + n) += g;
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
