/* Vectors and the few operations that the filters need: AVX2's of 32 bytes, NEON's of 16. A lane is 16 bytes. Functions
   that use them are marked SIMD and called by DONE_BY_SIMD, which is 0 where the level is plain; without vectors,
   KERNEL_SIMD is 0.

   gather     16 bytes from each of LANES places      load_split   8 bytes for each lane
   less_8     a - b, not below 0                      spread       in each lane, bytes 4n to 4n + 3 as 32-bit numbers
   dot        a[2n] * b[2n] + a[2n + 1] * b[2n + 1], 16 bits to 32       high_16   (a * b) >> 16
   quarter_16 (a + 2) >> 2
   pick       in each lane apart, the bytes whose numbers are given; 0 for a number of 128 or more
   twice      in each lane, both 32-bit numbers of the first (second) half twice
   words, bytes      two vectors of 32-bit (16-bit) numbers as one of half as many bits, in order and clipped; in each
                     lane apart: lane_words, lane_bytes
   paired     two vectors of 32-bit numbers as 16 bits each: a0 b0 a1 b1 ...
   store_rgb  WIDE pixels; store_three  WIDE / 4 pixels without their fourth byte, and four bytes more */
#ifndef FEEDLINE_VECTORS_H
#define FEEDLINE_VECTORS_H

#include <stdint.h>
#include <string.h>

#include "levels.h"

#if defined(KERNEL_X86)
#include <immintrin.h>
#define KERNEL_SIMD 1
#define SIMD __attribute__((target("avx2")))
#define OPERATION static inline __attribute__((target("avx2"), always_inline))
typedef __m256i vector;

