/* A strip: one row of MCUs of a region, as samples, and the way from coefficients to pixels through it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "colour.h"
#include "entropy.h"
#include "idct.h"
#include "jpeg_header.h"

/* Places in a picture, from left and top to before right and bottom. */
struct box {
    ptrdiff_t left, top, right, bottom;
};

/* The samples of one component. */
struct plane {
    uint8_t *samples;      /* the strip's first; there are margins to the sides, and a row above */
    ptrdiff_t stride, side; /* bytes from row to row; samples of an MCU, each way */
    struct box needed;     /* samples of the picture */
    struct quantisation quantisation;
};

struct strip {
    struct box pixels, mcus; /* that are wanted, and that are decoded for them */
    ptrdiff_t row;           /* of MCUs, in which the strip is */
    ptrdiff_t next_y;        /* of the pixels that are written next */
    ptrdiff_t factor;        /* pixels to a chroma sample, each way */
    ptrdiff_t chroma_height; /* of the picture, in samples */
    enum chroma chroma;
    struct plane planes[COMPONENTS];
    idct_block *idct;
    colour_row *colour;
    uint8_t *scratch, *spare_RGBX; /* of `colour`; a row of pixels */
};

/* A strip for these pixels of a picture; `smooth` as in `kernel_decode`. 0 without memory. */
int strip_open(struct strip *strip, const struct jpeg_header *header, struct box pixels, int smooth,
               struct arena *arena);

/* Goes to a row of MCUs, the one below its own or the first. */
void strip_go_to(struct strip *strip, ptrdiff_t row);

/* Takes an MCU: its blocks' samples where they are needed. Leaves the coefficients 0. 0: leave it to libjpeg-turbo. */
int strip_put(struct strip *strip, ptrdiff_t column, struct mcu *mcu);

/* Writes the pixels that can be written when the row's MCUs have been put; `out` is the region's first. */
void strip_write(struct strip *strip, uint8_t *out_RGBX, size_t out_stride_bytes);
