/* The accurate integer IDCT of libjpeg (jidctint.c; Loeffler, Ligtenberg and Moschytz, 1989): columns, then rows, each
 * result an exact sum with 13 bits of fraction that is rounded once. jidctint.c factors the sums to save products;
 * multiplied out they are the same integers, and the products of two inputs are one instruction for 8 columns. */
#include "idct.h"

#include <string.h>

#define P COEFFICIENT_PLACE
const uint8_t coefficient_places[64] = {
    P(0, 0), P(0, 1), P(1, 0), P(2, 0), P(1, 1), P(0, 2), P(0, 3), P(1, 2), P(2, 1), P(3, 0), P(4, 0), P(3, 1), P(2, 2),
    P(1, 3), P(0, 4), P(0, 5), P(1, 4), P(2, 3), P(3, 2), P(4, 1), P(5, 0), P(6, 0), P(5, 1), P(4, 2), P(3, 3), P(2, 4),
    P(1, 5), P(0, 6), P(0, 7), P(1, 6), P(2, 5), P(3, 4), P(4, 3), P(5, 2), P(6, 1), P(7, 0), P(7, 1), P(6, 2), P(5, 3),
    P(4, 4), P(3, 5), P(2, 6), P(1, 7), P(2, 7), P(3, 6), P(4, 5), P(5, 4), P(6, 3), P(7, 2), P(7, 3), P(6, 4), P(5, 5),
    P(4, 6), P(3, 7), P(4, 7), P(5, 6), P(6, 5), P(7, 4), P(7, 5), P(6, 6), P(5, 7), P(6, 7), P(7, 6), P(7, 7),
};
#undef P

enum { ONE = 1 << 13, DOWN_1 = 11, DOWN_2 = 18 }; /* jidctint.c: CONST_BITS; its shifts, PASS1_BITS being 2 */

/* FIX(x) of jidctint.c. */
enum {
    F_0_298 = 2446, F_0_390 = 3196, F_0_541 = 4433, F_0_765 = 6270, F_0_899 = 7373, F_1_175 = 9633,
    F_1_501 = 12299, F_1_847 = 15137, F_1_961 = 16069, F_2_053 = 16819, F_2_562 = 20995, F_3_072 = 25172,
}; /* clang-format off */

/* By what the inputs 0, 4 and 2, 6 are multiplied in the sums that jidctint.c calls tmp0, tmp1 and tmp3, tmp2 … */
static const int16_t even[4][2] = {
    {ONE, ONE}, {ONE, -ONE}, {F_0_541 + F_0_765, F_0_541}, {F_0_541, F_0_541 - F_1_847},
};
/* … and the inputs 1, 3, 5, 7 in tmp3, tmp2, tmp1, tmp0 of its odd part. */
static const int16_t odd[4][4] = {
    {F_1_175 + F_1_501 - F_0_899 - F_0_390, F_1_175, F_1_175 - F_0_390, F_1_175 - F_0_899},
    {F_1_175, F_1_175 + F_3_072 - F_2_562 - F_1_961, F_1_175 - F_2_562, F_1_175 - F_1_961},
    {F_1_175 - F_0_390, F_1_175 - F_2_562, F_1_175 + F_2_053 - F_2_562 - F_0_390, F_1_175},
    {F_1_175 - F_0_899, F_1_175 - F_1_961, F_1_175, F_1_175 + F_0_298 - F_0_899 - F_1_961},
}; /* clang-format on */

enum { LIMIT = 1 << 14 };                   /* of coefficients and columns' results, see idct_block */
enum { HEADROOM = 512, TO_SAMPLE = 512 - 128 }; /* a sample is its result + HEADROOM, of 10 bits then, - TO_SAMPLE */

void quantisation_fill(struct quantisation *table, const uint8_t *zigzag)
{
    for (int i = 0; i < 64; i++)
        table->steps[coefficient_places[i]] = zigzag[i];
}

/* A block without AC coefficients. */
static int idct_flat(int coefficient, int step, uint8_t *out, size_t stride_bytes)
{
    const int sample = ((coefficient * step + 4) >> 3) + HEADROOM;
    if (sample & ~1023)
        return 0;
    const int clamped = sample < TO_SAMPLE ? 0 : sample > TO_SAMPLE + 255 ? 255 : sample - TO_SAMPLE;
    for (int row = 0; row < 8; row++)
        memset(out + (size_t)row * stride_bytes, clamped, 8);
    return 1;
}

