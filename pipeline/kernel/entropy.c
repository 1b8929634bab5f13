/* Sequential Huffman decoding, T.81, F.2.2. What it costs is waiting: each code's place is known only when the code
 * before it has been looked up. So one look gives code and value (huffman.h), the window is filled without a
 * branch once for three codes, and two intervals are decoded by turns where there are two. */
#include "entropy.h"

#include <string.h>

#include "idct.h"

#define INLINE static inline __attribute__((always_inline))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* A code and its value take up to 26 bits; of the window 56 or more are known when it has been filled. */
enum { CODES_PER_FILL = 3 };
_Static_assert(56 - 26 >= (CODES_PER_FILL - 1) * AC_BITS, "a long code may come first");

/* Where in its stream an MCU is, kept in registers. */
struct lane {
    const uint8_t *next;
    uint64_t window;
    uint32_t count; /* its low 6 bits */
    size_t index;   /* of the coefficient in its block, zigzag */
};

/* Fills the window. The bits below `count` are those of `next` already: to set them again changes nothing. */
INLINE void fill(struct lane *lane)
{
    uint64_t bytes;
    memcpy(&bytes, lane->next, sizeof bytes);
    lane->window |= __builtin_bswap64(bytes) >> (lane->count & 63);
    lane->next += ~lane->count >> 3 & 7;
    lane->count |= 56;
}

/* Goes on by as many bits as the low byte of `entry` says. */
INLINE void take(struct lane *lane, uint32_t entry)
{
    lane->window <<= entry & 63;
    lane->count -= entry;
}

/* The DC difference (F.2.2.1); what no picture has where there is no code. */
INLINE int read_difference(struct lane *lane, const struct huffman_dc *table)
{
    fill(lane);
    const unsigned known = table->quick[lane->window >> (64 - DC_BITS)];
    unsigned bits = known >> 4, category = known & 15;
    if (UNLIKELY(!known)) {
        bits = huffman_read(&table->code, lane->window, &category);
        if (!bits)
            return 1 << 16;
    }
    const int difference = huffman_value(lane->window << bits, category);
    take(lane, bits + category);
    return difference;
}

/* Goes on by one AC coefficient (F.2.2.2). 0 when the block has ended; `index` is then its last coefficient's, or above
 * 63 if it is damaged. */
INLINE int read_coefficient(struct lane *lane, const struct huffman_ac *table, int16_t *block)
{
    huffman_entry entry = table->quick[lane->window >> (64 - AC_BITS)];
    if (UNLIKELY(entry >> 31)) { /* HUFFMAN_PART */
        fill(lane);
        entry = huffman_rest(table, lane->window, entry);
    }
    take(lane, entry);
    lane->index += entry >> 24;
    if (UNLIKELY(lane->index > 62)) {
        if (entry >> 24 == HUFFMAN_EOB)
            lane->index -= HUFFMAN_EOB;
        else if (lane->index == 63)
            block[COEFFICIENT_PLACE(7, 7)] = (int16_t)(entry >> 8);
        return 0;
    }
    block[coefficient_places[lane->index]] = (int16_t)(entry >> 8);
    return 1;
}

/* Reads coefficients to the block's end. */
INLINE void finish(struct lane *lane, const struct huffman_ac *table, int16_t *block)
{
    for (;;) {
        fill(lane);
#pragma GCC unroll 4
        for (int i = 0; i < CODES_PER_FILL; i++)
            if (!read_coefficient(lane, table, block))
                return;
    }
}

/* The same for two blocks by turns. */
INLINE void finish_two(struct lane lanes[2], const struct huffman_ac *table, int16_t *a, int16_t *b)
{
    for (;;) {
        fill(&lanes[0]);
        fill(&lanes[1]);
#pragma GCC unroll 4
        for (int i = 0; i < CODES_PER_FILL; i++) {
            if (!read_coefficient(&lanes[0], table, a)) {
                finish(&lanes[1], table, b);
                return;
            }
            if (!read_coefficient(&lanes[1], table, b)) {
                finish(&lanes[0], table, a);
                return;
            }
        }
    }
}

