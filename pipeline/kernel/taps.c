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
    double scale = 1.0 / ((double)outputs / side);
    for (int n = 0; n < outputs; n++) {
        float place = (float)((n + 0.5) * scale - 0.5);
        int first = (int)place - (place < (float)(int)place);
        float fraction = place - (float)first;
        int32_t *weights = taps->weights + (size_t)n * (size_t)width;
        if (clamped && (first < 0 || first >= side - 1)) {
            int last = first >= 0 && width == 2;
            weights[0] = last ? 0 : one;
            weights[width - 1] = last || width == 1 ? one : 0;
            taps->first[n] = last ? side - 2 : 0;
        } else {
            weights[0] = (int32_t)lrintf((1.0f - fraction) * (float)one);
            weights[1] = (int32_t)lrintf(fraction * (float)one);
            taps->first[n] = first < -1 ? -1 : first > side - 1 ? side - 1 : first;
        }
    }
    return 1;
}

static const double SUPPORT[] = {[FILTER_BOX] = 0.5, [FILTER_BILINEAR] = 1, [FILTER_HAMMING] = 1, [FILTER_BICUBIC] = 2,
                                 [FILTER_LANCZOS] = 3};
static const double PI = 3.14159265358979323846;

static double sinc(double x)
{
    return x == 0 ? 1 : sin(x * PI) / (x * PI);
}

/* The filter's height at x, in Pillow's order of operations: a double's last bit may decide a coefficient. */
static double height(enum filter filter, double x)
{
    double far = x < 0 ? -x : x;
    switch (filter) {
    case FILTER_BOX:
        return x > -0.5 && x <= 0.5 ? 1 : 0;
    case FILTER_BILINEAR:
        return far < 1 ? 1 - far : 0;
    case FILTER_HAMMING:
        return far == 0 ? 1 : far < 1 ? sin(far * PI) / (far * PI) * (0.54f + 0.46f * cos(far * PI)) : 0;
    case FILTER_BICUBIC:
        if (far < 1)
            return (1.5 * far - 2.5) * far * far + 1;
        return far < 2 ? (((far - 5) * far + 8) * far - 4) * -0.5 : 0;
    case FILTER_LANCZOS:
        return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
    default:
        return 0;
    }
}

int taps_pillow(struct taps *taps, struct arena *arena, enum filter filter, int side, float start, float end,
                int outputs)
{
    double scale = (double)(end - start) / outputs, stretch = scale < 1 ? 1 : scale;
    double support = SUPPORT[filter] * stretch, narrow = 1.0 / stretch;
    int width = (int)(2 * support) + 1; /* of pixels whose centre may lie within the support, and so weigh anything */
    width = width >= side ? side : width + width % 2;
    double *heights = arena_take(arena, sizeof(double) * (size_t)width);
    if (!heights || !allocate(taps, arena, outputs, width))
        return 0;
    memset(taps->weights, 0, sizeof(int32_t) * (size_t)outputs * (size_t)width);
    for (int n = 0; n < outputs; n++) {
        double centre = start + (n + 0.5) * scale, sum = 0;
        int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
        low = low < 0 ? 0 : low > side ? side : low;
        high = high > side ? side : high;
        int count = high - low > width ? width : high - low;
        for (int k = 0; k < count; k++) {
            heights[k] = height(filter, (k + low - centre + 0.5) * narrow);
            sum += heights[k];
        }
        int first = low + width > side ? side - width : low;
        int32_t *weights = taps->weights + (size_t)n * (size_t)width + (low - first);
        for (int k = 0; k < count; k++) {
            double share = (sum != 0 ? heights[k] / sum : heights[k]) * (1 << PILLOW_BITS);
            weights[k] = (int32_t)(share < 0 ? share - 0.5 : share + 0.5);
        }
        taps->first[n] = first;
    }
    return 1;
}
