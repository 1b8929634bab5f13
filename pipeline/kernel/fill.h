/* Places of a batch, filled from JPEGs and from pixels: all that Python calls. compiled.py packs the jobs, and has checked
   every number in them against its buffer; what is inside a JPEG is checked here. */
#pragma once

#include "resize.h"

/* As compiled.py has it: one more with every change of what it calls or is given. */
extern const int kernel_interface;

/* What one place is filled with: a region of pixels, or of a JPEG, then as it will be when it is decoded. */
struct job {
    const uint8_t *jpeg; /* NULL: pixels */
    size_t jpeg_bytes;
    int left_px, top_px; /* of the region in the JPEG */
    struct region region;
    float box[4];
    int antialias, flip;
};

/* Fills the first of `out_NHWC`, one by each job, up to a JPEG that is left to libjpeg-turbo. `most_bytes`: of a region as it
   is decoded. Returns how many, -1 where memory ran out; adds the decoder's nanoseconds. Threads may call it at once. */
int kernel_fill(const struct job *jobs, int count, int smooth, size_t most_bytes, uint8_t *out_NHWC, int width_px,
                int height_px, long long *decoding_ns);
