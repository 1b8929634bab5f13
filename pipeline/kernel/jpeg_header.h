/* What stands in a JPEG before its scan. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "huffman.h"

enum { COMPONENTS = 3 };

struct jpeg_component {
    uint8_t id, quantisation, dc, ac; /* numbers of its tables */
};

struct jpeg_header {
    int width_px, height_px;
    int subsampling; /* pixels to a chroma sample, each way: 2 (4:2:0) or 1 (4:4:4) */
    struct jpeg_component components[COMPONENTS];
    uint8_t quantisation[4][64];               /* zigzag; a table that was not defined has zeroes */
    struct huffman_definition huffman[2][2]; /* DC, AC */
    size_t interval_mcus;                      /* 0: no restart markers */
    size_t scan_at;                            /* where the entropy-coded data starts */
};

/* Reads the marker segments up to the scan. 0 for anything but a file that `kernel_decode` handles; tables may still
 * be no Huffman code (`huffman_find` says). */
int jpeg_header_read(const uint8_t *data, size_t length, struct jpeg_header *header);

/* How many MCUs (T.81, A.2) make up a width or a height. */
static inline size_t jpeg_mcus(int size_px, const struct jpeg_header *header)
{
    const size_t side_px = 8 * (size_t)header->subsampling;
    return ((size_t)size_px + side_px - 1) / side_px;
}
