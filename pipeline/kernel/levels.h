/* Which instructions the kernel may use. Every level gives the same bytes. */
#pragma once

/* Of those that a processor has the last is the best. Code that has nothing of its own for a level runs as plain C. */
enum level { LEVEL_PLAIN, LEVEL_AVX2, LEVEL_NEON };

extern enum level kernel_level; /* the one in use */

/* Run at this level from now on, in every thread. 0 where this build or this processor cannot: nothing changes then. */
int kernel_use(enum level level);

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define KERNEL_X86 1 /* AVX2, by __attribute__((target)) on each function that uses them */
#elif defined(__aarch64__)
#define KERNEL_NEON 1 /* every 64-bit ARM has it */
#endif
