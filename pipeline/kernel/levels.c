#include "levels.h"

enum level kernel_level = LEVEL_PLAIN;

int kernel_use(enum level level)
{
    int is_there = level == LEVEL_PLAIN;
#ifdef KERNEL_X86
    is_there |= level == LEVEL_AVX2 && __builtin_cpu_supports("avx2");
#endif
#ifdef KERNEL_NEON
    is_there |= level == LEVEL_NEON;
#endif
    if (is_there)
        kernel_level = level;
    return is_there;
}
