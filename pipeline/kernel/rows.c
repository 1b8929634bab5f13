#include "rows.h"

#include <string.h>

#include "vectors.h"

enum { LOW_BITS = 11, LOW_MASK = (1 << LOW_BITS) - 1, HALF = 1 << (PILLOW_BITS - 1) };

/* --- what SIMD reads -------------------------------------------------------------------------------------------- */

struct pair pair_of(const int16_t *rows, int32_t even, int32_t odd)
{
    return (struct pair){rows, {even, odd}, (odd >> LOW_BITS) * 65536 + ((even >> LOW_BITS) & 0xFFFF),
                         (odd & LOW_MASK) * 65536 + (even & LOW_MASK)};
}

static int rounded_up(int number, int step)
{
    return (number + step - 1) / step * step;
}

/* Lanes of four values, or of a pixel's three and none: the weights and, in `places`, each value's first byte. */
static void fill_weights(struct across *across, int32_t *places, int per_lane)
{
    const struct taps *taps = &across->taps;
    const unsigned parts = across->antialias ? 2 : 1, pairs = (unsigned)taps->width / 2;
    unsigned slot = 0;
    for (int number = 0; number < taps->outputs; number++) {
        const int pixel = across->flip ? taps->outputs - 1 - number : number;
        const int32_t *weights = taps->weights + (size_t)pixel * (size_t)taps->width;
        for (int colour = 0; colour < across->colours; colour++, slot++) {
            const unsigned vectors = slot / (4 * LANES) * pairs * parts; /* before that of this value */
            int32_t *to = across->weights + 4 * LANES * (size_t)vectors + slot % (4 * LANES);
            places[slot] = taps->first[pixel] * across->channels + colour;
            for (unsigned pair = 0; pair < pairs; pair++, to += 4 * LANES * parts) {
                const struct pair both = pair_of(NULL, weights[2 * pair], weights[2 * pair + 1]);
                to[0] = parts == 2 ? both.highs : both.weights[1] * 65536 + both.weights[0];
                if (parts == 2)
                    to[4 * LANES] = both.lows;
            }
        }
        if (per_lane == 3)
            places[slot++] = 0;
    }
    for (; slot < 4 * (unsigned)across->lanes; slot++)
        places[slot] = places[slot - 1];
}

/* Where each lane is read. 0 where they do not fit 16-byte loads that stay within the row. */
static int fill_picks(struct across *across, const int32_t *places, int side, int per_lane)
{
    const int channels = across->channels, last = side * channels - 16 - channels * (across->taps.width - 2);
    for (int lane = 0; lane < across->lanes; lane++, places += 4) {
        uint8_t *picks = across->picks + 16 * lane;
        int low = last, high = 0;
        for (int k = 0; k < per_lane; k++) {
            low = places[k] < low ? places[k] : low;
            high = places[k] > high ? places[k] : high;
        }
        if (low < 0 || high + channels - low > 15)
            return 0;
        across->from[lane] = low;
        memset(picks, 0x80, 16);
        for (int k = 0; k < per_lane; k++) {
            picks[4 * k] = (uint8_t)(places[k] - low);
            picks[4 * k + 2] = (uint8_t)(places[k] - low + channels);
        }
    }
    return 1;
}

static int fill_lanes(struct across *across, int32_t *places, int side, int per_lane)
{
    across->values = across->taps.outputs * (per_lane == 3 ? 4 : across->colours);
    across->padded = rounded_up(across->values, 32);
    across->lanes = across->padded / 4;
    fill_weights(across, places, per_lane);
    return fill_picks(across, places, side, per_lane);
}

