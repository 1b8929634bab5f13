#include "resize.h"

#include <string.h>

#include "levels.h"
#include "rows.h"
#include "yuv.h"

/* --- one picture or plane, filtered row by row ------------------------------------------------------------------ */

struct scaler {
    struct region source; /* interleaved pixels or one plane */
    struct across across;
    struct taps down;
    int slots, next;    /* pairs of filtered rows that are kept, in turn; the first that was not filtered yet */
    int16_t *kept;
    struct pair *pairs; /* of the output row at hand */
    uint8_t *four;      /* an output row before the fourth byte of each pixel is dropped */
};

/* 0 where memory ran out. */
static int open_scaler(struct scaler *scaler, struct arena *arena, int antialias, const float box[4], int flip,
                       int width, int height)
{
    const struct region *source = &scaler->source;
    struct across *across = &scaler->across;
    across->antialias = antialias;
    across->channels = source->channels;
    across->flip = flip;
    if (!(antialias ? taps_pillow(&across->taps, arena, source->width_px, box[0], box[2], width) &&
                          taps_pillow(&scaler->down, arena, source->height_px, box[1], box[3], height)
                    : taps_plain(&across->taps, arena, source->width_px, width, 1) &&
                          taps_plain(&scaler->down, arena, source->height_px, height, 0)) ||
        !across_prepare(across, arena, source->width_px))
        return 0;
    scaler->slots = antialias ? scaler->down.width / 2 + 2 : 2;
    const size_t slots = (size_t)scaler->slots, padded = (size_t)across->padded;
    scaler->kept = arena_take(arena, 2 * sizeof(int16_t) * slots * padded);
    scaler->pairs = arena_take(arena, sizeof(struct pair) * slots);
    scaler->four = arena_take(arena, padded);
    return scaler->kept && scaler->pairs && scaler->four;
}

/* Rows 2 * number and 2 * number + 1, filtered across; the last one of an odd number takes both places. */
static const int16_t *filtered_pair(struct scaler *scaler, int number)
{
    int16_t *kept = scaler->kept + (size_t)(number % scaler->slots) * 2 * (size_t)scaler->across.padded;
    if (number >= scaler->next) {
        const uint8_t *even = scaler->source.pixels + 2 * number * scaler->source.stride_bytes;
        const int last = 2 * number + 1 == scaler->source.height_px;
        for (int row = 2 * number + 4; row < 2 * number + 6 && row < scaler->source.height_px; row++)
            for (int at = 0; at < scaler->source.width_px * scaler->source.channels; at += 64)
                __builtin_prefetch(scaler->source.pixels + row * scaler->source.stride_bytes + at);
        across_pair(&scaler->across, even, last ? even : even + scaler->source.stride_bytes, kept);
        scaler->next = number + 1;
    }
    return kept;
}

static const int16_t *filtered_row(struct scaler *scaler, int number)
{
    return filtered_pair(scaler, number / 2) + number % 2 * scaler->across.padded;
}

/* The pairs of rows that weigh anything in output row `number`; returns how many. Pairs between them are filtered too:
   a later row may want them. */
static int gathered(struct scaler *scaler, int number)
{
    const int width = scaler->down.width, first = scaler->down.first[number];
    const int32_t *weights = scaler->down.weights + (size_t)number * (size_t)width;
    int count = 0;
    for (int even = first & ~1; even < first + width; even += 2) {
        const int32_t one = even < first ? 0 : weights[even - first];
        const int32_t other = even + 1 < first + width ? weights[even + 1 - first] : 0;
        scaler->pairs[count] = pair_of(filtered_pair(scaler, even / 2), one, other);
        count += one || other;
    }
    return count;
}

/* Output row `number`; they are asked for in order. */
static void scaled_row(struct scaler *scaler, int number, uint8_t *out)
{
    const struct across *across = &scaler->across;
    const int drops = across->values != across->taps.outputs * across->colours;
    uint8_t *to = drops ? scaler->four : out;
    if (across->antialias) {
        down_pillow(scaler->pairs, gathered(scaler, number), across->values, to);
    } else {
        const int first = scaler->down.first[number], last = scaler->source.height_px - 1;
        const int16_t *a = filtered_row(scaler, first < 0 ? 0 : first);
        const int16_t *b = filtered_row(scaler, first < last ? first + 1 : last);
        down_plain(a, b, scaler->down.weights + 2 * (size_t)number, across->values, to);
    }
    if (drops)
        three_of_four(scaler->four, across->taps.outputs, out);
}