#define HALVES(a, b) _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1)
#define BOTH(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))
#define LOW(a) _mm256_castsi256_si128(a)
#define HIGH(a) _mm256_extracti128_si256(a, 1)
#define right_32(a, bits) _mm256_srai_epi32(a, bits)
#define left_32(a, bits) _mm256_slli_epi32(a, bits)
OPERATION vector every_16(int number) { return _mm256_set1_epi16((short)number); }
OPERATION vector every_32(int number) { return _mm256_set1_epi32(number); }
OPERATION __m128i load_16(const void *from) { return _mm_loadu_si128(from); }
OPERATION vector load(const void *from) { return _mm256_loadu_si256(from); }
OPERATION __m128i load_8(const uint8_t *from) { return _mm_loadl_epi64((const void *)from); }
OPERATION vector load_split(const uint8_t *from) { return HALVES(load_8(from), load_8(from + 8)); }
OPERATION vector gather(const uint8_t *at, const int32_t *from)
{
    return HALVES(load_16(at + from[0]), load_16(at + from[1]));
}
OPERATION void store(void *to, vector a) { _mm256_storeu_si256(to, a); }
OPERATION vector add_16(vector a, vector b) { return _mm256_add_epi16(a, b); }
OPERATION vector add_32(vector a, vector b) { return _mm256_add_epi32(a, b); }
OPERATION vector less_8(vector a, int number) { return _mm256_subs_epu8(a, _mm256_set1_epi8((char)number)); }
OPERATION vector multiply_32(vector a, vector b) { return _mm256_mullo_epi32(a, b); }
OPERATION vector high_16(vector a, vector b) { return _mm256_mulhi_epi16(a, b); }
OPERATION vector quarter_16(vector a) { return _mm256_mulhrs_epi16(a, every_16(1 << 13)); }
OPERATION vector dot(vector a, vector b) { return _mm256_madd_epi16(a, b); }
OPERATION vector pick(vector a, vector which) { return _mm256_shuffle_epi8(a, which); }
OPERATION vector spread(vector a, int n)
{
    const vector four = BOTH(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1);
    return pick(a, add_32(four, every_32(4 * n)));
}
OPERATION vector twice(vector a, int half) { return half ? _mm256_unpackhi_epi32(a, a) : _mm256_unpacklo_epi32(a, a); }
OPERATION vector lane_words(vector a, vector b) { return _mm256_packs_epi32(a, b); }
OPERATION vector lane_bytes(vector a, vector b) { return _mm256_packus_epi16(a, b); }
OPERATION vector words(vector a, vector b) { return _mm256_permute4x64_epi64(lane_words(a, b), 0xD8); }
OPERATION vector bytes(vector a, vector b) { return _mm256_permute4x64_epi64(lane_bytes(a, b), 0xD8); }
OPERATION vector paired(vector a, vector b)
{
    return pick(lane_words(a, b), BOTH(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
}

#define WITHOUT_FOURTH BOTH(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)
OPERATION void store_rgb(uint8_t *to, vector r, vector g, vector b)
{
    const vector rg[2] = {_mm256_unpacklo_epi8(r, g), _mm256_unpackhi_epi8(r, g)};
    const vector bb[2] = {_mm256_unpacklo_epi8(b, b), _mm256_unpackhi_epi8(b, b)};
    vector three[4]; /* in each lane four pixels, and zeroes behind */
    for (int n = 0; n < 4; n++)
        three[n] = pick(n % 2 ? _mm256_unpackhi_epi16(rg[n / 2], bb[n / 2]) : _mm256_unpacklo_epi16(rg[n / 2], bb[n / 2]),
                        WITHOUT_FOURTH);
    const vector whole[3] = {_mm256_or_si256(three[0], _mm256_bslli_epi128(three[1], 12)),
                             _mm256_or_si256(_mm256_bsrli_epi128(three[1], 4), _mm256_bslli_epi128(three[2], 8)),
                             _mm256_or_si256(_mm256_bsrli_epi128(three[2], 8), _mm256_bslli_epi128(three[3], 4))};
    for (int n = 0; n < 3; n++) {
        _mm_storeu_si128((void *)(to + 16 * n), LOW(whole[n]));
        _mm_storeu_si128((void *)(to + 48 + 16 * n), HIGH(whole[n]));
    }
}
OPERATION void store_three(uint8_t *to, vector four)
{
    four = pick(four, WITHOUT_FOURTH);
    _mm_storeu_si128((void *)to, LOW(four));
    _mm_storeu_si128((void *)(to + 12), HIGH(four));
}

#elif defined(KERNEL_NEON)
#include <arm_neon.h>
#define KERNEL_SIMD 1
#define SIMD
#define OPERATION static inline __attribute__((always_inline))
typedef int32x4_t vector;

#define U8(a) vreinterpretq_u8_s32(a)
#define S16(a) vreinterpretq_s16_s32(a)
#define FROM_8(a) vreinterpretq_s32_u8(a)
#define FROM_16(a) vreinterpretq_s32_s16(a)
#define right_32(a, bits) vshrq_n_s32(a, bits)
#define left_32(a, bits) vshlq_n_s32(a, bits)
OPERATION vector every_16(int number) { return FROM_16(vdupq_n_s16((int16_t)number)); }
OPERATION vector every_32(int number) { return vdupq_n_s32(number); }
OPERATION vector load(const void *from) { return FROM_8(vld1q_u8(from)); }
OPERATION vector load_split(const uint8_t *from) { return FROM_8(vcombine_u8(vld1_u8(from), vdup_n_u8(0))); }
OPERATION vector gather(const uint8_t *at, const int32_t *from) { return load(at + from[0]); }
OPERATION void store(void *to, vector a) { vst1q_u8(to, U8(a)); }
OPERATION vector add_16(vector a, vector b) { return FROM_16(vaddq_s16(S16(a), S16(b))); }
OPERATION vector add_32(vector a, vector b) { return vaddq_s32(a, b); }
OPERATION vector less_8(vector a, int number) { return FROM_8(vqsubq_u8(U8(a), vdupq_n_u8((uint8_t)number))); }
OPERATION vector multiply_32(vector a, vector b) { return vmulq_s32(a, b); }
#define PRODUCTS(a, b) vmull_s16(vget_low_s16(S16(a)), vget_low_s16(S16(b))), vmull_high_s16(S16(a), S16(b))
OPERATION vector odd_words(vector a, vector b) { return FROM_16(vuzp2q_s16(S16(a), S16(b))); }
OPERATION vector high_16(vector a, vector b) { return odd_words(PRODUCTS(a, b)); }
OPERATION vector quarter_16(vector a) { return FROM_16(vrshrq_n_s16(S16(a), 2)); }
OPERATION vector dot(vector a, vector b) { return vpaddq_s32(PRODUCTS(a, b)); }
OPERATION vector pick(vector a, vector which) { return FROM_8(vqtbl1q_u8(U8(a), U8(which))); }
OPERATION vector spread(vector a, int n)
{
    return pick(a, vaddq_s32(((vector){-256, -255, -254, -253}), vdupq_n_s32(4 * n)));
}
OPERATION vector twice(vector a, int half) { return half ? vzip2q_s32(a, a) : vzip1q_s32(a, a); }
OPERATION vector words(vector a, vector b) { return FROM_16(vqmovn_high_s32(vqmovn_s32(a), b)); }
OPERATION vector bytes(vector a, vector b) { return FROM_8(vqmovun_high_s16(vqmovun_s16(S16(a)), S16(b))); }
#define lane_words words
#define lane_bytes bytes
OPERATION vector paired(vector a, vector b)
{
    const int16x8_t both = S16(words(a, b));
    return FROM_16(vzip1q_s16(both, vextq_s16(both, both, 4)));
}
OPERATION void store_rgb(uint8_t *to, vector r, vector g, vector b)
{
    vst3q_u8(to, ((uint8x16x3_t){{U8(r), U8(g), U8(b)}}));
}
OPERATION void store_three(uint8_t *to, vector four)
{
    const uint8_t which[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    vst1q_u8(to, vqtbl1q_u8(U8(four), vld1q_u8(which)));
}
#else
#define KERNEL_SIMD 0
#endif

#if KERNEL_SIMD
enum { WIDE = sizeof(vector), LANES = WIDE / 16 };
#define DONE_BY_SIMD(call) (kernel_level == LEVEL_PLAIN ? 0 : (call))
#else
enum { WIDE = 32, LANES = 2 };
#define DONE_BY_SIMD(call) 0
#endif

#endif
