/* Vectors and the few operations that the filters need: AVX2's of 32 bytes, NEON's of 16. A lane is 16 bytes. As numbers of
   32 bits they have C's operators. Functions that use them are marked SIMD and called by DONE_BY_SIMD, which is 0 where the
   level is plain; without vectors, KERNEL_SIMD is 0.

   gather     16 bytes from each of LANES places      load_split   8 bytes for each lane
   less_8     a - b, not below 0                      spread       in each lane, bytes 4n to 4n + 3 as 32-bit numbers
   dot        a[2n] * b[2n] + a[2n + 1] * b[2n + 1], 16 bits to 32       high_16   (a * b) >> 16
   quarter_16 (a + 2) >> 2
   pick       in each lane apart, the bytes whose numbers are given; 0 for a number of 128 or more
   zip        in each lane, the 32-bit numbers of both vectors' first (second) halves in turn
   words, bytes      two vectors of 32-bit (16-bit) numbers as one of half as many bits, in order and clipped; in each
                     lane apart: lane_words, lane_bytes
   store_rgb  WIDE pixels; store_three  WIDE / 4 pixels without their fourth byte, and four bytes more */
#pragma once

#include <stdint.h>

#include "levels.h"

#if defined(KERNEL_X86)
#include <immintrin.h>
#define SIMD __attribute__((target("avx2")))
enum { WIDE = 32, LANES = 2 };
typedef int32_t vector __attribute__((vector_size(WIDE)));
#elif defined(KERNEL_NEON)
#include <arm_neon.h>
#define SIMD
enum { WIDE = 16, LANES = 1 };
typedef int32x4_t vector;
#else
enum { LANES = 1 };
#endif

#ifdef SIMD
#define DONE_BY_SIMD(call) (kernel_level == LEVEL_PLAIN ? 0 : (call))
#define OPERATION SIMD static inline __attribute__((always_inline))
typedef int16_t vector_16 __attribute__((vector_size(WIDE)));

OPERATION vector every_16(int number) { return (vector)((int16_t)number + (vector_16){0}); }
OPERATION vector add_16(vector a, vector b) { return (vector)((vector_16)a + (vector_16)b); }
#else
#define DONE_BY_SIMD(call) 0
#endif

#if defined(KERNEL_X86)
typedef __m256i i;

#define HALVES(a, b) ((vector)_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1))
#define BOTH(...) ((vector)_mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__)))
OPERATION __m128i load_16(const uint8_t *from) { return _mm_loadu_si128((const void *)from); }
OPERATION __m128i load_8(const uint8_t *from) { return _mm_loadl_epi64((const void *)from); }
OPERATION vector load(const void *from) { return (vector)_mm256_loadu_si256(from); }
OPERATION vector load_split(const uint8_t *from) { return HALVES(load_8(from), load_8(from + 8)); }
OPERATION vector gather(const uint8_t *at, const int32_t *from) { return HALVES(load_16(at + *from), load_16(at + from[1])); }
OPERATION void store(void *to, vector a) { _mm256_storeu_si256(to, (i)a); }
OPERATION void store_half(uint8_t *to, vector a, int half)
{
    _mm_storeu_si128((void *)to, half ? _mm256_extracti128_si256((i)a, 1) : _mm256_castsi256_si128((i)a));
}
OPERATION vector less_8(vector a, int number) { return (vector)_mm256_subs_epu8((i)a, _mm256_set1_epi8((char)number)); }
OPERATION vector high_16(vector a, vector b) { return (vector)_mm256_mulhi_epi16((i)a, (i)b); }
OPERATION vector quarter_16(vector a) { return (vector)_mm256_mulhrs_epi16((i)a, _mm256_set1_epi16(1 << 13)); }
OPERATION vector dot(vector a, vector b) { return (vector)_mm256_madd_epi16((i)a, (i)b); }
OPERATION vector pick(vector a, vector which) { return (vector)_mm256_shuffle_epi8((i)a, (i)which); }
OPERATION vector spread(vector a, int n)
{
    return pick(a, BOTH(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1) + 4 * n);
}
OPERATION vector zip(vector a, vector b, int half)
{
    return (vector)(half ? _mm256_unpackhi_epi32((i)a, (i)b) : _mm256_unpacklo_epi32((i)a, (i)b));
}
OPERATION vector lane_words(vector a, vector b) { return (vector)_mm256_packs_epi32((i)a, (i)b); }
OPERATION vector lane_bytes(vector a, vector b) { return (vector)_mm256_packus_epi16((i)a, (i)b); }
OPERATION vector words(vector a, vector b) { return (vector)_mm256_permute4x64_epi64((i)lane_words(a, b), 0xD8); }
OPERATION vector bytes(vector a, vector b) { return (vector)_mm256_permute4x64_epi64((i)lane_bytes(a, b), 0xD8); }
OPERATION vector without_fourth(vector a) { return pick(a, BOTH(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)); }
OPERATION void store_rgb(uint8_t *to, vector r, vector g, vector b)
{
    const i rg[2] = {_mm256_unpacklo_epi8((i)r, (i)g), _mm256_unpackhi_epi8((i)r, (i)g)};
    const i bb[2] = {_mm256_unpacklo_epi8((i)b, (i)b), _mm256_unpackhi_epi8((i)b, (i)b)};
    i three[4]; /* in each lane four pixels, and zeroes behind */
    for (int n = 0; n < 4; n++)
        three[n] = (i)without_fourth((vector)(n % 2 ? _mm256_unpackhi_epi16(rg[n / 2], bb[n / 2])
                                                    : _mm256_unpacklo_epi16(rg[n / 2], bb[n / 2])));
    const vector whole[3] = {(vector)(three[0] | _mm256_bslli_epi128(three[1], 12)),
                             (vector)(_mm256_bsrli_epi128(three[1], 4) | _mm256_bslli_epi128(three[2], 8)),
                             (vector)(_mm256_bsrli_epi128(three[2], 8) | _mm256_bslli_epi128(three[3], 4))};
    for (int n = 0; n < 6; n++)
        store_half(to + 16 * n, whole[n % 3], n / 3);
}
OPERATION void store_three(uint8_t *to, vector four)
{
    store_half(to, without_fourth(four), 0);
    store_half(to + 12, without_fourth(four), 1);
}

