// Arrays of float32, float16 or bfloat16, read and written as float.
#ifndef SHARDBOOK_ARRAY_H
#define SHARDBOOK_ARRAY_H

#include <string.h>

#include "../half/half.h"
#include "../../lib/xla/foreign/foreign.h"

typedef struct { void *data; int type; } array;

// load converts n elements from index at to float.
static inline void load(const array *a, int64_t at, int64_t n, float *to) {
	if (a->type == FOREIGN_F32) {
		memcpy(to, (const float *)a->data + at, n * sizeof *to);
		return;
	}
	const uint16_t *from = (const uint16_t *)a->data + at;
	if (a->type == FOREIGN_F16)
		for (int64_t i = 0; i < n; i++) to[i] = from_f16(from[i]);
	else
		for (int64_t i = 0; i < n; i++) to[i] = from_bf16(from[i]);
}

// store rounds n elements to the array's type.
static inline void store(const array *a, int64_t at, int64_t n, const float *from) {
	if (a->type == FOREIGN_F32) {
		memcpy((float *)a->data + at, from, n * sizeof *from);
		return;
	}
	uint16_t *to = (uint16_t *)a->data + at;
	if (a->type == FOREIGN_F16)
		for (int64_t i = 0; i < n; i++) to[i] = to_f16(from[i]);
	else
		for (int64_t i = 0; i < n; i++) to[i] = to_bf16(from[i]);
}

#endif
