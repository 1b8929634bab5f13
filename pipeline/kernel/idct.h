/* From quantised coefficients to samples. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "levels.h"

/* Coefficients and quantisation tables lie in memory as the vectors of the IDCT want them: rows in pairs (0 4) (1 3)
 * (2 6) (5 7), the two values of a column side by side; columns in the same order. For row and column: */
#define COEFFICIENT_SLOT(i) ((0x75613420 >> 4 * (i)) & 7)
#define COEFFICIENT_PLACE(row, column) \
    (COEFFICIENT_SLOT(row) / 2 * 16 + COEFFICIENT_SLOT(column) * 2 + COEFFICIENT_SLOT(row) % 2)

/* The place of the coefficient with a zigzag index; T.81, figure A.6. */
extern const uint8_t coefficient_places[64];

/* A quantisation table. */
struct quantisation {
    _Alignas(32) int16_t steps[64];
};

/* From the 64 bytes of a DQT segment. */
void quantisation_fill(struct quantisation *table, const uint8_t *zigzag);

/* Writes the 8 × 8 samples of one block, rows `stride_bytes` apart; behind the zigzag index `last` all coefficients are
 * zero. They are those of libjpeg's jidctint.c, clamped to 0 … 255. Returns 0 where numbers leave the range in
 * which all of libjpeg-turbo's implementations agree, far beyond what an encoder writes: coefficients times
 * steps or columns' results outside ±2^14, samples further than 384 outside 0 … 255 (range_limit goes round there). */
typedef int idct_block(const int16_t *coefficients, const struct quantisation *table, int last, uint8_t *out,
                       size_t stride_bytes);

/* The fastest for the level; all give the same. */
idct_block *idct_for(enum level level);
