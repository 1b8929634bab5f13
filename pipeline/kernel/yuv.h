/* Rows of pixels from one layout to another: I420 to RGB, four bytes to three. */
#ifndef FEEDLINE_YUV_H
#define FEEDLINE_YUV_H

#include <stdint.h>

/* Two rows of I420 (BT.601, video range) as RGB: `width` pixels, an even number, each 2 x 2 with one U and one V.
   OpenCV's formula with 20 bits: r = (c * max(y - 16, 0) + cr * (v - 128) + 2^19) >> 20, clipped; g and b likewise. */
void yuv_rows(const uint8_t *const y[2], const uint8_t *u, const uint8_t *v, int width, uint8_t *const out_rgb[2]);

/* One row of RGBX as RGB. */
void three_of_four(const uint8_t *four, int width, uint8_t *out_rgb);

#endif
