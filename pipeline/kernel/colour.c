/* libjpeg's colour conversion (jdcolor.c) after its upsampling (jdsample.c, jdmerge.c). With 128 off Cb and Cr:
 *   R = Y + 1.402 Cr    G = Y - 0.34414 Cb - 0.71414 Cr    B = Y + 1.772 Cb
 * what is added to Y summed with 16 bits of fraction and rounded once; then clamped. */
#include "colour.h"

enum { R_CR = 91881, G_CB = -22554, G_CR = -46802, B_CB = 116130, HALF = 1 << 15 }; /* FIX(x) of jdcolor.c */

/* Each scratch row has this many values more than there are pixels: whole vectors on both sides. */
enum { MARGIN = 16, SLACK = 160 };

static size_t row_values(size_t width_px)
{
    return (width_px + SLACK) / 32 * 32;
}

size_t colour_scratch_bytes(size_t width_px)
{
    return 2 * row_values(width_px);
}

static int clamp(int value)
{
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

/* Chroma of each pixel of a row; 3/4 of the nearest sample and 1/4 of the next, each way. */
static void smooth_plain(const uint8_t *near, const uint8_t *far, size_t width_px, uint8_t *out)
{
    int before = 3 * near[-1] + far[-1], sum = 3 * near[0] + far[0];
    for (size_t x = 0; x < width_px; x += 2) {
        const int next = 3 * near[x / 2 + 1] + far[x / 2 + 1];
        out[x] = (uint8_t)((3 * sum + before + 8) >> 4);
        out[x + 1] = (uint8_t)((3 * sum + next + 7) >> 4);
        before = sum;
        sum = next;
    }
}

static void share_plain(const uint8_t *near, size_t width_px, uint8_t *out)
{
    for (size_t x = 0; x < width_px; x += 2)
        out[x] = out[x + 1] = near[x / 2];
}

static void colour_plain(const struct sample_rows *rows, enum chroma chroma, size_t width_px, void *scratch,
                         uint8_t *out_RGBX)
{
    const uint8_t *full[2] = {rows->near[0], rows->near[1]};
    for (int i = 0; chroma != CHROMA_OWN && i < 2; i++) {
        uint8_t *mixed = (uint8_t *)scratch + (size_t)i * row_values(width_px);
        if (chroma == CHROMA_SMOOTH)
            smooth_plain(rows->near[i], rows->far[i], width_px, mixed);
        else
            share_plain(rows->near[i], width_px, mixed);
        full[i] = mixed;
    }
    for (size_t x = 0; x < width_px; x++) {
        const int y = rows->luma[x], cb = full[0][x] - 128, cr = full[1][x] - 128;
        out_RGBX[4 * x] = (uint8_t)clamp(y + ((R_CR * cr + HALF) >> 16));
        out_RGBX[4 * x + 1] = (uint8_t)clamp(y + ((G_CB * cb + G_CR * cr + HALF) >> 16));
        out_RGBX[4 * x + 2] = (uint8_t)clamp(y + ((B_CB * cb + HALF) >> 16));
        out_RGBX[4 * x + 3] = 255;
    }
}

#ifdef KERNEL_X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2"))) static inline

/* What is added to Y for 16 pixels, from Cb and Cr less 128. */
struct colour {
    __m256i red, green, blue;
};

/* Red and blue: all but a fraction is added as it is, the fraction (0.402, -0.228) in 15 bits: for Cb and Cr from -128
 * to 127 that gives the same as 16 bits. */
AVX2 struct colour colour_of(__m256i cb, __m256i cr)
{
    const __m256i factors = _mm256_set1_epi32((int)((uint32_t)(G_CR + 65536) << 16 | (uint16_t)G_CB));
    const __m256i half = _mm256_set1_epi32(HALF);
    const __m256i first = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
    const __m256i second = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
    const __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(first, half), 16),
                                             _mm256_srai_epi32(_mm256_add_epi32(second, half), 16));
    const __m256i red = _mm256_mulhrs_epi16(cr, _mm256_set1_epi16((R_CR - 65536 + 1) / 2));
    const __m256i blue = _mm256_mulhrs_epi16(cb, _mm256_set1_epi16((B_CB - 2 * 65536) / 2));
    return (struct colour){_mm256_add_epi16(red, cr), _mm256_sub_epi16(green, cr),
                           _mm256_add_epi16(blue, _mm256_add_epi16(cb, cb))};
}

/* 16 pixels: in each 128-bit half the first 4, then the other 4. */
AVX2 void pixels_of(__m256i luma, struct colour colour, __m256i pixels[2])
{
    const __m256i red_blue =
        _mm256_packus_epi16(_mm256_add_epi16(luma, colour.red), _mm256_add_epi16(luma, colour.blue));
    const __m256i green_255 = _mm256_packus_epi16(_mm256_add_epi16(luma, colour.green), _mm256_set1_epi16(255));
    const __m256i red_green = _mm256_unpacklo_epi8(red_blue, green_255);
    const __m256i blue_255 = _mm256_unpackhi_epi8(red_blue, green_255);
    pixels[0] = _mm256_unpacklo_epi16(red_green, blue_255);
    pixels[1] = _mm256_unpackhi_epi16(red_green, blue_255);
}

