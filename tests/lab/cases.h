/* What the programs beside this have in common: numbers drawn from a seed, a hash, levels, memory of just one size. */
#ifndef FEEDLINE_CASES_H
#define FEEDLINE_CASES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "levels.h"

static const char *const LEVEL_NAMES[] = {"plain", "avx2", "neon"};

static uint64_t state;

/* The same numbers for the same seed, others for the next. */
static inline void begin(uint64_t seed)
{
    state = (seed + 1) * 0x9E3779B97F4A7C15u;
    state = (state ^ state >> 29) * 0xBF58476D1CE4E5B9u;
}

static inline int below(int limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)limit);
}

static const uint64_t HASH_OF_NOTHING = 14695981039346656037u;

static inline uint64_t hashed(uint64_t hash, const uint8_t *bytes, size_t count)
{
    for (size_t n = 0; n < count; n++)
        hash = (hash ^ bytes[n]) * 1099511628211u;
    return hash;
}

/* So that a sanitizer sees every byte too far. */
static inline uint8_t *just(size_t bytes)
{
    uint8_t *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        exit(3);
    return memory;
}

#endif
