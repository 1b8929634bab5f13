#include "levels.h"

enum level kernel_level = LEVEL_PLAIN;

int kernel_has(enum level level)
{
#ifdef KERNEL_X86
    if (level == LEVEL_AVX2)
        return __builtin_cpu_supports("avx2") != 0;
#endif
#ifdef KERNEL_NEON
    if (level == LEVEL_NEON)
        return 1;
#endif
    return level == LEVEL_PLAIN;
}

int kernel_use(enum level level)
{
    if (kernel_has(level))
        kernel_level = level;
    return kernel_level == level;
}
