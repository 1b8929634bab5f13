/* Rows of pixels from one layout to another: I420 to RGB, four bytes to three. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Two rows of I420 (BT.601, video range), `stride_bytes` apart, as two of RGB: `width` pixels, an even number, each 2 x 2
   with one U and one V. OpenCV's formula: r = (c * max(y - 16, 0) + cr * (v - 128) + 2^19) >> 20, clipped; g, b likewise. */
void yuv_rows(const uint8_t *y, ptrdiff_t stride_bytes, const uint8_t *u, const uint8_t *v, int width, uint8_t *out_rgb);

/* One row of RGBX as RGB. */
void three_of_four(const uint8_t *four, int width, uint8_t *out_rgb);
