#include "reader.h"

#include <string.h>

enum { RST0 = 0xD0, EOI = 0xD9, MARKER_BYTES = 2 };

/* Where intervals `first` to `last` start, and what is behind the last; 0 unless the scan has `count` of them. */
static int find_starts(const uint8_t *data, size_t length, size_t scan_at, size_t count, size_t first, size_t last,
                       size_t *starts)
{
    if (first == 0)
        starts[0] = scan_at;
    for (size_t at = scan_at, begun = 1;;) {
        const uint8_t *mark = memchr(data + at, 0xFF, length - at);
        if (!mark || mark + 1 == data + length)
            return 0;
        at = (size_t)(mark - data) + MARKER_BYTES;
        if (mark[1] == 0) /* a byte 0xFF of the picture: F.1.2.3 */
            continue;
        if (begun >= first && begun <= last + 1)
            starts[begun - first] = at;
        if (begun == count)
            return mark[1] == EOI;
        if (mark[1] != RST0 + (begun - 1) % 8)
            return 0;
        begun++;
    }
}

int scan_open(struct scan *scan, const uint8_t *data, size_t length, const struct jpeg_header *header, size_t first,
              size_t last, struct arena *arena)
{
    scan->data = data;
    scan->length = length;
    scan->mcus = jpeg_mcus(header->width_px, header) * jpeg_mcus(header->height_px, header);
    scan->interval_mcus = header->interval_mcus;
    if (scan->interval_mcus == 0 || scan->interval_mcus > scan->mcus)
        scan->interval_mcus = scan->mcus;
    const size_t count = (scan->mcus - 1) / scan->interval_mcus + 1;
    if (count > length / MARKER_BYTES) /* each has a marker behind it */
        return 0;
    first /= scan->interval_mcus;
    last /= scan->interval_mcus;
    scan->first_interval = first;
    scan->starts = arena_take(arena, (last - first + 2) * sizeof *scan->starts);
    if (!scan->starts || !find_starts(data, length, header->scan_at, count, first, last, scan->starts))
        return 0;
    for (size_t i = 0; i <= last - first; i++)
        if (scan->starts[i + 1] - scan->starts[i] > scan->most_bytes)
            scan->most_bytes = scan->starts[i + 1] - scan->starts[i];
    return 1;
}

int reader_open(struct reader *reader, const struct scan *scan, struct arena *arena)
{
    reader->bytes = arena_take(arena, scan->most_bytes + ENTROPY_OVERREAD);
    return reader->bytes != NULL;
}

/* Copies bytes without the zeroes that are stuffed behind bytes 0xFF; how many that gives. */
static size_t unstuff(const uint8_t *from, const uint8_t *end, uint8_t *out)
{
    uint8_t *to = out;
    while (from < end) {
        const uint8_t *mark = memchr(from, 0xFF, (size_t)(end - from));
        const size_t size = mark ? (size_t)(mark - from) + 1 : (size_t)(end - from);
        memcpy(to, from, size);
        to += size;
        from += size + (mark != NULL);
    }
    return (size_t)(to - out);
}

/* Most intervals have no byte 0xFF: these are read where they are, unless they end too near to the file's end. */
static void start_interval(struct reader *reader, const struct scan *scan, size_t number)
{
    const size_t *start = scan->starts + (number - scan->first_interval);
    const uint8_t *bytes = scan->data + start[0];
    size_t size = start[1] - start[0] - MARKER_BYTES;
    if (scan->length - start[1] < ENTROPY_OVERREAD || memchr(bytes, 0xFF, size)) {
        size = unstuff(bytes, bytes + size, reader->bytes);
        memset(reader->bytes + size, 0, ENTROPY_OVERREAD);
        bytes = reader->bytes;
    }
    reader->stream = (struct bit_stream){.next = bytes, .end = bytes + size};
    reader->mcu = number * scan->interval_mcus;
    reader->end = reader->mcu + scan->interval_mcus < scan->mcus ? reader->mcu + scan->interval_mcus : scan->mcus;
}

/* An MCU has been read. 0 if it was its interval's last and more than the bits that fill a byte is left of that. */
static int went_on(struct reader *reader)
{
    return ++reader->mcu < reader->end || bit_stream_left(&reader->stream) < 8;
}

/* Makes this MCU the next. */
static int go_to(struct reader *reader, const struct scan *scan, size_t number)
{
    struct mcu skipped;
    if (number < reader->mcu || number >= reader->end)
        start_interval(reader, scan, number / scan->interval_mcus);
    while (reader->mcu < number)
        if (!scan->entropy.one(&reader->stream, &scan->layout, &skipped) || !went_on(reader))
            return 0;
    return 1;
}

int reader_read(struct reader *reader, const struct scan *scan, size_t number, struct mcu *mcu)
{
    return go_to(reader, scan, number) && scan->entropy.one(&reader->stream, &scan->layout, mcu) && went_on(reader);
}

int reader_read_two(struct reader readers[2], const struct scan *scan, const size_t numbers[2], struct mcu mcus[2])
{
    struct bit_stream *streams[2] = {&readers[0].stream, &readers[1].stream};
    return go_to(&readers[0], scan, numbers[0]) && go_to(&readers[1], scan, numbers[1]) &&
           scan->entropy.two(streams, &scan->layout, mcus) && went_on(&readers[0]) && went_on(&readers[1]);
}
