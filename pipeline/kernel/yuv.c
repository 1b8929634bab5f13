#include "yuv.h"

#include <string.h>

#include "vectors.h"

enum { Y_ALL = 1220542, V_RED = 1673527, U_GREEN = -409993, V_GREEN = -852492, U_BLUE = 2116026 };
enum { BITS = 20, HALF = 1 << (BITS - 1) };

static uint8_t clipped(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

#ifdef SIMD

/* Both return how many pixels of a row they did. In each lane the numbers keep their order from the first step to the last. */
SIMD static int yuv_rows_simd(const uint8_t *y, ptrdiff_t stride_bytes, const uint8_t *u, const uint8_t *v, int width,
                              uint8_t *out_rgb)
{
    int at = 0;
    for (; at + WIDE <= width; at += WIDE) {
        const vector blues = load_split(u + at / 2), reds = load_split(v + at / 2);
        vector chroma[2][3];
        for (int half = 0; half < 2; half++) { /* of each lane's pixels */
            const vector blue = spread(blues, half) - 128, red = spread(reds, half) - 128;
            chroma[half][0] = red * V_RED;
            chroma[half][1] = red * V_GREEN + blue * U_GREEN;
            chroma[half][2] = blue * U_BLUE;
        }
        for (int row = 0; row < 2; row++) {
            const vector luma = less_8(load(y + row * stride_bytes + at), 16);
            vector grey[4], rgb[3];
            for (int n = 0; n < 4; n++)
                grey[n] = spread(luma, n) * Y_ALL + HALF;
            for (int colour = 0; colour < 3; colour++) {
                vector sums[4];
                for (int n = 0; n < 4; n++)
                    sums[n] = (grey[n] + zip(chroma[n / 2][colour], chroma[n / 2][colour], n % 2)) >> BITS;
                rgb[colour] = lane_bytes(lane_words(sums[0], sums[1]), lane_words(sums[2], sums[3]));
            }
            store_rgb(out_rgb + 3 * (row * width + at), rgb[0], rgb[1], rgb[2]);
        }
    }
    return at;
}

SIMD static int three_of_four_simd(const uint8_t *four, int width, uint8_t *out_rgb)
{
    int at = 0;
    for (; at + WIDE / 4 + 2 <= width; at += WIDE / 4) /* four bytes more are written */
        store_three(out_rgb + 3 * at, load(four + 4 * at));
    return at;
}

#endif

void yuv_rows(const uint8_t *y, ptrdiff_t stride_bytes, const uint8_t *u, const uint8_t *v, int width, uint8_t *out_rgb)
{
    for (int x = DONE_BY_SIMD(yuv_rows_simd(y, stride_bytes, u, v, width, out_rgb)); x < width; x++)
        for (int row = 0; row < 2; row++) {
            const int blue = u[x / 2] - 128, red = v[x / 2] - 128, grey = y[row * stride_bytes + x];
            const int luma = (grey > 16 ? grey - 16 : 0) * Y_ALL + HALF;
            uint8_t *out = out_rgb + 3 * (row * width + x);
            out[0] = clipped((luma + V_RED * red) >> BITS);
            out[1] = clipped((luma + V_GREEN * red + U_GREEN * blue) >> BITS);
            out[2] = clipped((luma + U_BLUE * blue) >> BITS);
        }
}

void three_of_four(const uint8_t *four, int width, uint8_t *out_rgb)
{
    for (int x = DONE_BY_SIMD(three_of_four_simd(four, width, out_rgb)); x < width; x++)
        memcpy(out_rgb + 3 * x, four + 4 * x, 3);
}
