/* Memory of one call: taken piece by piece, given back at once. */
#pragma once

#include <stddef.h>
#include <stdlib.h>

#ifndef ARENA_BYTES
#define ARENA_BYTES 131072 /* one malloc serves a usual call; 0 gives every piece its own, for the sanitizers */
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) (void)0
#endif

struct arena {
    char *last; /* a block of memory; its first bytes are where the block before it is */
    size_t used, size;
};

/* At least so many bytes, aligned to 64, not zeroed; NULL where memory ran out. */
static inline void *arena_take(struct arena *arena, size_t bytes)
{
    const size_t whole = (bytes + 63) & ~(size_t)63;
    if (!arena->last || whole > arena->size - arena->used) {
        const size_t size = 64 + (whole > ARENA_BYTES ? whole : ARENA_BYTES);
        char *block = aligned_alloc(64, size);
        if (!block)
            return NULL;
        *(char **)block = arena->last;
        *arena = (struct arena){block, 64, size};
    }
    char *piece = arena->last + arena->used;
    arena->used += whole;
    ASAN_POISON_MEMORY_REGION(piece + bytes, whole - bytes); /* a sanitizer sees the first byte too far */
    return piece;
}

static inline void arena_free(struct arena *arena)
{
    for (char *block; (block = arena->last); free(block))
        arena->last = *(char **)block;
}
