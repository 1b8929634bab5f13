/* Huffman tables in the shape that decodes fastest. */
#pragma once

#include <stdint.h>

enum { DC_BITS = 9, AC_BITS = 11 }; /* of a stream's next bits index the quick tables */

/* What a DHT segment says; T.81, B.2.4.2. Symbols behind the counts' sum are 0. */
struct huffman_definition {
    uint8_t is_there, counts[16], symbols[256];
};

/* Codes of all lengths; F.2.2.3. */
struct huffman_code {
    uint32_t ends[17];   /* [n]: above the first 16 bits of every code of up to n bits */
    int32_t offsets[17]; /* [n]: a code of n bits plus this is its symbol's index */
    uint8_t symbols[256];
};

struct huffman_dc {
    uint8_t quick[1 << DC_BITS]; /* bits of the code << 4 | category (F.1.2.1); 0: a longer code */
    struct huffman_code code;
};

/* The code of an AC coefficient with the bits of its value (F.1.2.2):
 *   bits 0–7    how many bits of the stream they take together
 *   bits 8–23   the value, signed
 *   bits 24–31  by how much the coefficient's index goes on: run of zeroes + 1; HUFFMAN_EOB; or HUFFMAN_PART and more:
 *               the code is only begun, takes no bits yet, and huffman_rest gives what it is */
typedef uint32_t huffman_entry;

enum { HUFFMAN_EOB = 64, HUFFMAN_BAD = 100, HUFFMAN_PART = 128 };

struct huffman_ac {
    huffman_entry quick[1 << AC_BITS];
    struct huffman_code code;
};

struct huffman_tables {
    struct huffman_dc dc[2];
    struct huffman_ac ac[2];
};

/* The tables of these definitions ([0]: DC, [1]: AC). Files of one encoder have the same, so each thread keeps the
 * last it made: they are valid until it asks again. NULL if one is no Huffman code (T.81, C.2: too many codes, or one
 * of ones only), or holds what no 8-bit baseline picture has. */
const struct huffman_tables *huffman_find(const struct huffman_definition definitions[2][2]);

/* How many bits the first code in `window` (the stream's next bits, highest first) takes; 0: there is none. */
unsigned huffman_read(const struct huffman_code *code, uint64_t window, unsigned *symbol);

/* What `part`, from `quick`, is the beginning of in `window`. A bad code takes no bits and goes on by HUFFMAN_BAD. */
huffman_entry huffman_rest(const struct huffman_ac *table, uint64_t window, huffman_entry part);

/* The value of the `size` bits at the top of `window`; F.2.2.1, EXTEND. */
static inline int huffman_value(uint64_t window, unsigned size)
{
    const unsigned bits = (unsigned)(window >> 1 >> (63 - size));
    const unsigned negative = (unsigned)(window >> 63) - 1; /* all ones where the first bit is 0 */
    return (int)(bits - (((1u << size) - 1) & negative));
}