/* A block's DC coefficient. 0 if it is out of all bounds. */
INLINE int start_block(struct lane *lane, struct bit_stream *stream, const struct huffman_dc *table, int component,
                       int16_t *block)
{
    const int dc = stream->dc[component] += read_difference(lane, table);
    block[0] = (int16_t)dc;
    lane->index = 0;
    return dc == (int16_t)dc;
}

/* 0 if the block has not ended as an encoder ends it, or with bits from behind its stream. */
INLINE int end_block(const struct lane *lane, const struct bit_stream *stream, uint8_t *last)
{
    *last = (uint8_t)lane->index;
    return lane->index < 64 && (lane->next - stream->end) * 8 <= (ptrdiff_t)(lane->count & 63);
}

INLINE struct lane open(const struct bit_stream *stream)
{
    return (struct lane){.next = stream->next, .window = stream->window, .count = stream->count};
}

INLINE void close(const struct lane *lane, struct bit_stream *stream)
{
    stream->next = lane->next;
    stream->window = lane->window;
    stream->count = lane->count & 63;
}

INLINE int decode_one(struct bit_stream *stream, const struct mcu_layout *layout, struct mcu *mcu)
{
    struct lane lane = open(stream);
    for (int i = 0; i < layout->blocks; i++) {
        const int component = layout->component[i];
        if (!start_block(&lane, stream, layout->dc[component], component, mcu->blocks[i]))
            return 0;
        finish(&lane, layout->ac[component], mcu->blocks[i]);
        if (!end_block(&lane, stream, &mcu->last[i]))
            return 0;
    }
    close(&lane, stream);
    return 1;
}

INLINE int decode_two(struct bit_stream *streams[2], const struct mcu_layout *layout, struct mcu mcus[2])
{
    struct lane lanes[2] = {open(streams[0]), open(streams[1])};
    for (int i = 0; i < layout->blocks; i++) {
        const int component = layout->component[i];
        int16_t *a = mcus[0].blocks[i], *b = mcus[1].blocks[i];
        if (!start_block(&lanes[0], streams[0], layout->dc[component], component, a) ||
            !start_block(&lanes[1], streams[1], layout->dc[component], component, b))
            return 0;
        finish_two(lanes, layout->ac[component], a, b);
        if (!end_block(&lanes[0], streams[0], &mcus[0].last[i]) || !end_block(&lanes[1], streams[1], &mcus[1].last[i]))
            return 0;
    }
    close(&lanes[0], streams[0]);
    close(&lanes[1], streams[1]);
    return 1;
}

static int one_plain(struct bit_stream *stream, const struct mcu_layout *layout, struct mcu *mcu)
{
    return decode_one(stream, layout, mcu);
}

static int two_plain(struct bit_stream *streams[2], const struct mcu_layout *layout, struct mcu mcus[2])
{
    return decode_two(streams, layout, mcus);
}

#ifdef KERNEL_X86
#define HASWELL __attribute__((target("avx2,bmi,bmi2"))) /* the same code; shifts that leave the flags alone */

HASWELL static int one_haswell(struct bit_stream *stream, const struct mcu_layout *layout, struct mcu *mcu)
{
    return decode_one(stream, layout, mcu);
}

HASWELL static int two_haswell(struct bit_stream *streams[2], const struct mcu_layout *layout, struct mcu mcus[2])
{
    return decode_two(streams, layout, mcus);
}
#endif

struct entropy_decoder entropy_decoder_for(enum level level)
{
#ifdef KERNEL_X86
    if (level == LEVEL_AVX2 && __builtin_cpu_supports("bmi2"))
        return (struct entropy_decoder){one_haswell, two_haswell};
#endif
    (void)level;
    return (struct entropy_decoder){one_plain, two_plain};
}
