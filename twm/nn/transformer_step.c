/* A few new tokens of many rows through a Transformer-XL: what transformer_xl.py does with a memory, for one thread.

   PyTorch's matrix products run at the processor's limit, but as much time again goes into what lies between them: attention
   of a few queries a row, activations, norms, copies, and waiting for memory. Here a block of tokens stays in the cache from
   one layer norm to the next, and products know what comes after them (panels.h).

   Shapes, row-major: x (rows, T, D), allowed (rows, T, keys), others where they are declared. T is at most 3, the new tokens
   are the last T keys, positions come with the most distant first. */

#include "panels.h"

#include <stdlib.h>

enum { MOST_QUERIES = 3, SPARE = ROWS * MOST_QUERIES, GAP = 16 };

/* What Python has to know to lay out memory. */
int panel_width(void) { return PANEL; }
int lanes(void) { return LANES; }
int spare_tokens(void) { return SPARE; }
int hidden_units(void) { return UNITS; }

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
   Layers by themselves. */

/* Floats of a weight (N, K) in panels; N is a multiple of panel_width(). */
size_t packed_floats(int N, int K) { return N / PANEL * panel_floats(K); }

void pack(const float *weight, int N, int K, float *panels) {
    for (int n = 0; n < N; n += PANEL) pack_panel(weight + (ptrdiff_t)n * K, K, panels + n / PANEL * panel_floats(K));
}

