// Compiles a file of loops once for each instruction set. A C file defines LOOPS, the file's path from this folder, and
// includes this one. The loops have NAME(x), for the functions' names, LANES, the floats of a vector, and ROWS, the rows
// of a tile of sums for which the set has registers.
#define NAME(x) plain_##x
#define LANES 4
#define ROWS 6
#include LOOPS
#undef NAME
#undef LANES
#undef ROWS

#ifdef X86 // of vector.h, which the loops include
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(x) avx2_##x
#define LANES 8
#define ROWS 6
#include LOOPS
#undef NAME
#undef LANES
#undef ROWS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,fma")
#define NAME(x) avx512_##x
#define LANES 16
#define ROWS 12
#include LOOPS
#undef NAME
#undef LANES
#undef ROWS
#pragma GCC pop_options
#endif
#undef LOOPS
