#include "rows.h"

#include <string.h>

#include "vectors.h"

enum { LOW_BITS = 11, LOW_MASK = (1 << LOW_BITS) - 1, HALF = 1 << (PILLOW_BITS - 1) };

struct pair pair_of(const int16_t *rows, int32_t even, int32_t odd)
{
    return (struct pair){rows, {even, odd}, (odd >> LOW_BITS) * 65536 + ((even >> LOW_BITS) & 0xFFFF),
                         (odd & LOW_MASK) * 65536 + (even & LOW_MASK)};
}

/* The weights of each value and, in `places`, its first byte. Of `per_pixel` values more than the colours, and of those
   behind the last pixel, any will do. */
static void fill_weights(struct across *across, int32_t *places, int per_pixel)
{
    const struct taps *taps = &across->taps;
    const int parts = across->antialias ? 2 : 1, pairs = taps->width / 2, step = across->flip ? -1 : 1;
    int pixel = across->flip ? taps->outputs - 1 : 0, left = taps->outputs, colour = 0;
    for (int slot = 0; slot < 4 * across->lanes; slot++) {
        const int32_t *weights = taps->weights + (ptrdiff_t)pixel * taps->width;
        int32_t *to = across->weights + slot / (4 * LANES) * 4 * LANES * (ptrdiff_t)(pairs * parts) + slot % (4 * LANES);
        places[slot] = taps->first[pixel] * across->channels + (colour < across->colours ? colour : 0);
        for (int pair = 0; pair < pairs; pair++, to += 4 * LANES * parts) {
            const struct pair both = pair_of(NULL, weights[2 * pair], weights[2 * pair + 1]);
            to[0] = parts == 2 ? both.highs : both.weights[1] * 65536 + both.weights[0];
            if (parts == 2)
                to[4 * LANES] = both.lows;
        }
        if (++colour == per_pixel) {
            colour = 0;
            pixel += --left > 0 ? step : 0;
        }
    }
}

/* Where each lane is read. 0 where its values do not fit 16-byte loads that stay within a row of `side` pixels. */
static int fill_picks(struct across *across, const int32_t *places, int side)
{
    const int channels = across->channels, last = side * channels - 16 - channels * (across->taps.width - 2);
    for (int lane = 0; lane < across->lanes; lane++, places += 4) {
        int low = last, high = 0;
        for (int k = 0; k < 4; k++) {
            low = places[k] < low ? places[k] : low;
            high = places[k] > high ? places[k] : high;
        }
        if (low < 0 || high + channels - low > 15)
            return 0;
        across->from[lane] = low;
        memset(across->picks + 16 * lane, 0x80, 16);
        for (int k = 0; k < 4; k++) {
            across->picks[16 * lane + 4 * k] = (uint8_t)(places[k] - low);
            across->picks[16 * lane + 4 * k + 2] = (uint8_t)(places[k] - low + channels);
        }
    }
    return 1;
}

int across_prepare(struct across *across, struct arena *arena, int side)
{
    const int outputs = across->taps.outputs, width = across->taps.width, colours = across->channels == 1 ? 1 : 3;
    const size_t most = ((size_t)outputs * 4 + 31) & ~(size_t)31;
    across->colours = colours;
    across->padded = (int)most;
    if (kernel_level != LEVEL_PLAIN && width % 2 == 0) {
        int32_t *places = arena_take(arena, sizeof(int32_t) * most);
        across->from = arena_take(arena, most);
        across->picks = arena_take(arena, 4 * most);
        across->weights = arena_take(arena, sizeof(int32_t) * most * (size_t)width);
        if (!places || !across->from || !across->picks || !across->weights)
            return 0;
        for (int per_pixel = colours; per_pixel <= colours + colours / 3; per_pixel++) { /* 3, then 4: a lane a pixel */
            across->values = outputs * per_pixel;
            across->lanes = (across->values + 31) / 32 * 8;
            fill_weights(across, places, per_pixel);
            if (fill_picks(across, places, side))
                return 1;
        }
    }
    across->values = outputs * colours;
    across->lanes = 0;
    return 1;
}

#ifdef SIMD

SIMD static void across_plain_simd(const struct across *across, const uint8_t *const rows[2], int16_t *filtered)
{
    for (int lane = 0; lane < across->lanes; lane += 2 * LANES) {
        vector sums[2][2];
        for (int n = 0; n < 2; n++) {
            const int at = lane + n * LANES;
            const vector which = load(across->picks + 16 * at), weights = load(across->weights + 4 * at);
            for (int row = 0; row < 2; row++)
                sums[row][n] = dot(pick(gather(rows[row], across->from + at), which), weights) >> 4;
        }
        for (int row = 0; row < 2; row++)
            store(filtered + row * across->padded + 4 * lane, words(sums[row][0], sums[row][1]));
    }
}

OPERATION vector joined(vector high, vector low) { return ((high << LOW_BITS) + low) >> PILLOW_BITS; }

