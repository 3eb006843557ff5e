/* A few new tokens of many rows through a Transformer-XL: what transformer_xl.py does with a memory, for one thread.

   PyTorch's matrix products run at the processor's limit, but as much time again goes into what lies between them: attention
   of a few queries a row, activations, norms, copies, and waiting for memory. Here a block of tokens stays in the cache from
   one layer norm to the next, and a product fetches the weights of the one after it, and the keys and values of its rows.

   Shapes, row-major: x (rows, T, D), allowed (rows, T, keys), others where they are declared. T is at most 3, the new tokens
   are the last T keys, positions come with the most distant first. */

#include "vectors.h"

/* Rows and vectors of a product that are held in registers at a time; tokens that go through a layer together. */
enum { ROWS = LANES == 16 ? 12 : 6, WIDE = 2, PANEL = LANES * WIDE, BLOCK = 120 };
enum { MOST_QUERIES = 3, SPARE = ROWS * MOST_QUERIES, GAP = 16 };

/* What Python has to know to lay out memory. */
int panel_width(void) { return PANEL; }
int lanes(void) { return LANES; }
int spare_tokens(void) { return SPARE; }

#if defined(__clang__)
static inline vec shuffle(vec a, vec b, ints from) {
    vec y;
    for (int l = 0; l < LANES; l++) y[l] = from[l] < LANES ? a[from[l]] : b[from[l] - LANES];
    return y;
}
#else
static inline vec shuffle(vec a, vec b, ints from) { return __builtin_shuffle(a, b, from); }
#endif

/* ------------------------------------------------------------------------------------------------
   Matrix products. Weights come in panels: PANEL outputs of all inputs lie together, (N / PANEL, K, PANEL). */

/* Memory to fetch while something else is computed: `count` pieces of so many floats, `stride` floats apart. */
typedef struct {
    const float *piece;
    ptrdiff_t stride;
    int count, floats;
} Ahead;

/* One tile of a product, not inlined, so that the compiler has all registers for it. Meanwhile two streams of memory come
   into the cache, so many floats of each for each of the K inputs. */
static __attribute__((noinline)) void tile(
    const float *restrict x, ptrdiff_t x_stride, int K, const float *restrict panel, const float *bias, const float *next,
    ptrdiff_t next_rate, const float *ahead, ptrdiff_t ahead_rate, float *restrict y, ptrdiff_t y_stride
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
            rows[g]++;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < WIDE; j++) store(y + i * y_stride + j * LANES, c[i][j]);
}

static void activate(float *y, ptrdiff_t stride) {
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < PANEL; j += LANES) {
            const vec x = load(y + i * stride + j);
            store(y + i * stride + j, x * sigmoid(x));
        }
}

/* y = x W^T + bias, then SiLU if asked. Rows are rounded up to ROWS: x and y must have room for them. While the rows go
   through one panel the next one is fetched, and with the last whatever lies behind it: weights had better lie in the order
   of their use. So is what is wanted ahead, if anything is, a piece with each tile. */
static void product(
    const float *x, ptrdiff_t x_stride, int rows, int K, const float *panels, const float *bias, int N, int silu,
    Ahead *ahead, float *y, ptrdiff_t y_stride
) {
    const int rate = (PANEL * ROWS + rows - 1) / rows; /* a panel, spread over all the tiles of this one */
    for (int n = 0; n < N; n += PANEL) {
        const float *panel = panels + (ptrdiff_t)n * K, *next = panel + (ptrdiff_t)K * PANEL;
        for (int row = 0; row < rows; row += ROWS, next += K * rate) {
            const int more = ahead && ahead->count-- > 0;
            float *out = y + row * y_stride + n;
            tile(x + row * x_stride, x_stride, K, panel, bias ? bias + n : NULL, next, rate, more ? ahead->piece : next,
                 more ? (ahead->floats + K - 1) / K : 0, out, y_stride);
            if (silu) activate(out, y_stride);
            if (more) ahead->piece += ahead->stride;
        }
    }
}