/* x is (rows, K), with no room after it, y (rows + spare_tokens(), N). Returns 0, or -1 if there is no memory. */
int linear(const float *x, int rows, int K, const float *panels, const float *bias, int N, int silu, float *y) {
    const int most = rows < BLOCK ? rows : BLOCK;
    const size_t last = ROWS * (size_t)K; /* the last rows, where as many are read as they are rounded up to */
    float *in = aligned_alloc(64, (sizeof(float) * (last + room_floats(most, K)) + 63) / 64 * 64);
    if (!in) return -1;
    begin_tiles();
    for (int row = 0, count; row < rows; row += count) {
        const int left = rows - row < BLOCK ? rows - row : BLOCK;
        const float *from = x + (ptrdiff_t)row * K;
        count = HAVE_TILES || left < ROWS ? left : left / ROWS * ROWS;
        if (!HAVE_TILES && count < ROWS) {
            memset(in, 0, sizeof(float) * last);
            from = memcpy(in, from, sizeof(float) * count * K);
        }
        product(rows_of(from, K, count, K, in + last), panels, bias, N, silu, 0, NULL, y + (ptrdiff_t)row * N, N);
    }
    end_tiles();
    free(in);
    return 0;
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
    const float *qkv, *output, *feed_forward; /* weights in panels */
    const float *expand_bias, *contract_bias;
    const float *norm_attention, *norm_attention_bias, *norm_feedforward, *norm_feedforward_bias;
    const float *positions; /* of one head after the other */
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

/* Scores of one query with all keys; masked, and past the last key, -inf. Returns the largest. With each key so many lines of
   `next` are fetched. */
static inline __attribute__((always_inline)) float score(
    const int d, int keys, const float *query, const float *memory, const float *distance, const int32_t *allowed,
    const char **next, int rate, float *scores
) {
    vec largest = all(-INFINITY);
    for (int j = 0; j < keys; j += LANES) {
        const int last = keys - 1 - j; /* again instead of those after it, which are not in the cache */
        vec products[LANES];
#pragma GCC unroll 16
        for (int key = 0; key < LANES; key++) {
            const float *row = memory + (ptrdiff_t)(j + (key < last ? key : last)) * 2 * d;
            for (int i = 0; i < rate; i++, *next += 64) __builtin_prefetch(*next, 0, 2);
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

/* S queries of one row and head; the memory of the next row comes in meanwhile. Distances are counted from the last token: the
   query s tokens before it reads s columns further right. */
static inline __attribute__((always_inline)) void attend_row(
    const int S, const int d, const Sizes *z, const float *q, ptrdiff_t q_stride, const float *memory,
    const float *distance, const int32_t *allowed, float *y, ptrdiff_t y_stride
) {
    const int stride = padded(z->keys), rate = HAVE_TILES ? z->keys * d / 8 / (S * stride) : 0;
    const char *next = (const char *)(memory + (ptrdiff_t)z->room * 2 * d);
    float scores[MOST_QUERIES * stride];
    for (int s = 0; s < S; s++) {
        const float *columns = distance + (ptrdiff_t)s * (z->distances + GAP) + z->skipped + (S - 1 - s);
        float *row = scores + s * stride;
        weigh(row, z->keys, score(d, z->keys, q + s * q_stride, memory, columns, allowed + (ptrdiff_t)s * stride, &next, rate, row));
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

/* Attention of the last S of each row's T new tokens, for the heads from `first` on that are computed together. `tokens` are
   the inputs, all T, `asking` the last S; keys and values of the new tokens go into the memory; y receives what each head
   adds. */
static void attend(
    const Sizes *z, const Layer *layer, int first, int row, int rows, int S, Rows tokens, Rows asking, float *scratch,
    float *y, ptrdiff_t y_stride
) {
    const int d = z->d, N = z->together * d, start = z->keys - z->T, columns = z->distances + GAP;
    const ptrdiff_t wide = 3 * N + GAP, narrow = N + GAP, piece = (ptrdiff_t)z->room * 2 * d;
    float *room = scratch, *qkv = room + room_floats(BLOCK, d), *far = qkv + (BLOCK + SPARE) * wide;
    float *distances = far + (BLOCK + SPARE) * narrow;
    float *memory = layer->memory + ((ptrdiff_t)first * z->rows + row) * piece;
    const float *queries = layer->qkv + 3 * (first * d / PANEL) * panel_floats(z->D);
    Ahead past = {memory, piece, rows, start * 2 * d}, *ahead = HAVE_TILES ? NULL : &past;
    product(asking, queries, NULL, N, 0, 0, ahead, qkv, wide);
    product(tokens, queries + N / PANEL * panel_floats(z->D), NULL, 2 * N, 0, 0, ahead, qkv + N, wide);
    for (int token = 0; token < rows * S; token++) {
        float *q = qkv + token * wide;
        for (int i = 0; i < N; i += LANES) {
            const vec scaled = load(q + i) * z->scale;
            store(q + i, scaled + load(z->u + first * d + i));
            store(far + token * narrow + i, scaled + load(z->v + first * d + i));
        }
    }
    for (int head = 0; head < z->together; head++, memory += z->rows * piece) {
        product(rows_of(far + head * d, narrow, rows * S, d, room),
                layer->positions + (first + head) * packed_floats(z->distances, d), NULL, z->distances, 0, 0, NULL, distances,
                columns);
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

/* y = W2 silu(W1 x + b1) + b2, for UNITS of the hidden units at a time; the weights of the next ones come in meanwhile. */
static void feed_forward(const Layer *layer, Rows x, int F, float *scratch, float *y, ptrdiff_t y_stride) {
    const float *weights = layer->feed_forward;
    const int D = x.K, groups = (x.rows + GROUP - 1) / GROUP;
    for (int f = 0; f < F; f += UNITS) {
        const int units = F - f < UNITS ? F - f : UNITS, panels = (units + D) / PANEL;
        const ptrdiff_t deep = units + GAP, half = packed_floats(units, D), both = half + packed_floats(D, units);
        const ptrdiff_t part = both / groups;
        const float *contract = weights + half;
        for (int row = 0; row < x.rows; row += GROUP) {
            const int rows = x.rows - row < GROUP ? x.rows - row : GROUP;
            float *hidden = scratch, *room = hidden + (GROUP + SPARE) * deep, *out = y + row * y_stride;
            Ahead following = {weights + both + row / GROUP * part, part / panels, panels, part / panels};
            Ahead *ahead = HAVE_TILES ? &following : NULL;
            product(some_rows(x, row, rows), weights, layer->expand_bias + f, units, 1, 0, ahead, hidden, deep);
            product(rows_of(hidden, deep, rows, units, room), contract, layer->contract_bias, D, 0, f > 0, ahead, out, y_stride);
        }
        weights += both;
    }
}

/* Floats of scratch memory that step needs. */
size_t scratch_size(int rows, int T, int D, int F, int keys, int together_width, int distances) {
    const size_t tokens = BLOCK + SPARE;
    const size_t rooms = 2 * room_floats(BLOCK, D) + room_floats(GROUP, F < UNITS ? F : UNITS) + room_floats(BLOCK, together_width);
    return rooms + tokens * (4 * (together_width + GAP) + distances + 5 * (D + GAP)) +
           (GROUP + SPARE) * (size_t)((F < UNITS ? F : UNITS) + GAP) + (size_t)rows * T * padded(keys);
}

/* All layers. x holds the new tokens, has room for spare_tokens() more, and is used up; y (rows, D) receives the outputs
   of each row's last token. room is a multiple of lanes(). Of the `distances` columns of positions, a multiple of
   panel_width(), the first `skipped` lie beyond the first key, and T or more follow that of the last. */
void step(
    const Layer *layers, int count, int rows, int T, int D, int heads, int together, int F, int keys, int room,
    int distances, int skipped, int pre_norm, const float *u, const float *v, float eps, const uint8_t *allowed, float *x,
    float *y, float *scratch
) {
    const ptrdiff_t plain = D + GAP; /* a stride that does not fall on one cache line */
    const int units = F < UNITS ? F : UNITS;
    float *ready = scratch, *asked = ready + room_floats(BLOCK, D), *hidden = asked + room_floats(BLOCK, D);
    float *normed = hidden + room_floats(GROUP, units) + (GROUP + SPARE) * (size_t)(units + GAP);
    float *mixed = normed + (BLOCK + SPARE) * plain;
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
    begin_tiles();
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
            const Rows all = rows_of(source, x_stride, tokens, D, ready);
            const Rows asking = S == T ? all : rows_of(source + (T - S) * x_stride, T / S * x_stride, n * S, D, asked);
            for (int head = 0; head < heads; head += together)
                attend(&z, layer, head, row, n, S, all, asking, rest, mixed + head * z.d, plain);
            product(rows_of(mixed, plain, n * S, D, ready), layer->output, NULL, D, 0, 0, NULL, added, plain);

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
            feed_forward(layer, rows_of(normed, plain, n * S, D, ready), F, hidden, added, plain);
            if (pre_norm) {
                for (int i = 0; i < n * S && out != now; i++) memcpy(out + i * out_stride, now + i * in_stride, sizeof(float) * D);
                add(out, out_stride, added, plain, n * S, D);
            } else {
                layer_norm(normed, plain, added, plain, n * S, D, layer->norm_feedforward, layer->norm_feedforward_bias, eps,
                           0, out, out_stride);
            }
        }
    }
    end_tiles();
}