/* A number of `pairs` that the compiler knows unrolls the inner loop: a tenth of the time. */
OPERATION void across_pairs(const struct across *across, const uint8_t *const rows[2], int16_t *filtered, int pairs)
{
    const int32_t *weights = across->weights;
    for (int lane = 0; lane < across->lanes; lane += LANES, weights += 8 * LANES * pairs) {
        const vector which = load(across->picks + 16 * lane), none = {0};
        vector high[2] = {none, none}, low[2] = {none + HALF, none + HALF};
        for (int pair = 0; pair < pairs; pair++) {
            const vector highs = load(weights + 8 * LANES * pair), lows = load(weights + 8 * LANES * pair + 4 * LANES);
            for (int n = 0; n < 2; n++) {
                const vector both = pick(gather(rows[n] + pair * 2 * across->channels, across->from + lane), which);
                high[n] += dot(both, highs);
                low[n] += dot(both, lows);
            }
        }
        const vector even = joined(high[0], low[0]), odd = joined(high[1], low[1]);
        store(filtered + 8 * lane, lane_words(zip(even, odd, 0), zip(even, odd, 1)));
    }
}

SIMD static void across_pillow_simd(const struct across *across, const uint8_t *const rows[2], int16_t *filtered)
{
    const int pairs = across->taps.width / 2;
    pairs == 2   ? across_pairs(across, rows, filtered, 2)
    : pairs == 3 ? across_pairs(across, rows, filtered, 3)
                 : across_pairs(across, rows, filtered, pairs);
}

/* Both return how many bytes they made. */
SIMD static int down_plain_simd(const int16_t *a, const int16_t *b, const int32_t weights[2], int values, uint8_t *out)
{
    const vector first = every_16(weights[0]), second = every_16(weights[1]);
    int at = 0;
    for (; at + WIDE <= values; at += WIDE) {
        vector sums[2];
        for (int n = 0; n < 2; n++) {
            const int from = at + n * (WIDE / 2);
            sums[n] = quarter_16(add_16(high_16(load(a + from), first), high_16(load(b + from), second)));
        }
        store(out + at, bytes(sums[0], sums[1]));
    }
    return at;
}

SIMD static int down_pillow_simd(const struct pair *pairs, int count, int values, uint8_t *out)
{
    int at = 0;
    for (; at + WIDE <= values; at += WIDE) {
        vector high[4] = {0}, low[4] = {0};
        for (const struct pair *pair = pairs; pair < pairs + count; pair++)
            for (int n = 0; n < 4; n++) {
                const vector both = load(pair->rows + 2 * at + n * (WIDE / 2));
                high[n] += dot(both, pair->highs - (vector){0});
                low[n] += dot(both, pair->lows - (vector){0});
            }
        for (int n = 0; n < 4; n++)
            high[n] = joined(high[n], low[n] + HALF);
        store(out + at, bytes(words(high[0], high[1]), words(high[2], high[3])));
    }
    return at;
}

#endif

void across_pair(const struct across *across, const uint8_t *even, const uint8_t *odd, int16_t *filtered)
{
    const uint8_t *const rows[2] = {even, odd};
    const struct taps *taps = &across->taps;
#ifdef SIMD
    if (across->lanes) {
        (across->antialias ? across_pillow_simd : across_plain_simd)(across, rows, filtered);
        return;
    }
#endif
    for (int number = 0, value = 0; number < taps->outputs; number++) {
        const int pixel = across->flip ? taps->outputs - 1 - number : number;
        const int32_t *weights = taps->weights + (size_t)pixel * (size_t)taps->width;
        const ptrdiff_t first = (ptrdiff_t)taps->first[pixel] * across->channels;
        for (int colour = 0; colour < across->colours; colour++, value++)
            for (int row = 0; row < 2; row++) {
                int32_t sum = 0;
                for (int k = 0; k < taps->width; k++)
                    sum += weights[k] * rows[row][first + k * across->channels + colour];
                if (across->antialias)
                    filtered[2 * value + row] = (int16_t)((sum + HALF) >> PILLOW_BITS);
                else
                    filtered[row * across->padded + value] = (int16_t)(sum >> 4);
            }
    }
}

void down_plain(const int16_t *a, const int16_t *b, const int32_t weights[2], int values, uint8_t *out)
{
    for (int n = DONE_BY_SIMD(down_plain_simd(a, b, weights, values, out)); n < values; n++)
        out[n] = (uint8_t)(((a[n] * weights[0] >> 16) + (b[n] * weights[1] >> 16) + 2) >> 2);
}

void down_pillow(const struct pair *pairs, int count, int values, uint8_t *out)
{
    for (int n = DONE_BY_SIMD(down_pillow_simd(pairs, count, values, out)); n < values; n++) {
        int32_t sum = HALF;
        for (int k = 0; k < 2 * count; k++)
            sum += pairs[k / 2].rows[2 * n + k % 2] * pairs[k / 2].weights[k % 2];
        out[n] = (uint8_t)(sum >> PILLOW_BITS);
    }
}