/* The same for whole arrays x (rows, K) and y (rows, N), with no room after them; N is a multiple of panel_width(). */
void linear(const float *x, int rows, int K, const float *panels, const float *bias, int N, int silu, float *y) {
    const int whole = rows / ROWS * ROWS, rest = rows - whole;
    if (whole) product(x, K, whole, K, panels, bias, N, silu, NULL, y, N);
    if (rest) {
        float in[ROWS * K], out[ROWS * N];
        memset(in, 0, sizeof in);
        memcpy(in, x + (ptrdiff_t)whole * K, sizeof(float) * rest * K);
        product(in, K, rest, K, panels, bias, N, silu, NULL, out, N);
        memcpy(y + (ptrdiff_t)whole * N, out, sizeof(float) * rest * N);
    }
}

/* y = norm(x + added), weight and bias after it; added may be NULL, and x + added is written back to x if keep. */
static void layer_norm(
    float *x, ptrdiff_t x_stride, const float *added, ptrdiff_t added_stride, int rows, int D, const float *weight,
    const float *bias, float eps, int keep, float *y, ptrdiff_t y_stride
) {
    for (int row = 0; row < rows; row++, x += x_stride, y += y_stride) {
        const float *more = added ? added + row * added_stride : NULL;
        vec total = all(0.0f), squares = all(0.0f);
        for (int i = 0; i < D; i += LANES) {
            vec value = load(x + i);
            if (more) value += load(more + i);
            total += value;
            store(y + i, value);
            if (keep) store(x + i, value);
        }
        const float mean = sum(total) / D;
        for (int i = 0; i < D; i += LANES) {
            const vec centred = load(y + i) - mean;
            squares += centred * centred;
        }
        const float scale = 1.0f / sqrtf(sum(squares) / D + eps);
        for (int i = 0; i < D; i += LANES)
            store(y + i, (load(y + i) - mean) * scale * load(weight + i) + load(bias + i));
    }
}

static void add(float *x, ptrdiff_t x_stride, const float *y, ptrdiff_t y_stride, int rows, int D) {
    for (int row = 0; row < rows; row++, x += x_stride, y += y_stride)
        for (int i = 0; i < D; i += LANES) store(x + i, load(x + i) + load(y + i));
}

/* ------------------------------------------------------------------------------------------------
   Attention. */

/* For sums below: where the lanes of a pair of vectors go. */
#define LANE(l, half, flip) (((l) ^ (flip)) + ((l) & (half) ? LANES : 0))
#define FOUR(l, half, flip) LANE(l, half, flip), LANE(l + 1, half, flip), LANE(l + 2, half, flip), LANE(l + 3, half, flip)
#if LANES == 16
#define EVERY(half, flip) {FOUR(0, half, flip), FOUR(4, half, flip), FOUR(8, half, flip), FOUR(12, half, flip)}
#elif LANES == 8
#define EVERY(half, flip) {FOUR(0, half, flip), FOUR(4, half, flip)}
#else
#define EVERY(half, flip) {FOUR(0, half, flip)}
#endif
#define PAIR(half) {EVERY(half, 0), EVERY(half, half)}
static const ints PAIRS[][2] = {PAIR(LANES / 2), PAIR(LANES / 4), PAIR(LANES / 8), PAIR(LANES / 16)};

typedef struct {
    int rows, D, heads, d, keys, room, T;
    int together;           /* heads whose queries, keys and values are computed at a time: they fill whole panels */
    int distances, skipped; /* columns of a head's positions, and how many of them lie beyond the first key */
    const float *u, *v;     /* (heads, d), scaled as the queries */
    float scale;
    const int32_t *allowed; /* (rows, T, padded(keys)): all bits or none */
} Sizes;

typedef struct {
    const float *qkv, *output, *expand, *expand_bias, *contract, *contract_bias; /* weights in panels */
    const float *norm_attention, *norm_attention_bias, *norm_feedforward, *norm_feedforward_bias;
    const float *positions; /* (heads, distances / PANEL, d, PANEL) */
    float *memory;          /* (heads, rows, room, 2, d): keys and values */
} Layer;

