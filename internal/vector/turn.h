// Transposition of 4×4 floats, the same for every instruction set.
#ifndef SHARDBOOK_TURN_H
#define SHARDBOOK_TURN_H

#include <stdint.h>

typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));

#ifdef __clang__
#define SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t quad_index __attribute__((vector_size(16)));
#define SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (quad_index){i, j, k, l})
#endif

// turn transposes 4 rows of 4 elements, from_row and to_row elements apart.
static inline __attribute__((always_inline)) void turn(const float *from, int64_t from_row, float *to, int64_t to_row) {
	quad a = *(quad *)from, b = *(quad *)(from + from_row);
	quad c = *(quad *)(from + 2 * from_row), d = *(quad *)(from + 3 * from_row);
	quad ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5);
	*(quad *)to = SHUFFLE(ab, cd, 0, 1, 4, 5);
	*(quad *)(to + to_row) = SHUFFLE(ab, cd, 2, 3, 6, 7);
	ab = SHUFFLE(a, b, 2, 6, 3, 7), cd = SHUFFLE(c, d, 2, 6, 3, 7);
	*(quad *)(to + 2 * to_row) = SHUFFLE(ab, cd, 0, 1, 4, 5);
	*(quad *)(to + 3 * to_row) = SHUFFLE(ab, cd, 2, 3, 6, 7);
}

#endif
