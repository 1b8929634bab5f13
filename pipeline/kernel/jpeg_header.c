/* The marker segments of T.81, annex B, read more strictly than libjpeg does: what it would warn of, mend or guess
 * is refused, so that whatever is accepted can only mean one thing. */
#include "jpeg_header.h"

#include <string.h>

enum { MOST_PX = 178956970, MOST_SIDE_PX = 65500 }; /* crop_jpeg.MOST_PX, libjpeg's JPEG_MAX_DIMENSION */

enum marker { SOF0 = 0xC0, SOF1, DHT = 0xC4, RST0 = 0xD0, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD, APP0 = 0xE0, APP14 = 0xEE,
              APP15, COM = 0xFE };

struct segment {
    const uint8_t *bytes; /* behind the length */
    size_t size;
};

static int read_16(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* B.2.4.1; values of 16 bits belong to 12-bit pictures. */
static int read_quantisation(struct segment segment, struct jpeg_header *header)
{
    for (; segment.size >= 65; segment.bytes += 65, segment.size -= 65) {
        if (segment.bytes[0] > 3 || memchr(segment.bytes + 1, 0, 64)) return 0;
        memcpy(header->quantisation[segment.bytes[0]], segment.bytes + 1, 64);
    }
    return segment.size == 0;
}

/* B.2.4.2 */
static int read_huffman(struct segment segment, struct jpeg_header *header)
{
    while (segment.size >= 17) {
        size_t symbols = 0;
        for (int i = 1; i <= 16; i++) symbols += segment.bytes[i];
        if ((segment.bytes[0] & ~0x11) || symbols > 256 || symbols > segment.size - 17) return 0;
        struct huffman_definition *definition = &header->huffman[segment.bytes[0] >> 4][segment.bytes[0] & 1];
        *definition = (struct huffman_definition){.is_there = 1};
        memcpy(definition->counts, segment.bytes + 1, 16);
        memcpy(definition->symbols, segment.bytes + 17, symbols);
        segment.bytes += 17 + symbols;
        segment.size -= 17 + symbols;
    }
    return segment.size == 0;
}

/* B.2.2: luma with 2 × 2 samples to one of chroma, or 1 × 1. */
static int read_frame(struct segment segment, struct jpeg_header *header)
{
    const uint8_t *bytes = segment.bytes;
    if (header->width_px || segment.size != 6 + 3 * COMPONENTS || bytes[0] != 8 || bytes[5] != COMPONENTS) return 0;
    header->height_px = read_16(bytes + 1);
    header->width_px = read_16(bytes + 3);
    if (!header->height_px || !header->width_px || header->height_px > MOST_SIDE_PX ||
        header->width_px > MOST_SIDE_PX || header->height_px > MOST_PX / header->width_px)
        return 0;
    for (int i = 0; i < COMPONENTS; i++) {
        const uint8_t *component = bytes + 6 + 3 * i;
        if (component[1] != 0x11 && (i || component[1] != 0x22)) return 0;
        if (component[2] > 3) return 0;
        header->components[i].id = component[0];
        header->components[i].quantisation = component[2];
    }
    header->subsampling = bytes[7] >> 4;
    return 1;
}

/* B.2.3: all components, in the frame's order. */
static int read_scan(struct segment segment, struct jpeg_header *header)
{
    const uint8_t *bytes = segment.bytes;
    if (!header->width_px || segment.size != 4 + 2 * COMPONENTS || bytes[0] != COMPONENTS) return 0;
    for (int i = 0; i < COMPONENTS; i++) {
        struct jpeg_component *component = &header->components[i];
        const uint8_t *chosen = bytes + 1 + 2 * i;
        if (chosen[0] != component->id || (chosen[1] & ~0x11)) return 0;
        component->dc = chosen[1] >> 4;
        component->ac = chosen[1] & 1;
        if (!header->quantisation[component->quantisation][0]) return 0;
        if (!header->huffman[0][component->dc].is_there || !header->huffman[1][component->ac].is_there) return 0;
    }
    return !memcmp(bytes + 1 + 2 * COMPONENTS, "\0\x3f", 3);
}

/* What libjpeg's default_decompress_parms takes for YCbCr: a JFIF marker, else an Adobe marker that says so, else
 * components that are not called R, G, B. Called the same twice they would be told apart by guesswork. */
static int is_ycbcr(const struct jpeg_header *header, int says_jfif, int says_adobe)
{
    const int a = header->components[0].id, b = header->components[1].id, c = header->components[2].id;
    if (a == b || b == c || a == c) return 0;
    return says_jfif || says_adobe || !(a == 'R' && b == 'G' && c == 'B');
}

int jpeg_header_read(const uint8_t *data, size_t length, struct jpeg_header *header)
{
    int says_jfif = 0, says_adobe = 0;
    memset(header, 0, sizeof *header);
    if (length < 4 || data[0] != 0xFF || data[1] != SOI) return 0;
    for (size_t at = 2; length - at >= 4;) {
        const int marker = data[at + 1];
        const size_t size = (size_t)read_16(data + at + 2);
        const struct segment segment = {data + at + 4, size - 2};
        if (data[at] != 0xFF || size < 2 || size > length - at - 2) return 0;
        at += 2 + size;
        if (marker == SOS) {
            header->scan_at = at;
            return read_scan(segment, header) && is_ycbcr(header, says_jfif, says_adobe);
        } else if (marker == SOF0 || marker == SOF1) {
            if (!read_frame(segment, header)) return 0;
        } else if (marker == DHT) {
            if (!read_huffman(segment, header)) return 0;
        } else if (marker == DQT) {
            if (!read_quantisation(segment, header)) return 0;
        } else if (marker == DRI) {
            if (segment.size != 2) return 0;
            header->interval_mcus = (size_t)read_16(segment.bytes);
        } else if (marker == APP0 && segment.size >= 14 && !memcmp(segment.bytes, "JFIF", 5)) {
            if (segment.bytes[5] != 1) return 0;
            says_jfif = 1;
        } else if (marker == APP14 && segment.size >= 12 && !memcmp(segment.bytes, "Adobe", 5)) {
            if (segment.bytes[11] != 1) return 0;
            says_adobe = 1;
        } else if (marker != COM && (marker < APP0 || marker > APP15)) {
            return 0;
        }
    }
    return 0;
}
