/* From samples to pixels. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "levels.h"

/* How the chroma of a pixel comes about: it has its own sample (4:4:4); four pixels share one (4:2:0, libjpeg's merged
 * upsampling); it is mixed from the four samples around it (4:2:0, libjpeg's h2v2_fancy_upsample). */
enum chroma { CHROMA_OWN, CHROMA_SHARED, CHROMA_SMOOTH };

/* The samples of a row of pixels, from the first pixel on; unless chroma is CHROMA_OWN this has an even place.
 * Up to COLOUR_OVERREAD bytes behind the last pixel's samples are read (they decide nothing); for CHROMA_SMOOTH also the
 * samples before the first pixel's and behind the last one's, which must repeat these where the picture ends. */
struct sample_rows {
    const uint8_t *luma, *near[2]; /* Cb, Cr: of the pixels' own row */
    const uint8_t *far[2];         /* for CHROMA_SMOOTH: the other row that is mixed in, with a quarter */
};

enum { COLOUR_GROUP = 32, COLOUR_OVERREAD = 64 };

/* How many bytes of scratch memory a row of up to `width_px` needs. */
size_t colour_scratch_bytes(size_t width_px);

/* Writes the pixels R, G, B, 255; their number is rounded up to whole groups. */
typedef void colour_row(const struct sample_rows *rows, enum chroma chroma, size_t width_px, void *scratch,
                        uint8_t *out_RGBX);

/* The fastest for the level; all give the same pixels, but not the same behind the last one. */
colour_row *colour_for(enum level level);