AVX2 void store_halves(uint8_t *out_RGBX, __m256i pixels)
{
    _mm_storeu_si128((__m128i *)(void *)out_RGBX, _mm256_castsi256_si128(pixels));
    _mm_storeu_si128((__m128i *)(void *)(out_RGBX + 64), _mm256_extracti128_si256(pixels, 1));
}

/* 32 pixels; `even` for the first, third …, `odd` for those between. */
AVX2 void write_group(const uint8_t *luma, struct colour even, struct colour odd, uint8_t *out_RGBX)
{
    const __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)luma);
    __m256i a[2], b[2];
    pixels_of(_mm256_and_si256(both, _mm256_set1_epi16(255)), even, a);
    pixels_of(_mm256_srli_epi16(both, 8), odd, b);
    for (int i = 0; i < 2; i++) {
        store_halves(out_RGBX + 32 * i, _mm256_unpacklo_epi32(a[i], b[i]));
        store_halves(out_RGBX + 32 * i + 16, _mm256_unpackhi_epi32(a[i], b[i]));
    }
}

AVX2 __m256i widened(const uint8_t *bytes)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)bytes));
}

/* 3 near + far, from the sample before the first on: out[0] is that one's. */
AVX2 void sum_rows(const uint8_t *near, const uint8_t *far, size_t width_px, int16_t *out)
{
    for (size_t i = 0; i <= width_px / 2 + COLOUR_GROUP / 2; i += 16) {
        const __m256i sums = _mm256_add_epi16(_mm256_mullo_epi16(widened(near - 1 + i), _mm256_set1_epi16(3)),
                                              widened(far - 1 + i));
        _mm256_store_si256((__m256i *)(void *)(out + i), sums);
    }
}

/* Chroma less 128 from the sums of 16 samples and, `next` to them, the 16 on their other side. */
AVX2 __m256i mixed(const int16_t *sums, const int16_t *next, int rounding)
{
    const __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)sums);
    const __m256i rest = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(const void *)next),
                                          _mm256_set1_epi16((int16_t)(rounding - (128 << 4))));
    return _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(sum, _mm256_add_epi16(sum, sum)), rest), 4);
}

__attribute__((target("avx2"))) static void colour_avx2(const struct sample_rows *rows, enum chroma chroma,
                                                        size_t width_px, void *scratch, uint8_t *out_RGBX)
{
    const __m256i centre = _mm256_set1_epi16(128);
    int16_t *sums[2] = {scratch, (int16_t *)scratch + row_values(width_px) / 2};
    for (int i = 0; chroma == CHROMA_SMOOTH && i < 2; i++)
        sum_rows(rows->near[i], rows->far[i], width_px, sums[i]);
    for (size_t x = 0; x < width_px; x += COLOUR_GROUP) {
        struct colour even, odd;
        if (chroma == CHROMA_SMOOTH) {
            const int16_t *cb = sums[0] + x / 2 + 1, *cr = sums[1] + x / 2 + 1;
            even = colour_of(mixed(cb, cb - 1, 8), mixed(cr, cr - 1, 8));
            odd = colour_of(mixed(cb, cb + 1, 7), mixed(cr, cr + 1, 7));
        } else if (chroma == CHROMA_SHARED) {
            even = odd = colour_of(_mm256_sub_epi16(widened(rows->near[0] + x / 2), centre),
                                   _mm256_sub_epi16(widened(rows->near[1] + x / 2), centre));
        } else {
            const __m256i cb = _mm256_loadu_si256((const __m256i *)(const void *)(rows->near[0] + x));
            const __m256i cr = _mm256_loadu_si256((const __m256i *)(const void *)(rows->near[1] + x));
            const __m256i low = _mm256_set1_epi16(255);
            even = colour_of(_mm256_sub_epi16(_mm256_and_si256(cb, low), centre),
                             _mm256_sub_epi16(_mm256_and_si256(cr, low), centre));
            odd = colour_of(_mm256_sub_epi16(_mm256_srli_epi16(cb, 8), centre),
                            _mm256_sub_epi16(_mm256_srli_epi16(cr, 8), centre));
        }
        write_group(rows->luma + x, even, odd, out_RGBX + 4 * x);
    }
}
#endif

colour_row *colour_for(enum level level)
{
#ifdef KERNEL_X86
    if (level == LEVEL_AVX2)
        return colour_avx2;
#endif
    (void)level;
    return colour_plain;
}
