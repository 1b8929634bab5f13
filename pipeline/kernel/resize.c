#include "resize.h"

#include <string.h>

#include "rows.h"
#include "yuv.h"

struct scaler {
    struct region source; /* interleaved pixels or one plane */
    struct across across;
    struct taps down;
    int slots, next;    /* pairs of filtered rows that are kept, in turn; the first that was not filtered yet */
    int16_t *kept;
    struct pair *pairs; /* of the output row at hand */
    uint8_t *four;      /* an output row before the fourth byte of each pixel is dropped */
};

/* `box` as in `resize_region`. 0 where memory ran out. */
static int open_scaler(struct scaler *scaler, struct arena *arena, const float *box, int flip, int width, int height)
{
    const struct region *source = &scaler->source;
    struct across *across = &scaler->across;
    *across = (struct across){.antialias = box != NULL, .channels = source->channels, .flip = flip};
    if (!(box ? taps_pillow(&across->taps, arena, source->width_px, box[0], box[2], width) &&
                    taps_pillow(&scaler->down, arena, source->height_px, box[1], box[3], height)
              : taps_plain(&across->taps, arena, source->width_px, width, 1) &&
                    taps_plain(&scaler->down, arena, source->height_px, height, 0)) ||
        !across_prepare(across, arena, source->width_px))
        return 0;
    scaler->slots = box ? scaler->down.width / 2 + 2 : 2;
    scaler->kept = arena_take(arena, 2 * sizeof(int16_t) * (size_t)scaler->slots * (size_t)across->padded);
    scaler->pairs = arena_take(arena, sizeof(struct pair) * (size_t)scaler->slots);
    scaler->four = arena_take(arena, (size_t)across->padded);
    return scaler->kept && scaler->pairs && scaler->four;
}

/* Rows 2 * number and 2 * number + 1, filtered across; the last one of an odd number takes both places. */
static const int16_t *filtered_pair(struct scaler *scaler, int number)
{
    const struct region *source = &scaler->source;
    int16_t *kept = scaler->kept + (size_t)(number % scaler->slots) * 2 * (size_t)scaler->across.padded;
    if (number >= scaler->next) {
        const uint8_t *even = source->pixels + 2 * number * source->stride_bytes;
        const int is_last = 2 * number + 1 == source->height_px;
        for (int row = 2 * number + 4; row < 2 * number + 6 && row < source->height_px; row++)
            for (int at = 0; at < source->width_px * source->channels; at += 64)
                __builtin_prefetch(source->pixels + row * source->stride_bytes + at);
        across_pair(&scaler->across, even, is_last ? even : even + source->stride_bytes, kept);
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

/* The region as it is, I420 (which ends at even places) converted. */
static void copy(const struct region *region, const struct place *place)
{
    const ptrdiff_t stride = region->stride_bytes, row_bytes = 3 * (ptrdiff_t)place->width_px;
    for (int row = 0; row < place->height_px; row += region->u ? 2 : 1) {
        const uint8_t *pixels = region->pixels + row * stride;
        const ptrdiff_t chroma = row / 2 * (stride / 2);
        uint8_t *out = place->pixels + row * row_bytes;
        if (region->u)
            yuv_rows(pixels, stride, region->u + chroma, region->v + chroma, place->width_px, out);
        else if (region->channels == 4)
            three_of_four(pixels, place->width_px, out);
        else
            memcpy(out, pixels, (size_t)row_bytes);
    }
}

/* An I420 region, grown to even places, each plane resized as it is. */
static int resize_planes(const struct region *grown, struct arena *arena, int flip, const struct place *place)
{
    const ptrdiff_t width = place->width_px;
    struct scaler scalers[3] = {{.source.pixels = grown->u}, {.source.pixels = grown->v}, {.source.pixels = grown->pixels}};
    uint8_t *rows = arena_take(arena, 4 * (size_t)width); /* U, V and two of Y */
    for (int n = 0; n < 3; n++) {
        const int share = n < 2 ? 2 : 1;
        scalers[n].source.stride_bytes = grown->stride_bytes / share;
        scalers[n].source.width_px = grown->width_px / share;
        scalers[n].source.height_px = grown->height_px / share;
        scalers[n].source.channels = 1;
        if (!rows || !open_scaler(&scalers[n], arena, NULL, flip, place->width_px / share, place->height_px / share))
            return 0;
    }
    for (int row = 0; row < place->height_px; row += 2) {
        for (int n = 0; n < 4; n++)
            scaled_row(&scalers[n < 2 ? n : 2], n < 2 ? row / 2 : row + n - 2, rows + n * width);
        yuv_rows(rows + 2 * width, width, rows, rows + width, place->width_px, place->pixels + 3 * row * width);
    }
    return 1;
}

int resize_region(struct region region, struct arena *arena, const float box[4], int flip, const struct place *place)
{
    struct region grown = region;
    if (region.u) { /* luma and chroma must show the same */
        grown.width_px = (region.odd_left + region.width_px + 1) & ~1;
        grown.height_px = (region.odd_top + region.height_px + 1) & ~1;
    }
    if (!box && !flip && grown.width_px == place->width_px && grown.height_px == place->height_px) {
        copy(&grown, place);
        return 1;
    }
    if (!box && region.u)
        return resize_planes(&grown, arena, flip, place);
    struct scaler scaler = {.source = region};
    if (region.u) { /* as RGB from here on */
        const ptrdiff_t stride = 3 * (ptrdiff_t)grown.width_px;
        uint8_t *pixels = arena_take(arena, (size_t)stride * (size_t)grown.height_px);
        if (!pixels)
            return 0;
        copy(&grown, &(struct place){pixels, grown.width_px, grown.height_px});
        scaler.source.pixels = pixels + region.odd_top * stride + 3 * region.odd_left;
        scaler.source.stride_bytes = stride;
        scaler.source.channels = 3;
    }
    if (!open_scaler(&scaler, arena, box, flip, place->width_px, place->height_px))
        return 0;
    for (int row = 0; row < place->height_px; row++)
        scaled_row(&scaler, row, place->pixels + 3 * row * (ptrdiff_t)place->width_px);
    return 1;
}
