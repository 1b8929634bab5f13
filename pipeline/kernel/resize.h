/* A region of a picture, resized and mirrored, as rows of RGB. */
#ifndef FEEDLINE_RESIZE_H
#define FEEDLINE_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "taps.h"

/* The region: its first pixel and its size. The filters see nothing outside it. */
struct region {
    const uint8_t *pixels;
    ptrdiff_t stride_bytes;
    int width_px, height_px;
    int channels; /* 3: RGB, 4: RGBX, 1: I420 */
    /* Of I420: `pixels` and `u`, `v` begin with the 2 x 2 pixels that the region's first is in, at an even column and
       row; whether the region itself begins one later. Whatever it touches of 2 x 2 pixels is there. */
    const uint8_t *u, *v;
    ptrdiff_t chroma_stride_bytes;
    int odd_left, odd_top;
};

/* Where the pixels go: three bytes each, `stride_bytes` from row to row. */
struct place {
    uint8_t *pixels;
    ptrdiff_t stride_bytes;
    int width_px, height_px;
};

/* Fill the place from the region. Sides are 1 .. 2^20. `antialias`: by Pillow's filter, the part `box` of the region (left,
   top, right, bottom; within it, not empty); I420 is converted first. Else by the plain one, all of the region; one of
   the place's size is copied. Of I420 each plane is resized as it is, then converted: the region grows to whole 2 x 2
   pixels first, and the place's sides must be even. 0 where memory ran out. */
int resize_region(const struct region *region, int antialias, const float box[4], int flip, const struct place *place);

#endif
