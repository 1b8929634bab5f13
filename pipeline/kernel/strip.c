#include "strip.h"

#include <string.h>

enum { MARGIN = COLOUR_OVERREAD };

static ptrdiff_t least(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

/* From pixels to chroma samples, one way; the picture has `size` of these. */
static void to_chroma(enum chroma chroma, ptrdiff_t size, ptrdiff_t *begin, ptrdiff_t *end)
{
    if (chroma == CHROMA_SHARED) {
        *begin /= 2;
        *end = (*end + 1) / 2;
    } else if (chroma == CHROMA_SMOOTH) { /* for even pixels also the sample before, for odd ones the one behind */
        *begin = *begin > 0 ? (*begin - 1) / 2 : 0;
        *end = least(*end / 2 + 1, size);
    }
}

/* Memory for the samples, 0 at first: also what is not needed is read. */
static int open_plane(struct plane *plane, ptrdiff_t mcus, struct arena *arena)
{
    plane->stride = mcus * plane->side + 2 * MARGIN;
    const size_t bytes = (size_t)(plane->stride * (1 + plane->side));
    uint8_t *memory = arena_take(arena, bytes);
    if (!memory)
        return 0;
    memset(memory, 0, bytes);
    plane->samples = memory + plane->stride + MARGIN;
    return 1;
}

int strip_open(struct strip *strip, const struct jpeg_header *header, struct box pixels, int smooth,
               struct arena *arena)
{
    const ptrdiff_t factor = header->subsampling, width = (header->width_px + factor - 1) / factor;
    const size_t spare_px = (size_t)(pixels.right - pixels.left) + 2 * COLOUR_GROUP;
    struct box chroma = pixels;
    strip->factor = factor;
    strip->chroma_height = (header->height_px + factor - 1) / factor;
    strip->chroma = factor == 1 ? CHROMA_OWN : smooth && width > 2 ? CHROMA_SMOOTH : CHROMA_SHARED; /* as jdsample.c */
    to_chroma(strip->chroma, width, &chroma.left, &chroma.right);
    to_chroma(strip->chroma, strip->chroma_height, &chroma.top, &chroma.bottom);
    strip->pixels = pixels;
    strip->mcus = (struct box){chroma.left / 8, chroma.top / 8, (chroma.right + 7) / 8, (chroma.bottom + 7) / 8};
    strip->next_y = pixels.top;
    strip->idct = idct_for(kernel_level);
    strip->colour = colour_for(kernel_level);
    strip->scratch = arena_take(arena, colour_scratch_bytes(spare_px));
    strip->spare_RGBX = arena_take(arena, 4 * spare_px);
    int is_open = strip->scratch && strip->spare_RGBX;
    for (int i = 0; i < COMPONENTS; i++) {
        struct plane *plane = &strip->planes[i];
        plane->needed = i ? chroma : pixels;
        plane->side = i ? 8 : 8 * factor;
        quantisation_fill(&plane->quantisation, header->quantisation[header->components[i].quantisation]);
        is_open = is_open && open_plane(plane, strip->mcus.right - strip->mcus.left, arena);
    }
    return is_open;
}

void strip_go_to(struct strip *strip, ptrdiff_t row)
{
    for (int i = 0; i < COMPONENTS; i++) {
        struct plane *plane = &strip->planes[i];
        uint8_t *above = plane->samples - plane->stride - MARGIN;
        memcpy(above, above + plane->side * plane->stride, (size_t)plane->stride);
    }
    strip->row = row;
}

/* One block, at this place among the component's blocks of the MCU. */
static int put_block(struct strip *strip, struct plane *plane, ptrdiff_t column, ptrdiff_t across, ptrdiff_t down,
                     int16_t *coefficients, int last)
{
    const ptrdiff_t x = column * plane->side + 8 * across, y = strip->row * plane->side + 8 * down;
    const struct box *needed = &plane->needed;
    if (x >= needed->right || x + 8 <= needed->left || y >= needed->bottom || y + 8 <= needed->top)
        return 1;
    uint8_t *out = plane->samples + 8 * down * plane->stride + (x - strip->mcus.left * plane->side);
    return strip->idct(coefficients, &plane->quantisation, last, out, (size_t)plane->stride);
}

int strip_put(struct strip *strip, ptrdiff_t column, struct mcu *mcu)
{
    int block = 0, is_good = 1;
    for (int i = 0; i < COMPONENTS; i++) {
        const ptrdiff_t blocks = strip->planes[i].side / 8;
        for (ptrdiff_t k = 0; k < blocks * blocks; k++, block++)
            is_good &= put_block(strip, &strip->planes[i], column, k & (blocks - 1), k >> (blocks - 1), mcu->blocks[block],
                                 mcu->last[block]);
    }
    memset(mcu->blocks, 0, (size_t)block * sizeof mcu->blocks[0]);
    return is_good;
}

/* Repeats the outermost samples of chroma on both sides: where the picture goes on, nobody needs what is overwritten. */
static void repeat_edges(const struct strip *strip, struct plane *plane)
{
    for (ptrdiff_t row = 0; row < plane->side; row++) {
        uint8_t *first = plane->samples + row * plane->stride + (plane->needed.left - strip->mcus.left * plane->side);
        uint8_t *last = first + (plane->needed.right - plane->needed.left) - 1;
        first[-1] = first[0];
        last[1] = last[0];
    }
}

/* A sample of a row that is in the strip or just above it. */
static const uint8_t *sample(const struct strip *strip, const struct plane *plane, ptrdiff_t x, ptrdiff_t y)
{
    return plane->samples + (y - strip->row * plane->side) * plane->stride + (x - strip->mcus.left * plane->side);
}

/* Converts `width` pixels, in whole groups, from an even place on. */
static void convert(const struct strip *strip, ptrdiff_t x, ptrdiff_t y, ptrdiff_t width, uint8_t *out_RGBX)
{
    const ptrdiff_t near = y / strip->factor, next = y % 2 ? near + 1 : near - 1;
    const ptrdiff_t far = next < 0 ? 0 : least(next, strip->chroma_height - 1); /* edges repeated, as in jdmainct.c */
    struct sample_rows rows = {.luma = sample(strip, &strip->planes[0], x, y)};
    for (int i = 0; i < 2; i++) {
        rows.near[i] = sample(strip, &strip->planes[1 + i], x / strip->factor, near);
        if (strip->chroma == CHROMA_SMOOTH)
            rows.far[i] = sample(strip, &strip->planes[1 + i], x / strip->factor, far);
    }
    strip->colour(&rows, strip->chroma, (size_t)width, strip->scratch, out_RGBX);
}

/* One row of pixels: whole groups directly, the rest, or what starts at an odd place, through a spare row. */
static void write_row(const struct strip *strip, ptrdiff_t y, uint8_t *out_RGBX)
{
    const ptrdiff_t width = strip->pixels.right - strip->pixels.left, odd = strip->pixels.left % strip->factor;
    const ptrdiff_t direct = odd ? 0 : width - width % COLOUR_GROUP, left = strip->pixels.left - odd;
    if (direct)
        convert(strip, left, y, direct, out_RGBX);
    if (direct == width)
        return;
    convert(strip, left + direct, y, odd + width - direct, strip->spare_RGBX);
    memcpy(out_RGBX + 4 * direct, strip->spare_RGBX + 4 * odd, (size_t)(4 * (width - direct)));
}

void strip_write(struct strip *strip, uint8_t *out_RGBX, size_t out_stride_bytes)
{
    ptrdiff_t end = (strip->row + 1) * strip->planes[0].side;
    if (strip->chroma == CHROMA_SMOOTH) {
        repeat_edges(strip, &strip->planes[1]);
        repeat_edges(strip, &strip->planes[2]);
        if ((strip->row + 1) * 8 < strip->chroma_height)
            end--; /* its far row is in the next strip */
    }
    for (end = least(end, strip->pixels.bottom); strip->next_y < end; strip->next_y++)
        write_row(strip, strip->next_y, out_RGBX + (size_t)(strip->next_y - strip->pixels.top) * out_stride_bytes);
}
