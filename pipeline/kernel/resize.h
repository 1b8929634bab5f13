/* A region of a picture, resized and mirrored, as rows of RGB. */
#pragma once

#include "taps.h"

/* The region: its first pixel and its size. The filters see nothing outside it. */
struct region {
    const uint8_t *pixels;
    /* Of I420: `pixels` and `u`, `v` (with half the stride) begin with the 2 x 2 pixels that the region's first is in, at
       an even column and row; whether the region itself begins one later. All that it touches of 2 x 2 pixels is there. */
    const uint8_t *u, *v;
    ptrdiff_t stride_bytes;
    int width_px, height_px;
    int channels; /* 3: RGB, 4: RGBX, 1: I420 */
    int odd_left, odd_top;
};

/* Where the pixels go: three bytes each, without gaps. */
struct place {
    uint8_t *pixels;
    int width_px, height_px;
};

/* Fill the place from the region. Sides are 1 .. 2^20. With a `box` (left, top, right, bottom; within the region, not empty)
   by Pillow's filter, which antialiases, that part of it; I420 is converted first. Without by the plain one, all of it; one of
   the place's size is copied. Of I420 each plane is resized as it is, then converted: the region grows to whole 2 x 2
   pixels first, and the place's sides must be even. 0 where memory ran out. */
int resize_region(struct region region, struct arena *arena, const float box[4], int flip, const struct place *place);
