/* SiLU and its gradient, number by number: silu.py. */

#include "vectors.h"

void silu(const float *x, int64_t count, float *y) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(y + i, load(x + i) * sigmoid(load(x + i)));
    const vec last = load_some(x + i, count - i);
    store_some(y + i, last * sigmoid(last), count - i);
}

/* y = gradient * silu'(x) */
void silu_backward(const float *gradient, const float *x, int64_t count, float *y) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(y + i, load(gradient + i) * silu_slope(load(x + i)));
    const vec last = load_some(gradient + i, count - i) * silu_slope(load_some(x + i, count - i));
    store_some(y + i, last, count - i);
}