/* One pass over 8 columns at once: in[row][column] to out[row][column]. */
static void pass_plain(int32_t in[8][8], int32_t out[8][8], int down)
{
    const int32_t half = 1 << (down - 1);
    for (int i = 0; i < 8; i++) {
        const int32_t t0 = (in[0][i] + in[4][i]) * ONE + half, t1 = (in[0][i] - in[4][i]) * ONE + half;
        const int32_t t3 = in[2][i] * even[2][0] + in[6][i] * even[2][1];
        const int32_t t2 = in[2][i] * even[3][0] + in[6][i] * even[3][1];
        const int32_t sums[4] = {t0 + t3, t1 + t2, t1 - t2, t0 - t3};
        for (int k = 0; k < 4; k++) {
            const int32_t u = in[1][i] * odd[k][0] + in[3][i] * odd[k][1] + in[5][i] * odd[k][2] + in[7][i] * odd[k][3];
            out[k][i] = (sums[k] + u) >> down;
            out[7 - k][i] = (sums[k] - u) >> down;
        }
    }
}

static int idct_plain(const int16_t *coefficients, const struct quantisation *table, int last, uint8_t *out,
                      size_t stride_bytes)
{
    int32_t a[8][8], b[8][8];
    uint32_t outside = 0;
    if (last == 0)
        return idct_flat(coefficients[0], table->steps[0], out, stride_bytes);
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++) {
            const int place = COEFFICIENT_PLACE(row, column);
            a[row][column] = coefficients[place] * table->steps[place];
            outside |= (uint32_t)(a[row][column] + LIMIT);
        }
    if (outside >= 2 * LIMIT)
        return 0; /* before the sums could overflow */
    pass_plain(a, b, DOWN_1);
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++) {
            a[column][row] = b[row][column];
            outside |= (uint32_t)(b[row][column] + LIMIT);
        }
    if (outside >= 2 * LIMIT)
        return 0;
    pass_plain(a, b, DOWN_2);
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++) {
            const int32_t sample = b[column][row] + HEADROOM;
            outside |= (uint32_t)sample << 5; /* so that 10 bits are again all that is allowed */
            out[(size_t)row * stride_bytes + (size_t)column] =
                (uint8_t)(sample < TO_SAMPLE ? 0 : sample > TO_SAMPLE + 255 ? 255 : sample - TO_SAMPLE);
        }
    return outside < 2 * LIMIT;
}

#ifdef KERNEL_X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2"))) static inline

/* Two factors for the inputs that lie side by side. */
AVX2 __m256i factors(const int16_t *pair)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)pair[1] << 16 | (uint16_t)pair[0]));
}

/* One pass over 8 columns. in: inputs (0 4) (1 3) (2 6) (5 7); out: 0 … 7 as 32 bits, `bias` added before the shift. */
AVX2 void pass_avx2(const __m256i in[4], __m256i out[8], int bias, int down)
{
    const __m256i add = _mm256_set1_epi32(bias);
    const __m256i t0 = _mm256_add_epi32(_mm256_madd_epi16(in[0], factors(even[0])), add);
    const __m256i t1 = _mm256_add_epi32(_mm256_madd_epi16(in[0], factors(even[1])), add);
    const __m256i t3 = _mm256_madd_epi16(in[2], factors(even[2])), t2 = _mm256_madd_epi16(in[2], factors(even[3]));
    const __m256i sums[4] = {_mm256_add_epi32(t0, t3), _mm256_add_epi32(t1, t2), _mm256_sub_epi32(t1, t2),
                             _mm256_sub_epi32(t0, t3)};
    for (int k = 0; k < 4; k++) {
        const __m256i u = _mm256_add_epi32(_mm256_madd_epi16(in[1], factors(odd[k])),
                                           _mm256_madd_epi16(in[3], factors(odd[k] + 2)));
        out[k] = _mm256_srai_epi32(_mm256_add_epi32(sums[k], u), down);
        out[7 - k] = _mm256_srai_epi32(_mm256_sub_epi32(sums[k], u), down);
    }
}

