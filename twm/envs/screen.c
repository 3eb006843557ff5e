/* Frames of the emulator as one small gray picture (screen.py): sixteen pixels at a time are looked at, and only rows
   in which one differs from the interaction before are computed again. */

#include <stdint.h>
#include <string.h>

enum { CHUNK = 16 };

/* Brings one frame up to date. ``frame`` and ``last`` hold the emulator's colours now and before, ``gray`` the gray
   values of ``last``; ``table`` those of all colours, with a higher bit where one is not known yet. ``width`` is a
   multiple of CHUNK. Marks rows that changed; returns whether a colour was unknown. */
int see(const uint8_t *frame, uint8_t *last, uint8_t *gray, const uint16_t *table, int64_t height, int64_t width,
        uint8_t *changed) {
    unsigned seen = 0;
    for (int64_t y = 0; y < height; y++) {
        for (int64_t i = y * width; i < (y + 1) * width; i += CHUNK) {
            if (memcmp(frame + i, last + i, CHUNK) == 0) continue;
            for (int k = 0; k < CHUNK; k++) {
                const unsigned value = table[frame[i + k]];
                gray[i + k] = (uint8_t)value;
                seen |= value;
            }
            memcpy(last + i, frame + i, CHUNK);
            changed[y] = 1;
        }
    }
    return seen > UINT8_MAX;
}

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

/* merged = max(first, second) in the rows that changed (``second`` may be ``merged`` itself), and the means of the
   areas that changed, size x size. With p = height / gcd(height, size) and m = size / gcd(height, size), a row is m
   units high and an area p; likewise a column is n units wide and an area q. So sums are whole numbers. */
void merge(const uint8_t *first, const uint8_t *second, uint8_t *merged, uint8_t *small, int64_t height, int64_t width,
           int64_t size, uint8_t *changed) {
    const int64_t rows = gcd(height, size), p = height / rows, m = size / rows;
    const int64_t columns = gcd(width, size), q = width / columns, n = size / columns;
    const float scale = 1.0f / (float)(p * q);
    for (int64_t y = 0; y < height; y++) {
        if (!changed[y]) continue;
        for (int64_t i = y * width; i < (y + 1) * width; i++) merged[i] = first[i] > second[i] ? first[i] : second[i];
    }
    for (int64_t i = 0; i < size; i++) {
        const int64_t top = i * p, bottom = top + p; /* in units */
        const int64_t y0 = top / m, y1 = (bottom + m - 1) / m;
        if (!memchr(changed + y0, 1, (size_t)(y1 - y0))) continue;
        uint32_t sums[width]; /* of each column */
        memset(sums, 0, sizeof sums);
        for (int64_t y = y0; y < y1; y++) {
            const int64_t above = y * m > top ? y * m : top, below = (y + 1) * m < bottom ? (y + 1) * m : bottom;
            const uint32_t weight = (uint32_t)(below - above);
            for (int64_t x = 0; x < width; x++) sums[x] += weight * merged[y * width + x];
        }
        /* Sums up to the right edge of each area; their differences are the areas' own. */
        uint32_t whole = 0, before = 0;
        int64_t x = 0, part = 0; /* units of column x that lie left of the edge */
        for (int64_t j = 0; j < size; j++) {
            for (part += q; part >= n; part -= n) whole += (uint32_t)n * sums[x++];
            const uint32_t edge = part ? whole + (uint32_t)part * sums[x] : whole;
            small[i * size + j] = (uint8_t)((float)(edge - before) * scale + 0.5f);
            before = edge;
        }
    }
    memset(changed, 0, (size_t)height);
}
