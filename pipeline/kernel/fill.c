#define _POSIX_C_SOURCE 199309L
#include "fill.h"

#include <time.h>

#include "jpeg.h"
#include "levels.h"

KERNEL_EXPORT const int kernel_interface = 2;

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* 1, 0: leave it to libjpeg-turbo, -1: memory ran out. */
static int fill_place(const struct job *job, int smooth, uint8_t *decoded, const struct place *place,
                      long long *decoding_ns)
{
    struct region region = job->region;
    struct arena arena = {0};
    if (job->jpeg) {
        const long long began_ns = now_ns();
        const int is_decoded = kernel_decode(job->jpeg, job->jpeg_bytes, job->left_px, job->top_px, region.width_px,
                                             region.height_px, smooth, decoded, (size_t)region.stride_bytes);
        *decoding_ns += now_ns() - began_ns;
        if (!is_decoded)
            return 0;
        region.pixels = decoded;
    }
    const int is_done = resize_region(region, &arena, job->antialias ? job->box : NULL, job->flip, place);
    arena_free(&arena);
    return is_done ? 1 : -1;
}

KERNEL_EXPORT int kernel_fill(const struct job *jobs, int count, int smooth, size_t most_bytes, uint8_t *out_NHWC,
                              int width_px, int height_px, long long *decoding_ns)
{
    uint8_t *decoded = malloc(most_bytes + 1);
    int filled = 0, outcome = decoded ? 1 : -1;
    for (; outcome > 0 && filled < count; filled += outcome > 0) {
        uint8_t *pixels = out_NHWC + 3 * (size_t)filled * (size_t)width_px * (size_t)height_px;
        outcome = fill_place(&jobs[filled], smooth, decoded, &(struct place){pixels, width_px, height_px}, decoding_ns);
    }
    free(decoded);
    return outcome < 0 ? -1 : filled;
}