static int padded(int keys) { return (keys + LANES - 1) / LANES * LANES; }

/* One vector of the sums of LANES vectors, which are used up. At each turn half as many are left: lane l takes its share of
   the first or the second of a pair by bit `half` of l, and adds what lane l ^ half has of it. */
static inline __attribute__((always_inline)) vec sums(vec *x) {
#pragma GCC unroll 4
    for (int turn = 0; (LANES >> turn) > 1; turn++) {
        const int half = LANES >> (turn + 1);
        const ints kept = PAIRS[turn][0], other = PAIRS[turn][1];
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) x[i] = shuffle(x[i], x[i + half], kept) + shuffle(x[i], x[i + half], other);
    }
    return x[0];
}

/* Scores of one query with all keys; masked, and past the last key, -inf. Returns the largest. */
static inline __attribute__((always_inline)) float score(
    const int d, int keys, const float *query, const float *memory, const float *distance, const int32_t *allowed,
    float *scores
) {
    vec largest = all(-INFINITY);
    for (int j = 0; j < keys; j += LANES) {
        vec products[LANES];
#pragma GCC unroll 16
        for (int key = 0; key < LANES; key++) {
            const float *row = memory + (ptrdiff_t)(j + key) * 2 * d;
            products[key] = load(query) * load(row);
            for (int i = LANES; i < d; i += LANES) products[key] += load(query + i) * load(row + i);
        }
        const vec x = choose(*(const ints *)(allowed + j), sums(products) + load(distance + j), all(-INFINITY));
        largest = choose(x > largest, x, largest);
        store(scores + j, x);
    }
    float most = largest[0];
    for (int l = 1; l < LANES; l++) most = largest[l] > most ? largest[l] : most;
    return most;
}

/* Softmax in place, given the largest; 0 at masked keys. */
static inline void weigh(float *scores, int keys, float largest) {
    vec total = all(0.0f);
    for (int j = 0; j < keys; j += LANES) {
        /* Below the smallest float, where the exponential stops falling, is nothing. */
        const vec x = load(scores + j) - largest, e = exponential(x);
        const vec weight = choose(x < all(-87.0f), all(0.0f), e);
        total += weight;
        store(scores + j, weight);
    }
    const float scale = 1.0f / sum(total);
    for (int j = 0; j < keys; j += LANES) store(scores + j, load(scores + j) * scale);
}

static inline __attribute__((always_inline)) void mix(
    const int S, const int W, const int d, int keys, const float *weights, int stride, const float *memory, float *y,
    ptrdiff_t y_stride
) {
    for (int i = 0; i < d; i += W * LANES) {
        vec c[MOST_QUERIES][4];
        for (int s = 0; s < S; s++)
            for (int w = 0; w < W; w++) c[s][w] = all(0.0f);
        for (int j = 0; j < keys; j++) {
#pragma GCC unroll 4
            for (int w = 0; w < W; w++) {
                const vec value = load(memory + (ptrdiff_t)(2 * j + 1) * d + i + w * LANES);
#pragma GCC unroll 3
                for (int s = 0; s < S; s++) c[s][w] += weights[s * stride + j] * value;
            }
        }
        for (int s = 0; s < S; s++)
            for (int w = 0; w < W; w++) store(y + s * y_stride + i + w * LANES, c[s][w]);
    }
}

/* S queries of one row and head. Distances are counted from the last token: the query s tokens before it reads s columns
   further right. */
static inline __attribute__((always_inline)) void attend_row(
    const int S, const int d, const Sizes *z, const float *q, ptrdiff_t q_stride, const float *memory,
    const float *distance, const int32_t *allowed, float *y, ptrdiff_t y_stride
) {
    const int stride = padded(z->keys);
    float scores[MOST_QUERIES * stride];
    for (int s = 0; s < S; s++) {
        const float *columns = distance + (ptrdiff_t)s * (z->distances + GAP) + z->skipped + (S - 1 - s);
        float *row = scores + s * stride;
        weigh(row, z->keys, score(d, z->keys, q + s * q_stride, memory, columns, allowed + (ptrdiff_t)s * stride, row));
    }
    if (d % (4 * LANES) == 0) mix(S, 4, d, z->keys, scores, stride, memory, y, y_stride);
    else mix(S, 1, d, z->keys, scores, stride, memory, y, y_stride);
}

