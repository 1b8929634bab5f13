/* Decoding a region, one row of MCUs after the other: `reader` gets coefficients, `strip` makes pixels of them. Where a row
 * lies in several restart intervals its halves are read by turns, see entropy.h. */
#include "jpeg.h"
#include "jpeg_header.h"
#include "reader.h"
#include "strip.h"

struct decoding {
    struct jpeg_header header;
    struct scan scan;
    struct strip strip;
    struct reader readers[2];
    struct mcu mcus[2];
};

/* The blocks of an MCU, in the order of T.81, A.2.3, and their tables. */
static int lay_out(struct mcu_layout *layout, const struct jpeg_header *header)
{
    const struct huffman_tables *tables = huffman_find(header->huffman);
    const int luma = header->subsampling * header->subsampling;
    layout->blocks = luma + 2;
    for (int i = 0; i < layout->blocks; i++)
        layout->component[i] = (uint8_t)(i < luma ? 0 : i - luma + 1);
    for (int i = 0; tables && i < COMPONENTS; i++) {
        layout->dc[i] = &tables->dc[header->components[i].dc];
        layout->ac[i] = &tables->ac[header->components[i].ac];
    }
    return tables != NULL;
}

/* The MCU at which the second reader starts: the begin of the interval nearest to the middle; `end` if there is one only. */
static size_t split(size_t begin, size_t end, size_t interval)
{
    if ((end - 1) / interval == begin / interval)
        return end;
    size_t middle = (begin + (end - begin + interval) / 2) / interval * interval;
    if (middle <= begin)
        middle += interval;
    return middle < end ? middle : (end - 1) / interval * interval;
}

/* Decodes the row of MCUs that the strip is at. */
static int decode_row(struct decoding *job)
{
    struct strip *strip = &job->strip;
    const size_t row = (size_t)strip->row * jpeg_mcus(job->header.width_px, &job->header);
    const size_t begin = row + (size_t)strip->mcus.left, end = row + (size_t)strip->mcus.right;
    const size_t middle = split(begin, end, job->scan.interval_mcus);
    for (size_t i = 0; begin + i < middle || middle + i < end; i++) {
        const size_t numbers[2] = {begin + i, middle + i};
        const int has_first = numbers[0] < middle, has_second = numbers[1] < end;
        if (has_first && has_second
                ? !reader_read_two(job->readers, &job->scan, numbers, job->mcus)
                : !reader_read(&job->readers[has_second], &job->scan, numbers[has_second], &job->mcus[has_second]))
            return 0;
        if (has_first && !strip_put(strip, (ptrdiff_t)(numbers[0] - row), &job->mcus[0]))
            return 0;
        if (has_second && !strip_put(strip, (ptrdiff_t)(numbers[1] - row), &job->mcus[1]))
            return 0;
    }
    return 1;
}

/* Finds what the strip takes of the file. */
static int open_scan(struct decoding *job, const uint8_t *data, size_t length, struct arena *arena)
{
    const struct box *mcus = &job->strip.mcus;
    const size_t across = jpeg_mcus(job->header.width_px, &job->header);
    const size_t first = (size_t)mcus->top * across + (size_t)mcus->left;
    const size_t last = (size_t)(mcus->bottom - 1) * across + (size_t)(mcus->right - 1);
    job->scan.entropy = entropy_decoder_for(kernel_level);
    return lay_out(&job->scan.layout, &job->header) &&
           scan_open(&job->scan, data, length, &job->header, first, last, arena) &&
           reader_open(&job->readers[0], &job->scan, arena) && reader_open(&job->readers[1], &job->scan, arena);
}

static int decode_rows(struct decoding *job, uint8_t *out_RGBX, size_t out_stride_bytes)
{
    for (ptrdiff_t row = job->strip.mcus.top; row < job->strip.mcus.bottom; row++) {
        strip_go_to(&job->strip, row);
        if (!decode_row(job))
            return 0;
        strip_write(&job->strip, out_RGBX, out_stride_bytes);
    }
    return 1;
}

int kernel_decode(const uint8_t *data, size_t length, int left_px, int top_px, int width_px, int height_px, int smooth,
                  uint8_t *out_RGBX, size_t out_stride_bytes)
{
    struct decoding job = {0};
    struct arena arena = {0};
    const struct jpeg_header *header = &job.header;
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || !jpeg_header_read(data, length, &job.header))
        return 0;
    if (left_px < 0 || top_px < 0 || width_px < 1 || height_px < 1 || left_px > header->width_px - width_px ||
        top_px > header->height_px - height_px || out_stride_bytes / 4 < (size_t)width_px)
        return 0;
    const struct box pixels = {left_px, top_px, left_px + width_px, top_px + height_px};
    const int is_decoded = strip_open(&job.strip, header, pixels, smooth, &arena) &&
                           open_scan(&job, data, length, &arena) && decode_rows(&job, out_RGBX, out_stride_bytes);
    arena_free(&arena);
    return is_decoded;
}