#elif defined(KERNEL_NEON)
#define U8(a) vreinterpretq_u8_s32(a)
#define S16(a) vreinterpretq_s16_s32(a)
#define FROM_8(a) vreinterpretq_s32_u8(a)
#define FROM_16(a) vreinterpretq_s32_s16(a)
#define PRODUCTS(a, b) vmull_s16(vget_low_s16(S16(a)), vget_low_s16(S16(b))), vmull_high_s16(S16(a), S16(b))
#define lane_words words
#define lane_bytes bytes
OPERATION vector load(const void *from) { return FROM_8(vld1q_u8(from)); }
OPERATION vector load_split(const uint8_t *from) { return FROM_8(vcombine_u8(vld1_u8(from), vdup_n_u8(0))); }
OPERATION vector gather(const uint8_t *at, const int32_t *from) { return load(at + *from); }
OPERATION void store(void *to, vector a) { vst1q_u8(to, U8(a)); }
OPERATION vector less_8(vector a, int number) { return FROM_8(vqsubq_u8(U8(a), vdupq_n_u8((uint8_t)number))); }
OPERATION vector odd_words(vector a, vector b) { return FROM_16(vuzp2q_s16(S16(a), S16(b))); }
OPERATION vector high_16(vector a, vector b) { return odd_words(PRODUCTS(a, b)); }
OPERATION vector quarter_16(vector a) { return FROM_16(vrshrq_n_s16(S16(a), 2)); }
OPERATION vector dot(vector a, vector b) { return vpaddq_s32(PRODUCTS(a, b)); }
OPERATION vector pick(vector a, vector which) { return FROM_8(vqtbl1q_u8(U8(a), U8(which))); }
OPERATION vector spread(vector a, int n) { return pick(a, (vector){-256, -255, -254, -253} + 4 * n); }
OPERATION vector zip(vector a, vector b, int half) { return half ? vzip2q_s32(a, b) : vzip1q_s32(a, b); }
OPERATION vector words(vector a, vector b) { return FROM_16(vqmovn_high_s32(vqmovn_s32(a), b)); }
OPERATION vector bytes(vector a, vector b) { return FROM_8(vqmovun_high_s16(vqmovun_s16(S16(a)), S16(b))); }
OPERATION void store_rgb(uint8_t *to, vector r, vector g, vector b)
{
    vst3q_u8(to, ((uint8x16x3_t){{U8(r), U8(g), U8(b)}}));
}
OPERATION void store_three(uint8_t *to, vector four)
{
    store(to, pick(four, (vector){0x04020100, 0x09080605, 0x0E0D0C0A, -1}));
}
#endif
