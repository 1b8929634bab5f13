#include "taps.h"

#include <math.h>
#include <string.h>

static int allocate(struct taps *taps, struct arena *arena, int outputs, int width)
{
    taps->outputs = outputs;
    taps->width = width;
    taps->first = arena_take(arena, sizeof(int32_t) * (size_t)outputs);
    taps->weights = arena_take(arena, sizeof(int32_t) * (size_t)outputs * (size_t)width);
    return taps->first && taps->weights;
}

int taps_plain(struct taps *taps, struct arena *arena, int side, int outputs, int clamped)
{
    const int one = 1 << PLAIN_BITS, width = clamped && side < 2 ? 1 : 2;
    if (!allocate(taps, arena, outputs, width))
        return 0;
    const double scale = 1.0 / ((double)outputs / side);
    for (int n = 0; n < outputs; n++) {
        const float place = (float)((n + 0.5) * scale - 0.5);
        int first = (int)place - (place < (float)(int)place);
        float fraction = place - (float)first;
        if (clamped && (first < 0 || first >= side - 1)) {
            fraction = first < 0 ? 0 : (float)(width - 1);
            first = first < 0 ? 0 : side - width;
        }
        int32_t *weights = taps->weights + (size_t)n * (size_t)width;
        weights[width - 1] = (int32_t)lrintf(fraction * (float)one);
        weights[0] = (int32_t)lrintf((1 - fraction) * (float)one);
        taps->first[n] = first < -1 ? -1 : first > side - 1 ? side - 1 : first;
    }
    return 1;
}

int taps_pillow(struct taps *taps, struct arena *arena, int side, float start, float end, int outputs)
{
    const double scale = (double)(end - start) / outputs;
    const double support = scale < 1 ? 1 : scale, narrow = 1.0 / support; /* of the triangle, to each side */
    int width = (int)(2 * support) + 1; /* of pixels whose centre may lie within the support, and so weigh anything */
    width = width >= side ? side : width + width % 2;
    double *heights = arena_take(arena, sizeof(double) * (size_t)width);
    if (!heights || !allocate(taps, arena, outputs, width))
        return 0;
    memset(taps->weights, 0, sizeof(int32_t) * (size_t)outputs * (size_t)width);
    for (int n = 0; n < outputs; n++) {
        const double centre = start + (n + 0.5) * scale;
        int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
        low = low < 0 ? 0 : low > side ? side : low;
        high = high > side ? side : high;
        const int count = high - low > width ? width : high - low;
        double sum = 0;
        for (int k = 0; k < count; k++) { /* in Pillow's order of operations: a double's last bit may decide a weight */
            const double x = (k + low - centre + 0.5) * narrow, far = x < 0 ? -x : x;
            heights[k] = far < 1 ? 1 - far : 0;
            sum += heights[k];
        }
        const int first = low + width > side ? side - width : low;
        int32_t *weights = taps->weights + (size_t)n * (size_t)width + (low - first);
        for (int k = 0; k < count; k++)
            weights[k] = (int32_t)(heights[k] / sum * (1 << PILLOW_BITS) + 0.5);
        taps->first[n] = first;
    }
    return 1;
}