int across_prepare(struct across *across, struct arena *arena, int side)
{
    const int width = across->taps.width, outputs = across->taps.outputs;
    const size_t most = (size_t)rounded_up(4 * outputs, 32);
    across->colours = across->channels == 1 ? 1 : 3;
    if (KERNEL_SIMD && kernel_level != LEVEL_PLAIN && width % 2 == 0) {
        int32_t *places = arena_take(arena, sizeof(int32_t) * most);
        across->from = arena_take(arena, most);
        across->picks = arena_take(arena, 4 * most);
        across->weights = arena_take(arena, sizeof(int32_t) * most * (size_t)width);
        if (!places || !across->from || !across->picks || !across->weights)
            return 0;
        if (fill_lanes(across, places, side, 4) || (across->colours == 3 && fill_lanes(across, places, side, 3)))
            return 1;
    }
    across->lanes = 0;
    across->values = outputs * across->colours;
    across->padded = rounded_up(across->values, 32);
    return 1;
}

/* --- SIMD ------------------------------------------------------------------------------------------------------- */

#if KERNEL_SIMD

SIMD static void across_plain_simd(const struct across *across, const uint8_t *const rows[2], int16_t *filtered)
{
    for (int lane = 0; lane < across->lanes; lane += 2 * LANES) {
        vector sums[2][2];
        for (int n = 0; n < 2; n++) {
            const int at = lane + n * LANES;
            const vector which = load(across->picks + 16 * at), weights = load(across->weights + 4 * at);
            for (int row = 0; row < 2; row++)
                sums[row][n] = right_32(dot(pick(gather(rows[row], across->from + at), which), weights), 4);
        }
        for (int row = 0; row < 2; row++)
            store(filtered + row * across->padded + 4 * lane, words(sums[row][0], sums[row][1]));
    }
}

OPERATION vector joined(vector high, vector low)
{
    return right_32(add_32(left_32(high, LOW_BITS), low), PILLOW_BITS);
}

/* A number of `pairs` that the compiler knows unrolls the inner loop: a tenth of the time. */
OPERATION void across_pairs(const struct across *across, const uint8_t *const rows[2], int16_t *filtered, int pairs)
{
    const int32_t *weights = across->weights;
    for (int lane = 0; lane < across->lanes; lane += LANES, weights += 8 * LANES * pairs) {
        const vector which = load(across->picks + 16 * lane);
        vector high[2] = {every_32(0), every_32(0)}, low[2] = {every_32(HALF), every_32(HALF)};
        for (int pair = 0; pair < pairs; pair++) {
            const vector highs = load(weights + 8 * LANES * pair), lows = load(weights + 8 * LANES * pair + 4 * LANES);
            for (int n = 0; n < 2; n++) {
                const vector both = pick(gather(rows[n] + pair * 2 * across->channels, across->from + lane), which);
                high[n] = add_32(high[n], dot(both, highs));
                low[n] = add_32(low[n], dot(both, lows));
            }
        }
        store(filtered + 8 * lane, paired(joined(high[0], low[0]), joined(high[1], low[1])));
    }
}

SIMD static void across_pillow_simd(const struct across *across, const uint8_t *const rows[2], int16_t *filtered)
{
    if (across->taps.width == 4)
        across_pairs(across, rows, filtered, 2);
    else if (across->taps.width == 6)
        across_pairs(across, rows, filtered, 3);
    else
        across_pairs(across, rows, filtered, across->taps.width / 2);
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
        vector high[4], low[4];
        for (int n = 0; n < 4; n++) {
            high[n] = every_32(0);
            low[n] = every_32(HALF);
        }
        for (const struct pair *pair = pairs; pair < pairs + count; pair++) {
            const vector highs = every_32(pair->highs), lows = every_32(pair->lows);
            for (int n = 0; n < 4; n++) {
                const vector both = load(pair->rows + 2 * at + n * (WIDE / 2));
                high[n] = add_32(high[n], dot(both, highs));
                low[n] = add_32(low[n], dot(both, lows));
            }
        }
        for (int n = 0; n < 4; n++)
            high[n] = joined(high[n], low[n]);
        store(out + at, bytes(words(high[0], high[1]), words(high[2], high[3])));
    }
    return at;
}

#endif

/* --- plain C ---------------------------------------------------------------------------------------------------- */

void across_pair(const struct across *across, const uint8_t *even, const uint8_t *odd, int16_t *filtered)
{
    const uint8_t *const rows[2] = {even, odd};
    const struct taps *taps = &across->taps;
#if KERNEL_SIMD
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