/* From rows 0 1, 2 3, 4 5, 6 7 (each 128-bit half: both rows' part) to the vectors that `pass_avx2` takes for rows. */
AVX2 void transpose(const __m256i rows[4], __m256i out[4])
{
    const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    const __m256i even_first = _mm256_unpacklo_epi64(a, c), even_second = _mm256_unpackhi_epi64(a, c);
    const __m256i odd_first = _mm256_unpacklo_epi64(b, d), odd_second = _mm256_unpackhi_epi64(b, d);
    out[0] = _mm256_permute2x128_si256(even_first, odd_first, 0x20);
    out[1] = _mm256_permute2x128_si256(even_second, odd_second, 0x20);
    out[2] = _mm256_permute2x128_si256(even_first, odd_first, 0x31);
    out[3] = _mm256_permute2x128_si256(even_second, odd_second, 0x31);
}

/* The samples of columns 0 1, 2 3, 4 5, 6 7, of which each 128-bit half has rows 0 2 4 6 or 1 3 5 7, to their rows. */
AVX2 void store(const __m256i columns[4], uint8_t *out, size_t stride_bytes)
{
    const __m256i down = _mm256_set1_epi16(TO_SAMPLE);
    const __m256i rows_first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i left = _mm256_packus_epi16(_mm256_subs_epu16(columns[0], down), _mm256_subs_epu16(columns[1], down));
    const __m256i right = _mm256_packus_epi16(_mm256_subs_epu16(columns[2], down), _mm256_subs_epu16(columns[3], down));
    const __m256i a = _mm256_shuffle_epi8(left, rows_first), b = _mm256_shuffle_epi8(right, rows_first);
    const __m256i upper = _mm256_unpacklo_epi32(a, b), lower = _mm256_unpackhi_epi32(a, b);
    const __m128i rows[4] = {_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1),
                             _mm256_castsi256_si128(lower), _mm256_extracti128_si256(lower, 1)};
    for (size_t i = 0; i < 4; i++) {
        uint8_t *row = out + (i / 2 * 4 + i % 2) * stride_bytes;
        _mm_storel_epi64((__m128i *)(void *)row, rows[i]);
        _mm_storeh_pi((__m64 *)(void *)(row + 2 * stride_bytes), _mm_castsi128_ps(rows[i]));
    }
}

__attribute__((target("avx2"))) static int idct_avx2(const int16_t *coefficients, const struct quantisation *table,
                                                     int last, uint8_t *out, size_t stride_bytes)
{
    if (last == 0)
        return idct_flat(coefficients[0], table->steps[0], out, stride_bytes);
    const __m256i *in = (const __m256i *)(const void *)coefficients;
    const __m256i *steps = (const __m256i *)(const void *)table->steps;
    __m256i outside = _mm256_setzero_si256(); /* collects (x + 2^14) >> 15, which is 0 inside ±LIMIT */
    __m256i vectors[4], packed[4], results[8];
    for (int i = 0; i < 4; i++) {
        vectors[i] = _mm256_mullo_epi16(in[i], steps[i]);
        outside = _mm256_or_si256(outside, _mm256_mulhrs_epi16(in[i], steps[i]));
    }
    pass_avx2(vectors, results, 1 << (DOWN_1 - 1), DOWN_1);
    for (int i = 0; i < 4; i++) {
        packed[i] = _mm256_packs_epi32(results[2 * i], results[2 * i + 1]);
        outside = _mm256_or_si256(outside, _mm256_mulhrs_epi16(packed[i], _mm256_set1_epi16(1)));
    }
    transpose(packed, vectors);
    pass_avx2(vectors, results, (HEADROOM << DOWN_2) + (1 << (DOWN_2 - 1)), DOWN_2);
    __m256i samples = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        packed[i] = _mm256_packs_epi32(results[2 * i], results[2 * i + 1]);
        samples = _mm256_or_si256(samples, packed[i]);
    }
    outside = _mm256_or_si256(outside, _mm256_srli_epi16(samples, 10));
    store(packed, out, stride_bytes);
    return _mm256_testz_si256(outside, outside);
}
#endif

idct_block *idct_for(enum level level)
{
#ifdef KERNEL_X86
    if (level == LEVEL_AVX2)
        return idct_avx2;
#endif
    (void)level;
    return idct_plain;
}
