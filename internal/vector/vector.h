// Vectors of LANES floats. Loops that a C file compiles once for each instruction set (each.h) include this file.
#ifndef SHARDBOOK_VECTOR_H
#define SHARDBOOK_VECTOR_H

#include <math.h>
#include <stdint.h>

#define vec NAME(vec)
#define ivec NAME(ivec)
#define uvec NAME(uvec)
#define inlined static inline __attribute__((always_inline))
#define VEC(p) (*(vec *)(p))
#define IVEC(p) (*(const ivec *)(p))
#define ALL(x) ((x) - (vec){}) // x in all lanes: x - 0 is x, also for -0

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define X86 1
#endif

static int most_bits = 512; // the widest vectors to use

// vector_bits returns the width of the widest vectors of the processor that loops are compiled for.
static inline int vector_bits(void) {
#ifdef X86
	__builtin_cpu_init(); // programs that Go links itself do not run its constructor
	if (most_bits >= 512 && __builtin_cpu_supports("avx512f")) return 512;
	if (most_bits >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 256;
#endif
	return 128;
}

#ifdef X86
#define BEST(x) (vector_bits() == 512 ? avx512_##x : vector_bits() == 256 ? avx2_##x : plain_##x)
#else
#define BEST(x) plain_##x
#endif
#endif

typedef float NAME(vec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(ivec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t NAME(uvec) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// pick returns a where the condition (all bits or none) holds, else b.
inlined vec NAME(pick)(ivec condition, vec a, vec b) { return (vec)((condition & (ivec)a) | (~condition & (ivec)b)); }

// exp returns eˣ for x ≤ 0, within 1.6 units in the last place if multiply-adds are fused; 0 below e⁻⁸⁷, NaN for NaN.
// With x·log₂e = n + r, n an integer and r in [-½, ½], it is 2ⁿ, set as bits, times a minimax polynomial for 2ʳ (relative
// error 1.5e-8).
inlined vec NAME(exp)(vec x) {
	vec shifted = x * 1.44269502e+0f + 12583039.0f; // 1.5·2²³ + 127 rounds to an integer with n + 127 in its low bits
	vec n = shifted - 12583039.0f;
	vec r = x * 1.92596303e-8f + (x * 1.44269502e+0f - n); // log₂e in two parts; one would have an error of x·1e-8
	vec p = ALL(1.53458124e-4f);
	p = p * r + 1.33999344e-3f;
	p = p * r + 9.61848907e-3f;
	p = p * r + 5.55032864e-2f;
	p = p * r + 2.40226462e-1f;
	p = p * r + 6.93147182e-1f;
	p = p * r + 1.0f;
	return (vec)((ivec)(p * (vec)((ivec)shifted << 23)) & ~(x < -87.0f));
}
