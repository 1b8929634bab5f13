/* Random regions through the kernel's filters, at every level: a hash of what each gave.

   resize_cases COUNT SEED    prints a line for each level, in which only the level's name may differ */
#include "cases.h"
#include "resize.h"

static int some_side(void)
{
    const int most[] = {3, 12, 40, 90, 300};
    return 1 + below(most[below(5)]);
}

static uint64_t one_case(uint64_t hash)
{
    const int channels = (int[]){1, 3, 4}[below(3)], planes = channels == 1, flip = below(2);
    const int antialias = below(2);
    struct region region = {.width_px = some_side(), .height_px = some_side(), .channels = channels};
    region.odd_left = planes && below(2);
    region.odd_top = planes && below(2);
    const int width = planes ? (region.odd_left + region.width_px + 1) & ~1 : region.width_px;
    const int height = planes ? (region.odd_top + region.height_px + 1) & ~1 : region.height_px;
    const int margin = planes ? 0 : below(4), stride = (width + margin) * channels;
    struct place place = {NULL, some_side(), some_side()};
    if (planes && !antialias) {
        place.width_px += place.width_px % 2;
        place.height_px += place.height_px % 2;
    }
    if (below(6) == 0 && (!planes || antialias)) {
        place.width_px = region.width_px;
        place.height_px = region.height_px;
    }
    /* nothing behind the last row's last pixel; the planes each for themselves */
    const size_t bytes = (size_t)stride * (size_t)height - (size_t)(margin * channels), quarter = (size_t)(width * height) / 4;
    uint8_t *pixels = just(bytes), *chroma[2] = {just(quarter), just(quarter)};
    const size_t out_bytes = 3 * (size_t)place.height_px * (size_t)place.width_px;
    place.pixels = just(out_bytes);
    memset(place.pixels, 0, out_bytes);
    const int extreme = below(4) == 0;
    for (size_t n = 0; n < bytes; n++)
        pixels[n] = (uint8_t)(extreme ? 255 * below(2) : below(256));
    for (size_t n = 0; n < 2 * quarter; n++)
        chroma[n % 2][n / 2] = (uint8_t)below(256);
    region.pixels = pixels;
    region.stride_bytes = stride;
    if (planes) {
        region.u = chroma[0];
        region.v = chroma[1];
    }
    float box[4] = {0, 0, (float)region.width_px, (float)region.height_px};
    if (below(2)) {
        box[0] = (float)below(region.width_px) + (float)below(8) / 8;
        box[1] = (float)below(region.height_px) + (float)below(8) / 8;
    }
    struct arena arena = {0};
    if (!resize_region(region, &arena, antialias ? box : NULL, flip, &place))
        abort();
    arena_free(&arena);
    hash = hashed(hash, place.pixels, out_bytes);
    free(pixels);
    free(chroma[0]);
    free(chroma[1]);
    free(place.pixels);
    return hash;
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    for (int level = LEVEL_PLAIN; level <= LEVEL_NEON; level++) {
        if (!kernel_use((enum level)level))
            continue;
        begin(strtoull(words[2], NULL, 10));
        uint64_t hash = HASH_OF_NOTHING;
        for (int n = 0; n < atoi(words[1]); n++)
            hash = one_case(hash);
        printf("%s %016llx\n", LEVEL_NAMES[level], (unsigned long long)hash);
    }
    return 0;
}
