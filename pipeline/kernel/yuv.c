#include "yuv.h"

#include <string.h>

#include "vectors.h"

enum { Y_ALL = 1220542, V_RED = 1673527, U_GREEN = -409993, V_GREEN = -852492, U_BLUE = 2116026 };
enum { BITS = 20, HALF = 1 << (BITS - 1) };

static uint8_t clipped(int value)
{
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

#if KERNEL_SIMD

/* WIDE pixels of both rows. In each lane the numbers keep their order from the first step to the last. */
OPERATION void yuv_wide(const uint8_t *const y[2], const uint8_t *u, const uint8_t *v, int at,
                        uint8_t *const out_rgb[2])
{
    const vector blues = load_split(u + at / 2), reds = load_split(v + at / 2);
    vector chroma[2][3];
    for (int half = 0; half < 2; half++) { /* of each lane's pixels */
        const vector blue = add_32(spread(blues, half), every_32(-128));
        const vector red = add_32(spread(reds, half), every_32(-128));
        chroma[half][0] = multiply_32(red, every_32(V_RED));
        chroma[half][1] = add_32(multiply_32(red, every_32(V_GREEN)), multiply_32(blue, every_32(U_GREEN)));
        chroma[half][2] = multiply_32(blue, every_32(U_BLUE));
    }
    for (int row = 0; row < 2; row++) {
        const vector luma = less_8(load(y[row] + at), 16);
        vector grey[4], rgb[3];
        for (int n = 0; n < 4; n++)
            grey[n] = add_32(multiply_32(spread(luma, n), every_32(Y_ALL)), every_32(HALF));
        for (int colour = 0; colour < 3; colour++) {
            vector sums[4];
            for (int n = 0; n < 4; n++)
                sums[n] = right_32(add_32(grey[n], twice(chroma[n / 2][colour], n % 2)), BITS);
            rgb[colour] = lane_bytes(lane_words(sums[0], sums[1]), lane_words(sums[2], sums[3]));
        }
        store_rgb(out_rgb[row] + 3 * at, rgb[0], rgb[1], rgb[2]);
    }
}

/* Both return how many pixels of a row they did. */
SIMD static int yuv_rows_simd(const uint8_t *const y[2], const uint8_t *u, const uint8_t *v, int width,
                              uint8_t *const out_rgb[2])
{
    int at = 0;
    for (; at + WIDE <= width; at += WIDE)
        yuv_wide(y, u, v, at, out_rgb);
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

void yuv_rows(const uint8_t *const y[2], const uint8_t *u, const uint8_t *v, int width, uint8_t *const out_rgb[2])
{
    for (int x = DONE_BY_SIMD(yuv_rows_simd(y, u, v, width, out_rgb)); x < width; x++)
        for (int row = 0; row < 2; row++) {
            const int blue = u[x / 2] - 128, red = v[x / 2] - 128;
            const int luma = (y[row][x] > 16 ? y[row][x] - 16 : 0) * Y_ALL + HALF;
            out_rgb[row][3 * x] = clipped((luma + V_RED * red) >> BITS);
            out_rgb[row][3 * x + 1] = clipped((luma + V_GREEN * red + U_GREEN * blue) >> BITS);
            out_rgb[row][3 * x + 2] = clipped((luma + U_BLUE * blue) >> BITS);
        }
}

void three_of_four(const uint8_t *four, int width, uint8_t *out_rgb)
{
    for (int x = DONE_BY_SIMD(three_of_four_simd(four, width, out_rgb)); x < width; x++)
        memcpy(out_rgb + 3 * x, four + 4 * x, 3);
}
