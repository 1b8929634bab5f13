/* Random regions of damaged JPEGs through the decoder, and random blocks through its IDCT, at every level.

   decode_cases COUNT SEED FILES    prints the levels, how many files were decoded, and a hash of what all of them gave

   Each case has a seed of its own, SEED and those above it. The program aborts, and says which it was, where two levels
   differ, something is written outside the region, a case takes too long, or a sanitizer has found something. FILES: of
   each file its length, the picture's width and height (32 bits each, in this machine's order) and its bytes. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <unistd.h>

#include "cases.h"
#include "idct.h"
#include "jpeg.h"

enum { MOST_FILES = 256, GUARD = 77, HEADERS = 700, MOST_S = 30 };

static struct file {
    uint32_t length, width_px, height_px;
    uint8_t *bytes;
} files[MOST_FILES];
static int files_count;
static volatile unsigned long long seed_now;
static unsigned long long decoded;

static void tell(int number)
{
    (void)number;
    fprintf(stderr, "seed %llu\n", seed_now);
}

static void end_it(int number)
{
    (void)number;
    fprintf(stderr, "it takes too long\n");
    abort();
}

static void read_files(const char *path)
{
    FILE *in = fopen(path, "rb");
    for (struct file *file = files; in && files_count < MOST_FILES; file++, files_count++) {
        if (fread(file, sizeof(uint32_t), 3, in) != 3)
            break;
        file->bytes = just(file->length);
        if (fread(file->bytes, 1, file->length, in) != file->length)
            break;
    }
    if (!files_count)
        exit(2);
}

/* --- damage ----------------------------------------------------------------------------------------------------- */

/* A place among the first `length` bytes, half of the time among the headers. */
static size_t somewhere(size_t length)
{
    const size_t most = below(2) && length > HEADERS ? HEADERS : length;
    return (size_t)below((int)most);
}

static void change_bytes(uint8_t *bytes, size_t length)
{
    for (int left = 1 + below(6); left; left--) {
        uint8_t *byte = bytes + somewhere(length);
        const uint8_t kinds[] = {(uint8_t)below(256), (uint8_t)(*byte ^ 1 << below(8)), 0xFF, 0,
                                 (uint8_t)(0xC0 + below(64))};
        *byte = kinds[below(5)];
    }
}

/* A span is left out, or written over another place. Returns the new length. */
static size_t move_bytes(uint8_t *bytes, size_t length)
{
    const size_t from = somewhere(length), size = 1 + (size_t)below(40), rest = length - from;
    const size_t span = size < rest ? size : rest;
    if (below(2)) {
        memmove(bytes + from, bytes + from + span, rest - span);
        return length - span;
    }
    const size_t to = somewhere(length);
    memmove(bytes + to, bytes + from, span < length - to ? span : length - to);
    return length;
}

/* A copy of a file, changed, in memory of just its size. */
static uint8_t *damaged(const struct file *file, size_t *length)
{
    uint8_t *bytes = just(file->length);
    memcpy(bytes, file->bytes, file->length);
    *length = file->length;
    const int kind = below(8);
    if (kind >= 1 && kind <= 5)
        change_bytes(bytes, *length);
    if (kind == 5 || kind == 6)
        *length = move_bytes(bytes, *length);
    if (kind == 7)
        *length = (size_t)below((int)*length);
    if (kind >= 6 && below(4) && *length >= 2) /* or it would be refused for that alone */
        memcpy(bytes + *length - 2, "\xFF\xD9", 2);
    uint8_t *exact = just(*length);
    memcpy(exact, bytes, *length);
    free(bytes);
    return exact;
}

/* --- cases ------------------------------------------------------------------------------------------------------ */

