/* The two passes of a filter, row by row: across (along a row of a picture) and down (over rows already filtered).

   Plain, as OpenCV does it in integers: a filtered row holds (p0 * w0 + p1 * w1) >> 4 in 16 bits, with weights of
   PLAIN_BITS; an output byte is ((a * v0 >> 16) + (b * v1 >> 16) + 2) >> 2 of two such rows.
   Pillow's: both passes give (2^21 + the sum of byte * weight) >> 22, a byte. SIMD splits a weight into 2048 * high +
   low, both of which fit 16 bits, so nothing is rounded on the way. Filtered rows lie in pairs: the values of row 2n and
   of row 2n + 1 in turn, 16 bits each, which is what multiplying and adding in pairs reads. */
#pragma once

#include "taps.h"

struct across {
    struct taps taps;
    int antialias;         /* by Pillow's filter */
    int channels, colours; /* of the source: 1, 3 or 4; of those 1 or 3 are filtered */
    int flip;              /* the last output pixel first */
    int values, padded;    /* of a filtered row: `colours` a pixel or, with an unused fourth, 4; with room for SIMD */
    /* What SIMD reads; 0 lanes: none. A lane makes four values from 16-byte loads, two taps apart, from `from` on */
    int lanes;
    int32_t *from;
    uint8_t *picks;
    int32_t *weights;
};

/* Make ready for rows of `side` pixels, with the rest filled in down to `flip`. 0 where memory ran out. */
int across_prepare(struct across *across, struct arena *arena, int side);

/* Filter two rows into 2 * `padded` numbers: one row, then the other, or, of Pillow's filter, their values in turn. */
void across_pair(const struct across *across, const uint8_t *even, const uint8_t *odd, int16_t *filtered);

/* A pair of filtered rows, the weight of each, and both weights' high and low parts side by side. */
struct pair {
    const int16_t *rows;
    int32_t weights[2], highs, lows;
};
struct pair pair_of(const int16_t *rows, int32_t even, int32_t odd);

/* A row of `values` bytes, from two filtered rows and their weights; from `count` pairs of them. */
void down_plain(const int16_t *a, const int16_t *b, const int32_t weights[2], int values, uint8_t *out);
void down_pillow(const struct pair *pairs, int count, int values, uint8_t *out);
