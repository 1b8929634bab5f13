/* Which pixels of one axis make each output pixel, and how much of each: the filters' coefficients. */
#pragma once

#include <stdint.h>

#include "arena.h"

#define PLAIN_BITS 11  /* of a weight: 2048 is one */
#define PILLOW_BITS 22 /* of an antialiasing one */

/* Output n is the sum over k of weights[n * width + k] * pixel[first[n] + k]. */
struct taps {
    int outputs, width;
    int32_t *first, *weights;
};

/* Bilinear between pixel centres, as OpenCV's INTER_LINEAR has it: the place of output n is (n + 1/2) * side / outputs
   - 1/2, its fraction f a float, the weights 1 - f and f, each rounded to PLAIN_BITS.
   `clamped`: a place beyond the first or last pixel's centre is that pixel, `first` lies in 0 .. side - width (width is
   1 where side is). Otherwise `first` is -1 .. side - 1 and who reads repeats the edge. 0 where memory ran out. */
int taps_plain(struct taps *taps, struct arena *arena, int side, int outputs, int clamped);

/* Pillow's coefficients of its bilinear filter, which antialiases: a triangle as wide as the picture shrinks, for the part
   start .. end of an axis of `side` pixels. `first` lies in 0 .. side - width and never falls; weights that are not needed
   are 0; `width` is even, or `side`. 0 where memory ran out. */
int taps_pillow(struct taps *taps, struct arena *arena, int side, float start, float end, int outputs);