/* Has every level make what `job` says, in memory of that size; aborts where two differ. Whether they made it. */
static int at_every_level(int (*make)(const void *job, uint8_t *out), const void *job, size_t size, uint64_t *hash)
{
    uint8_t *first = NULL;
    int is_made = 0;
    for (int level = LEVEL_PLAIN; level <= LEVEL_NEON; level++) {
        if (!kernel_use((enum level)level))
            continue;
        uint8_t *out = just(size);
        memset(out, GUARD, size);
        const int also_made = make(job, out);
        if (first && (also_made != is_made || (is_made && memcmp(first, out, size))))
            abort();
        is_made = also_made;
        free(first);
        first = out;
    }
    *hash = hashed(*hash, first, is_made ? size : 0);
    free(first);
    return is_made;
}

struct region {
    const uint8_t *data;
    size_t length, stride, size; /* bytes of the file; from row to row; of all rows */
    int left, top, width, height, smooth;
};

/* Aborts where anything but pixels is written, or a pixel of a decoded region does not end in 255. */
static int decode(const void *job, uint8_t *out)
{
    const struct region *one = job;
    const int is_decoded = kernel_decode(one->data, one->length, one->left, one->top, one->width, one->height,
                                         one->smooth, out, one->stride) != 0;
    for (size_t at = 0; at < one->size; at++) {
        const int inside = at % one->stride < 4 * (size_t)one->width;
        if (inside ? is_decoded && at % 4 == 3 && out[at] != 255 : out[at] != GUARD)
            abort();
    }
    return is_decoded;
}

static void one_file(uint64_t *hash)
{
    const struct file *file = &files[below(files_count)];
    const int width_px = (int)file->width_px, height_px = (int)file->height_px;
    struct region job = {.width = 1 + below(width_px), .height = 1 + below(height_px), .smooth = below(2)};
    job.left = below(width_px - job.width + 1);
    job.top = below(height_px - job.height + 1);
    if (below(16) == 0) { /* anywhere */
        job.left = below(400) - 100;
        job.top = below(400) - 100;
    }
    job.stride = 4 * (size_t)(job.width + below(3));
    job.size = job.stride * (size_t)(job.height - 1) + 4 * (size_t)job.width;
    uint8_t *data = damaged(file, &job.length);
    job.data = data;
    decoded += (unsigned)at_every_level(decode, &job, job.size, hash);
    free(data);
}

struct block {
    _Alignas(64) int16_t coefficients[64];
    struct quantisation table;
    int last;
    size_t stride;
};

static int transform(const void *job, uint8_t *out)
{
    const struct block *one = job;
    return idct_for(kernel_level)(one->coefficients, &one->table, one->last, out, one->stride) != 0;
}

/* Coefficients from none to beyond all bounds, with steps of all sizes. */
static void one_block(uint64_t *hash)
{
    struct block job = {.last = below(64), .stride = 8 + (size_t)below(9)};
    const int most_step = (int[]){2, 20, 255}[below(3)], most = (int[]){2, 40, 1000, 1 << 15}[below(4)];
    uint8_t zigzag[64];
    for (int n = 0; n < 64; n++)
        zigzag[n] = (uint8_t)(1 + below(most_step));
    quantisation_fill(&job.table, zigzag);
    for (int n = 0; n <= job.last; n++)
        job.coefficients[coefficient_places[n]] = (int16_t)(below(3) ? below(2 * most) - most : 0);
    at_every_level(transform, &job, 7 * job.stride + 8, hash);
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    read_files(words[3]);
    signal(SIGABRT, tell);
    signal(SIGALRM, end_it);
    uint64_t hash = HASH_OF_NOTHING;
    const unsigned long long begins = strtoull(words[2], NULL, 10), cases = strtoull(words[1], NULL, 10);
    for (seed_now = begins; seed_now < begins + cases; seed_now++) {
        begin(seed_now);
        alarm(MOST_S);
        one_file(&hash);
        one_block(&hash);
    }
    for (int level = LEVEL_PLAIN; level <= LEVEL_NEON; level++)
        if (kernel_use((enum level)level))
            printf("%s ", LEVEL_NAMES[level]);
    printf("decoded %llu of %llu %016llx\n", decoded, cases, (unsigned long long)hash);
    return 0;
}