/* The same with what is usual known to the compiler. */
static void attend_usual(
    int S, const Sizes *z, const float *q, ptrdiff_t q_stride, const float *memory, const float *distance,
    const int32_t *allowed, float *y, ptrdiff_t y_stride
) {
    if (S == 3 && z->d == 64) attend_row(3, 64, z, q, q_stride, memory, distance, allowed, y, y_stride);
    else if (S == 1 && z->d == 32) attend_row(1, 32, z, q, q_stride, memory, distance, allowed, y, y_stride);
    else if (S == 1) attend_row(1, z->d, z, q, q_stride, memory, distance, allowed, y, y_stride);
    else if (S == 2) attend_row(2, z->d, z, q, q_stride, memory, distance, allowed, y, y_stride);
    else attend_row(3, z->d, z, q, q_stride, memory, distance, allowed, y, y_stride);
}

/* Attention of the last S of each row's T new tokens, for the heads from `first` on that are computed together. x are the
   inputs, all T; keys and values of the new tokens go into the memory; y receives what each head adds. */
static void attend(
    const Sizes *z, const Layer *layer, int first, int row, int rows, int S, const float *x, ptrdiff_t x_stride,
    float *scratch, float *y, ptrdiff_t y_stride
) {
    const int d = z->d, N = z->together * d, tokens = rows * z->T, start = z->keys - z->T, columns = z->distances + GAP;
    const ptrdiff_t wide = 3 * N + GAP, narrow = N + GAP, piece = (ptrdiff_t)z->room * 2 * d;
    float *qkv = scratch, *far = qkv + (BLOCK + SPARE) * wide, *distances = far + (BLOCK + SPARE) * narrow;
    float *memory = layer->memory + ((ptrdiff_t)first * z->rows + row) * piece;
    const float *panels = layer->qkv + (ptrdiff_t)first * d * 3 * z->D;
    Ahead ahead = {memory, piece, rows, start * 2 * d};
    product(x + (z->T - S) * x_stride, z->T / S * x_stride, rows * S, z->D, panels, NULL, N, 0, &ahead, qkv, wide);
    product(x, x_stride, tokens, z->D, panels + (ptrdiff_t)N * z->D, NULL, 2 * N, 0, &ahead, qkv + N, wide);
    for (int token = 0; token < rows * S; token++) {
        float *q = qkv + token * wide;
        for (int i = 0; i < N; i += LANES) {
            const vec scaled = load(q + i) * z->scale;
            store(q + i, scaled + load(z->u + first * d + i));
            store(far + token * narrow + i, scaled + load(z->v + first * d + i));
        }
    }
    for (int head = 0; head < z->together; head++, memory += z->rows * piece) {
        product(far + head * d, narrow, rows * S, d, layer->positions + (ptrdiff_t)(first + head) * d * z->distances,
                NULL, z->distances, 0, NULL, distances, columns);
        for (int r = 0; r < rows; r++) {
            float *here = memory + r * piece;
            for (int t = 0; t < z->T; t++) {
                const float *k = qkv + (r * z->T + t) * wide + N + head * d;
                memcpy(here + (ptrdiff_t)(start + t) * 2 * d, k, sizeof(float) * d);
                memcpy(here + (ptrdiff_t)(start + t) * 2 * d + d, k + N, sizeof(float) * d);
            }
            attend_usual(S, z, qkv + r * S * wide + head * d, wide, here, distances + (ptrdiff_t)r * S * columns,
                         z->allowed + ((ptrdiff_t)(row + r) * z->T + z->T - S) * padded(z->keys),
                         y + r * S * y_stride + head * d, y_stride);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
   Layers. */

/* Floats of scratch memory that step needs. */
size_t scratch_size(int rows, int T, int D, int F, int keys, int together_width, int distances) {
    const size_t tokens = BLOCK + SPARE;
    return tokens * (4 * (together_width + GAP) + F + distances + 5 * (D + GAP)) + (size_t)rows * T * padded(keys);
}

/* All layers. x holds the new tokens, has room for spare_tokens() more, and is used up; y (rows, D) receives the outputs
   of each row's last token. room is a multiple of lanes(). Of the `distances` columns of positions, a multiple of
   panel_width(), the first `skipped` lie beyond the first key, and T or more follow that of the last. */
void step(
    const Layer *layers, int count, int rows, int T, int D, int heads, int together, int F, int keys, int room,
    int distances, int skipped, int pre_norm, const float *u, const float *v, float eps, const uint8_t *allowed, float *x,
    float *y, float *scratch
) {
    const ptrdiff_t deep = F + GAP, plain = D + GAP; /* strides that do not fall on one cache line */
    float *hidden = scratch, *normed = hidden + (BLOCK + SPARE) * deep, *mixed = normed + (BLOCK + SPARE) * plain;
    float *added = mixed + (BLOCK + SPARE) * plain, *rest = added + (BLOCK + SPARE) * plain;
    /* The mask as all heads of all layers want it. */
    const int stride = padded(keys);
    int32_t *mask = (int32_t *)rest;
    rest += (ptrdiff_t)rows * T * stride;
    for (int token = 0; token < rows * T; token++)
        for (int j = 0; j < stride; j++)
            mask[(ptrdiff_t)token * stride + j] = j < keys && allowed[(ptrdiff_t)token * keys + j] ? -1 : 0;
    const Sizes z = {rows, D, heads, D / heads, keys, room, T, together, distances, skipped, u, v, 1.0f / sqrtf(D), mask};
    const int block = BLOCK / T; /* rows */
    for (int l = 0; l < count; l++) {
        const Layer *layer = layers + l;
        const int S = l == count - 1 ? 1 : T; /* of the last layer only the last token is asked for */
        for (int row = 0; row < rows; row += block) {
            const int n = rows - row < block ? rows - row : block, tokens = n * T;
            float *in = x + (ptrdiff_t)row * T * D;
            const float *source = in;
            ptrdiff_t x_stride = D;
            if (pre_norm) {
                layer_norm(in, D, NULL, 0, tokens, D, layer->norm_attention, layer->norm_attention_bias, eps, 0, normed, plain);
                source = normed, x_stride = plain;
            }
            for (int head = 0; head < heads; head += together)
                attend(&z, layer, head, row, n, S, source, x_stride, rest, mixed + head * z.d, plain);
            product(mixed, plain, n * S, D, layer->output, NULL, D, 0, NULL, added, plain);

            const ptrdiff_t in_stride = (ptrdiff_t)(T / S) * D; /* from here on only the tokens asked for */
            float *now = in + (ptrdiff_t)(T - S) * D, *out = now;
            ptrdiff_t out_stride = in_stride;
            if (l == count - 1) out = y + (ptrdiff_t)row * D, out_stride = D;
            if (pre_norm) {
                layer_norm(now, in_stride, added, plain, n * S, D, layer->norm_feedforward, layer->norm_feedforward_bias,
                           eps, 1, normed, plain);
            } else {
                layer_norm(now, in_stride, added, plain, n * S, D, layer->norm_attention, layer->norm_attention_bias, eps,
                           0, normed, plain);
            }
            product(normed, plain, n * S, D, layer->expand, layer->expand_bias, F, 1, NULL, hidden, deep);
            product(hidden, deep, n * S, F, layer->contract, layer->contract_bias, D, 0, NULL, added, plain);
            if (pre_norm) {
                for (int i = 0; i < n * S && out != now; i++) memcpy(out + i * out_stride, now + i * in_stride, sizeof(float) * D);
                add(out, out_stride, added, plain, n * S, D);
            } else {
                layer_norm(normed, plain, added, plain, n * S, D, layer->norm_feedforward, layer->norm_feedforward_bias, eps,
                           0, out, out_stride);
            }
        }
    }
}
