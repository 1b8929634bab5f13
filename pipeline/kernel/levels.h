/* Which instructions the kernel may use. Every level gives the same bytes. */
#ifndef FEEDLINE_LEVELS_H
#define FEEDLINE_LEVELS_H

/* Of those that a processor has the last is the best. Code that has nothing of its own for a level runs as plain C. */
enum level { LEVEL_PLAIN, LEVEL_AVX2, LEVEL_NEON };

/* The level in use; the module chooses the best when it is loaded. */
extern enum level kernel_level;

/* Run at this level from now on, in every thread. 0 where this build or this processor cannot: nothing changes then. */
int kernel_use(enum level level);

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define KERNEL_X86 1 /* AVX2, by __attribute__((target)) on each function that uses them */
#endif
#if defined(__aarch64__)
#define KERNEL_NEON 1 /* every 64-bit ARM has it */
#endif

#endif
