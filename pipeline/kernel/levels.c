#include "levels.h"

enum level kernel_level = LEVEL_PLAIN;

int kernel_has(enum level level)
{
#ifdef KERNEL_X86
    if (level == LEVEL_AVX2)
        return __builtin_cpu_supports("avx2") != 0;
    if (level == LEVEL_AVX512)
        return kernel_has(LEVEL_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
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
