// Conversions between float and its two halves, which round to the nearest and ties to even, keep NaNs, and do not
// depend on whether the thread takes subnormal floats for 0, as XLA's do.
#ifndef SHARDBOOK_HALF_H
#define SHARDBOOK_HALF_H

#include <stdint.h>

typedef union { uint32_t bits; float value; } float_bits;

static inline float from_bf16(uint16_t h) {
	float_bits x = {(uint32_t)h << 16};
	return x.value;
}

static inline uint16_t to_bf16(float f) {
	float_bits x = {.value = f};
	if (f != f) return x.bits >> 16 | 0x40;
	return (x.bits + 0x7fff + (x.bits >> 16 & 1)) >> 16;
}

static inline float from_f16(uint16_t h) {
	float_bits x = {((uint32_t)(h & 0x7fff) << 13) + (112u << 23)}; // the exponents' biases differ by 112
	if ((h & 0x7c00) == 0x7c00) x.bits |= 0x7f800000;
	if (!(h & 0x7c00)) x.value = (h & 0x3ff) * 0x1p-24f; // subnormal
	x.bits |= (uint32_t)(h & 0x8000) << 16;
	return x.value;
}

static inline uint16_t to_f16(float f) {
	float_bits x = {.value = f};
	uint16_t sign = x.bits >> 16 & 0x8000;
	x.bits &= 0x7fffffff;
	if (x.bits > 0x7f800000) return sign | 0x7e00;
	if (x.value >= 65520) return sign | 0x7c00;
	if (x.value < 0x1p-14f) {
		x.value += 0.5f; // the smallest step, 2⁻²⁴, is that of floats in [½, 1): the sum is rounded to it
		return sign | (x.bits - 0x3f000000);
	}
	return sign | ((x.bits + 0xfff + (x.bits >> 13 & 1) - (112u << 23)) >> 13);
}

#endif
