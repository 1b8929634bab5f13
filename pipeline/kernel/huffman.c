#include "huffman.h"

#include <string.h>

static const huffman_entry LONG = (huffman_entry)HUFFMAN_PART << 24; /* the part of a code longer than AC_BITS */

static huffman_entry entry_of(unsigned bits, int value, unsigned step)
{
    return bits | ((unsigned)value & 0xFFFF) << 8 | step << 24;
}

/* By how much the index goes on; for ZRL, too: 15 zeroes and one more. */
static unsigned step_of(unsigned symbol)
{
    return symbol ? (symbol >> 4) + 1 : HUFFMAN_EOB;
}

/* The part that a code of `bits` bits is, as long as its value's bits are not known. */
static huffman_entry part_of(unsigned bits, unsigned symbol)
{
    return entry_of(0, (int)(bits << 4 | (symbol & 15)), HUFFMAN_PART | step_of(symbol));
}

unsigned huffman_read(const struct huffman_code *code, uint64_t window, unsigned *symbol)
{
    const unsigned start = (unsigned)(window >> 48);
    for (unsigned n = 1; n <= 16; n++)
        if (start < code->ends[n]) {
            *symbol = code->symbols[(int)(start >> (16 - n)) + code->offsets[n]];
            return n;
        }
    return 0;
}

huffman_entry huffman_rest(const struct huffman_ac *table, uint64_t window, huffman_entry part)
{
    if (part == LONG) {
        unsigned symbol;
        const unsigned bits = huffman_read(&table->code, window, &symbol);
        if (!bits)
            return entry_of(0, 0, HUFFMAN_BAD);
        part = part_of(bits, symbol);
    }
    const unsigned bits = part >> 12 & 31, size = part >> 8 & 15;
    return entry_of(bits + size, huffman_value(window << bits, size), part >> 24 & 127);
}

/* Sets the entries whose index starts with these bits. */
static void fill(huffman_entry *quick, unsigned start, unsigned bits, huffman_entry entry)
{
    const unsigned rest = AC_BITS - bits;
    for (unsigned i = 0; i < 1u << rest; i++)
        quick[(start << rest) + i] = entry;
}

/* Sets the entries of one code: with all its values where these fit, too. */
static void fill_code(huffman_entry *quick, unsigned code, unsigned bits, unsigned symbol)
{
    const unsigned size = symbol & 15;
    if (bits + size > AC_BITS) {
        fill(quick, code, bits, part_of(bits, symbol));
        return;
    }
    for (unsigned i = 0; i < 1u << size; i++) {
        const int value = huffman_value((uint64_t)i << 1 << (63 - size), size);
        fill(quick, code << size | i, bits + size, entry_of(bits + size, value, step_of(symbol)));
    }
}

/* The canonical code of T.81, C.2, as strict as libjpeg's. 0 if the definition is none. */
static int make_code(const struct huffman_definition *definition, struct huffman_code *code)
{
    unsigned next = 0;
    int index = 0;
    memcpy(code->symbols, definition->symbols, sizeof code->symbols);
    for (unsigned n = 1; n <= 16; n++) {
        code->offsets[n] = index - (int)(next <<= 1);
        next += definition->counts[n - 1];
        index += definition->counts[n - 1];
        if (next >= 1u << n)
            return 0;
        code->ends[n] = next << (16 - n);
    }
    return 1;
}

/* 0 for a category that T.81, table F.1, does not have. */
static int make_dc(const struct huffman_definition *definition, struct huffman_dc *table)
{
    for (int i = 0; i < 256; i++)
        if (definition->symbols[i] > 11)
            return 0;
    if (!make_code(definition, &table->code))
        return 0;
    for (unsigned i = 0; i < 1 << DC_BITS; i++) {
        unsigned symbol = 0;
        const unsigned bits = huffman_read(&table->code, (uint64_t)i << (64 - DC_BITS), &symbol);
        table->quick[i] = bits <= DC_BITS ? (uint8_t)(bits << 4 | symbol) : 0;
    }
    return 1;
}

/* 0 for a symbol that T.81, table F.2, does not have. */
static int make_ac(const struct huffman_definition *definition, struct huffman_ac *table)
{
    const uint8_t *symbol = definition->symbols;
    for (int i = 0; i < 256; i++)
        if ((symbol[i] & 15) > 10 || (!(symbol[i] & 15) && symbol[i] && symbol[i] != 0xF0))
            return 0;
    if (!make_code(definition, &table->code))
        return 0;
    fill(table->quick, 0, 0, LONG);
    unsigned code = 0;
    for (unsigned n = 1; n <= AC_BITS; n++, code <<= 1)
        for (int i = 0; i < definition->counts[n - 1]; i++)
            fill_code(table->quick, code++, n, *symbol++);
    return 1;
}

const struct huffman_tables *huffman_find(const struct huffman_definition definitions[2][2])
{
    static _Thread_local struct huffman_tables tables;
    static _Thread_local struct huffman_definition made_of[2][2];
    for (int i = 0; i < 4; i++) {
        const int is_ac = i >> 1, number = i & 1;
        const struct huffman_definition *definition = &definitions[is_ac][number];
        struct huffman_definition *made = &made_of[is_ac][number];
        if (!definition->is_there || !memcmp(made, definition, sizeof *made))
            continue;
        made->is_there = 0;
        if (!(is_ac ? make_ac(definition, &tables.ac[number]) : make_dc(definition, &tables.dc[number])))
            return NULL;
        *made = *definition;
    }
    return &tables;
}