/* --- whole regions ---------------------------------------------------------------------------------------------- */

static uint8_t *row_of(const struct place *place, int row)
{
    return place->pixels + row * place->stride_bytes;
}

static void convert_rows(const uint8_t *const y[2], const uint8_t *u, const uint8_t *v, const struct place *place,
                         int row)
{
    uint8_t *const out_rgb[2] = {row_of(place, row), row_of(place, row + 1)};
    yuv_rows(y, u, v, place->width_px, out_rgb);
}

/* The region as it is, I420 (which ends at even places) converted. */
static void copy(const struct region *region, const struct place *place)
{
    for (int row = 0; row < place->height_px; row += region->u ? 2 : 1) {
        const uint8_t *pixels = region->pixels + row * region->stride_bytes;
        const ptrdiff_t chroma = row / 2 * region->chroma_stride_bytes;
        const uint8_t *const luma[2] = {pixels, pixels + region->stride_bytes};
        if (region->u)
            convert_rows(luma, region->u + chroma, region->v + chroma, place, row);
        else if (region->channels == 4)
            three_of_four(pixels, place->width_px, row_of(place, row));
        else
            memcpy(row_of(place, row), pixels, 3 * (size_t)place->width_px);
    }
}

/* An I420 region, grown to even places, each plane resized as it is. */
static int resize_planes(const struct region *grown, struct arena *arena, int flip, const struct place *place)
{
    struct scaler scalers[3] = {0};
    uint8_t *rows[4]; /* U, V and two of Y */
    for (int row = 0; row < 4; row++)
        if (!(rows[row] = arena_take(arena, (size_t)place->width_px)))
            return 0;
    for (int plane = 0; plane < 3; plane++) {
        struct region *source = &scalers[plane].source;
        const int share = plane < 2 ? 2 : 1;
        source->pixels = plane == 0 ? grown->u : plane == 1 ? grown->v : grown->pixels;
        source->stride_bytes = plane < 2 ? grown->chroma_stride_bytes : grown->stride_bytes;
        source->width_px = grown->width_px / share;
        source->height_px = grown->height_px / share;
        source->channels = 1;
        if (!open_scaler(&scalers[plane], arena, 0, NULL, flip, place->width_px / share,
                         place->height_px / share))
            return 0;
    }
    for (int row = 0; row < place->height_px; row += 2) {
        for (int n = 0; n < 4; n++)
            scaled_row(&scalers[n < 2 ? n : 2], n < 2 ? row / 2 : row + n - 2, rows[n]);
        convert_rows((const uint8_t *const[2]){rows[2], rows[3]}, rows[0], rows[1], place, row);
    }
    return 1;
}

/* The grown I420 region as RGB pixels, and those of the region itself. */
static int convert(const struct region *grown, struct arena *arena, struct region *region)
{
    const ptrdiff_t stride = 3 * (ptrdiff_t)grown->width_px;
    uint8_t *pixels = arena_take(arena, (size_t)stride * (size_t)grown->height_px);
    if (!pixels)
        return 0;
    copy(grown, &(struct place){pixels, stride, grown->width_px, grown->height_px});
    *region = (struct region){pixels + region->odd_top * stride + 3 * region->odd_left, stride, region->width_px,
                              region->height_px, .channels = 3};
    return 1;
}

static int resize_in(struct arena *arena, struct region region, int antialias, const float box[4], int flip,
                     const struct place *place)
{
    struct region grown = region;
    if (region.u) { /* luma and chroma must show the same */
        grown.width_px = (region.odd_left + region.width_px + 1) & ~1;
        grown.height_px = (region.odd_top + region.height_px + 1) & ~1;
    }
    if (!antialias && !flip && grown.width_px == place->width_px && grown.height_px == place->height_px) {
        copy(&grown, place);
        return 1;
    }
    if (!antialias && region.u)
        return resize_planes(&grown, arena, flip, place);
    struct scaler scaler = {0};
    if (region.u && !convert(&grown, arena, &region))
        return 0;
    scaler.source = region;
    if (!open_scaler(&scaler, arena, antialias, box, flip, place->width_px, place->height_px))
        return 0;
    for (int row = 0; row < place->height_px; row++)
        scaled_row(&scaler, row, row_of(place, row));
    return 1;
}

int resize_region(const struct region *region, int antialias, const float box[4], int flip, const struct place *place)
{
    struct arena arena = {0};
    const int done = resize_in(&arena, *region, antialias, box, flip, place);
    arena_free(&arena);
    return done;
}
