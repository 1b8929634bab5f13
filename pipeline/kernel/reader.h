/* A reader: MCUs by their numbers, from one restart interval after the other. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "entropy.h"
#include "jpeg_header.h"

/* The part of a file's scan that is read. MCUs are numbered as they come: from left to right, then down. */
struct scan {
    const uint8_t *data;
    size_t length;
    struct mcu_layout layout;
    struct entropy_decoder entropy;
    size_t mcus, interval_mcus;     /* of the picture; of each restart interval but the last */
    size_t first_interval, *starts; /* of those that are read; where they start, and what is behind the last */
    size_t most_bytes;              /* from one start to the next */
};

struct reader {
    struct bit_stream stream;
    uint8_t *bytes;  /* of the interval */
    size_t mcu, end; /* the next MCU, and the first behind the interval */
};

/* Prepares to read MCUs from `first` to `last`. Walks all of the scan: it must be the intervals that the header says,
 * with the markers between them that belong there (T.81, B.2.1, E.1.4), and EOI. Else, or without memory, 0. */
int scan_open(struct scan *scan, const uint8_t *data, size_t length, const struct jpeg_header *header, size_t first,
              size_t last, struct arena *arena);

/* Memory for one reader. 0: none left. */
int reader_open(struct reader *reader, const struct scan *scan, struct arena *arena);

/* Reads an MCU; those between the one read before and this one are read, too, as far as they share its interval.
 * 0: damaged, or something left at an interval's end. */
int reader_read(struct reader *reader, const struct scan *scan, size_t number, struct mcu *mcu);

/* The same with two readers at once, which costs less than twice as much. */
int reader_read_two(struct reader readers[2], const struct scan *scan, const size_t numbers[2], struct mcu mcus[2]);
