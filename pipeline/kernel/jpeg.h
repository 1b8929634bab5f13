/* A region of a baseline JPEG to pixels: the very pixels of libjpeg-turbo's full decode, or a refusal. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Fills `out` (`height_px` rows of `width_px` pixels R, G, B, 255, rows `out_stride_bytes` apart) with the region at
 * (`left_px`, `top_px`). Returns 1, or 0: leave it to libjpeg-turbo; `out` may then be partly written.
 *
 * Handled: one interleaved Huffman scan of 8-bit YCbCr, 4:2:0 or 4:4:4, with or without restart markers, in which all
 * markers are where they belong. The pixels are those of the accurate integer IDCT (JDCT_ISLOW); `smooth`: chroma
 * by the triangle filter ("fancy upsampling"), else repeated ("merged upsampling").
 *
 * Only the restart intervals that the region touches are read (for `smooth` with one chroma sample more on each
 * side), each up to the last MCU that is needed; without restart markers the data down to the region's last row. Damage
 * is refused where it shows: bits that are no code, too few, or too many at an interval's end. Elsewhere it is not
 * seen: whoever must know has a checksum. Reads nothing outside `data`, writes nothing outside the region. Threads may call it at once. */
int kernel_decode(const uint8_t *data, size_t length, int left_px, int top_px, int width_px, int height_px, int smooth,
                  uint8_t *out_RGBX, size_t out_stride_bytes);
