/* From the bits of a restart interval to quantised coefficients. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "huffman.h"
#include "levels.h"

/* How many bytes behind an interval's end may be read. They decide nothing: what needs them is refused. */
enum { ENTROPY_OVERREAD = 256 };

enum { MCU_BLOCKS = 6 }; /* at most: 4:2:0 */

/* One restart interval, without the zeroes that are stuffed behind bytes 0xFF; at its start `next` and `end` are set and
 * all else is 0. */
struct bit_stream {
    const uint8_t *next, *end; /* of the bytes that are not in the window yet */
    uint64_t window;           /* the next bits, highest first; below `count` of them, whatever */
    unsigned count;
    int dc[3]; /* of the components' last blocks */
};

/* Where an MCU's blocks find their tables, and where they go. */
struct mcu_layout {
    int blocks;
    uint8_t component[MCU_BLOCKS];
    const struct huffman_dc *dc[3];
    const struct huffman_ac *ac[3];
};

/* An MCU's coefficients, in the order of COEFFICIENT_PLACE (idct.h), which must be zero before. */
struct mcu {
    _Alignas(64) int16_t blocks[MCU_BLOCKS][64];
    uint8_t last[MCU_BLOCKS]; /* zigzag index behind which all of a block is zero */
};

/* How many of its bits have not been decoded. */
static inline ptrdiff_t bit_stream_left(const struct bit_stream *stream)
{
    return (stream->end - stream->next) * 8 + (ptrdiff_t)stream->count;
}

/* Decodes the next MCU of one stream, or of two by turns: their bits do not depend on each other, so a
 * processor works on both at once. 0 if a stream is damaged or ends before its MCU does. */
typedef int entropy_one(struct bit_stream *stream, const struct mcu_layout *layout, struct mcu *mcu);
typedef int entropy_two(struct bit_stream *streams[2], const struct mcu_layout *layout, struct mcu mcus[2]);

struct entropy_decoder {
    entropy_one *one;
    entropy_two *two;
};

/* The fastest for the level; all give the same. */
struct entropy_decoder entropy_decoder_for(enum level level);
